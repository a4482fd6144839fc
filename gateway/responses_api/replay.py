"""The events of a response in the background as they are kept, told again from a number on."""

import asyncio
from collections.abc import AsyncIterator

from gateway.answer import event
from gateway.choices_answer import KEEPALIVE
from gateway.errors import GatewayError
from gateway.responses_api.event_log import AFTER, CUT, END, part_key
from gateway.responses_api.shelf import Shelf, away, key_of
from gateway.responses_api.store import StoreAway

LOOK_S = 0.5
"""How often it is looked for new events while the response runs, here or at another gateway."""

_LOST = GatewayError(
    500, "Its events from here on aren't kept; ask for the response without stream", type="server_error"
)


class Replay:
    """One reading, by one client."""

    def __init__(self, shelf: Shelf, owner: str, response_id: str, after: int) -> None:
        """Begin behind the event whose number is ``after``; -1 is all."""
        self._shelf = shelf
        self._owner = owner
        self._response_id = response_id
        self._after = after
        self._num_events = 0
        self._is_quiet = False

    def nudge(self) -> None:
        """Let it say something, if only that it is there."""
        self._is_quiet = True

    async def events(self) -> AsyncIterator[bytes]:
        """Events, until the response has ended. What goes wrong meanwhile is an event."""
        place, rest, last = 0, b"", b""
        try:
            while last not in (END, CUT):
                part = await self._part(place)
                if not part:
                    if self._is_quiet:
                        self._is_quiet = False
                        yield KEEPALIVE
                    await asyncio.sleep(LOOK_S)
                    continue
                if part in (END, CUT):
                    last = part
                    continue
                place += 1
                *blocks, rest = (rest + part).split(AFTER)
                last = blocks[-1] if blocks else b""
                if told := self._told(blocks):
                    yield told
            if last == CUT:
                yield self._error(_LOST)
        except GatewayError as error:
            yield self._error(error)

    async def _part(self, number: int) -> bytes:
        """A part: empty if it is still to come, ``END`` or ``CUT`` alone if it never will.

        Raises ``GatewayError``: the response is gone, or the store away.
        """
        key = part_key(key_of(self._owner, self._response_id), number)
        store = self._shelf.store
        try:
            part = await store.get(key)
            if part is None:
                kept = await self._shelf.find(self._owner, self._response_id)
                if kept.is_running:
                    return b""
                part = await store.get(key)  # it may have come with the end
                if part is None:
                    return END if kept.response["status"] == "cancelled" else CUT
        except StoreAway as error:
            raise away(error) from error
        return part

    def _told(self, blocks: list[bytes]) -> bytes:
        """Those that are asked for."""
        events = [block + AFTER for block in blocks if block not in (END, CUT)]
        first, self._num_events = self._num_events, self._num_events + len(events)
        return b"".join(events[max(self._after + 1 - first, 0) :])

    def _error(self, error: GatewayError) -> bytes:
        number = max(self._num_events, self._after + 1)
        code = error.code or error.type
        body = {"type": "error", "code": code, "message": error.message, "param": error.param}
        return event({**body, "sequence_number": number}, "error")
