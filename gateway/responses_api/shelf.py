"""Responses that are kept: each for whoever asked for it, and for nobody else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from gateway.answer import Json, encode
from gateway.body import invalid
from gateway.errors import GatewayError
from gateway.responses_api.event_log import drop_parts
from gateway.responses_api.store import MAX_ENTRY_BYTES, ResponseStore, StoreAway
from runtime.logs import get_logger

LOG_S = 10.0
RUNNING = frozenset({"queued", "in_progress"})
_KEPT_AS_INPUT = ("message", "function_call", "function_call_output")

log = get_logger("gateway.responses")


@dataclass(frozen=True, slots=True)
class Kept:
    """A response, the items that it was asked with, and those of the conversation before.

    ``streamed``: its events are kept too.
    """

    response: Json
    input: list[Json] = field(default_factory=list)
    before: list[Json] = field(default_factory=list)
    streamed: bool = False

    @property
    def is_running(self) -> bool:
        """Whether its last word is still to come."""
        return self.response["status"] in RUNNING

    def lost(self) -> Kept:
        """The same where nobody works on it any more."""
        error = {"code": "server_error", "message": "The gateway that ran it has gone; ask again"}
        return replace(self, response={**self.response, "status": "failed", "error": error})

    def conversation(self) -> list[Json]:
        """All items so far, without what no later prompt has: reasoning and log probabilities."""
        items = [*self.before, *self.input, *self.response["output"]]
        return [_bare(item) for item in items if item["type"] in _KEPT_AS_INPUT]


class Shelf:
    """Keeps responses in a store. ``owner`` tells apart who may read what."""

    def __init__(self, store: ResponseStore) -> None:
        """Own ``store``."""
        self.store = store

    async def keep(self, owner: str, kept: Kept) -> None:
        """Keep it in place of what is there under its id.

        Raises ``GatewayError``: 400 if it is too large, 503 if the store is away.
        """
        told = {"response": kept.response, "input": kept.input, "before": kept.before, "streamed": kept.streamed}
        entry = encode(told).encode(errors="surrogatepass")
        if len(entry) > MAX_ENTRY_BYTES:
            raise GatewayError(
                400,
                f"The conversation takes {len(entry)} bytes to keep, and {MAX_ENTRY_BYTES} are kept at most."
                " Send it without previous_response_id, and store false",
                code="too_large_to_store",
                param="store",
            )
        try:
            await self.store.put(key_of(owner, kept.response["id"]), entry)
        except StoreAway as error:
            raise away(error) from error

    async def keep_if_possible(self, owner: str, kept: Kept) -> None:
        """Keep what its client has already, or gets in any case: a failure is logged and that's all."""
        try:
            await self.keep(owner, kept)
        except GatewayError as error:
            log.every(LOG_S, "not_kept").warning("response_not_kept", reason=error.message)

    async def find(self, owner: str, response_id: str) -> Kept:
        """What is kept. One that ran at a gateway that has gone has failed.

        Raises ``GatewayError``: 404 if there is none of this owner, 503 if the store is away.
        """
        key = key_of(owner, response_id)
        try:
            kept = await self._read(key, response_id)
            if kept.is_running and not await self.store.is_leased(key):
                kept = await self._read(key, response_id)  # it may have ended in between
                kept = kept.lost() if kept.is_running else kept
        except StoreAway as error:
            raise away(error) from error
        return kept

    async def before(self, owner: str, response_id: str) -> list[Json]:
        """The conversation that goes on behind a response. Raises ``GatewayError``: as ``find``, 400 while it runs."""
        kept = await self.find(owner, response_id)
        if kept.is_running:
            raise invalid("previous_response_id", "this response hasn't ended yet; wait until it has")
        return kept.conversation()

    async def drop(self, owner: str, response_id: str) -> None:
        """Forget it. Raises ``GatewayError``: 404 if there is none of this owner, 503 if the store is away."""
        try:
            was_there = await self.store.drop(key_of(owner, response_id))
            await drop_parts(self.store, key_of(owner, response_id))
        except StoreAway as error:
            raise away(error) from error
        if not was_there:
            raise unknown(response_id)

    async def _read(self, key: str, response_id: str) -> Kept:
        entry = await self.store.get(key)
        if entry is None:
            raise unknown(response_id)
        return Kept(**json.loads(entry))


def key_of(owner: str, response_id: str) -> str:
    """The store's key of a response. Raises ``GatewayError`` (404) for what can be the id of none."""
    if ":" in response_id:  # as in the keys of its events
        raise unknown(response_id)
    return f"{owner or 'open'}:{response_id}"


def unknown(response_id: str) -> GatewayError:
    """There is no such response, or it is somebody else's."""
    return GatewayError(
        404,
        f"No response {response_id[:64]!r} is kept for this key. They are kept for a while, unless store is false",
        code="not_found",
        param="response_id",
    )


def away(error: StoreAway) -> GatewayError:
    """The store can't be asked."""
    log.every(LOG_S, "away").warning("response_store_away", reason=str(error))
    return GatewayError(
        503, "Stored responses can't be reached now; try again later", type="server_error", code="store_away"
    )


def _bare(item: Json) -> Json:
    if item["type"] != "message":
        return item
    parts = [{**part, "logprobs": []} if "logprobs" in part else part for part in item["content"]]
    return {**item, "content": parts}
