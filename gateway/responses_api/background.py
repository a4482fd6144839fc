"""Responses that run on after their request was answered: polled, canceled, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.access_log import CLIENT_CLOSED, RequestRecord
from gateway.answer import Json, whole
from gateway.body import invalid
from gateway.errors import GatewayError
from gateway.http_errors import internal_error
from gateway.responses_api.event_log import EventLog
from gateway.responses_api.head import ResponseHead
from gateway.responses_api.shelf import RUNNING, Kept, Shelf, away, key_of
from gateway.responses_api.store import StoreAway
from gateway.services import Services
from runtime.logs import get_logger
from runtime.tasks import spawn

if TYPE_CHECKING:
    from gateway.responses_api.answer import ResponseAnswer
    from gateway.run import Run

MAX_RUNNING = 256
"""At once, of one gateway; each holds its prompt and its tokens in memory."""

LOOK_S = 1.0
"""How often a lease is renewed, and with it events kept and seen whether another gateway was told to cancel."""

ROUTE = "background"
OK = 200

log = get_logger("gateway.background")


@dataclass(slots=True)
class Errand:
    """One response on its way. ``kept`` is as it was asked; ``forgotten``: nothing of it is to be kept.

    ``events``, if it is streamed, are told and kept as they come.
    """

    owner: str
    head: ResponseHead
    kept: Kept
    run: Run
    answer: ResponseAnswer
    record: RequestRecord
    services: Services
    events: EventLog | None = None
    forgotten: bool = False
    work: asyncio.Future[Json] | None = field(default=None, init=False)

    @property
    def key(self) -> str:
        """The store's key."""
        return key_of(self.owner, self.head.id)

    def cancel(self) -> None:
        """End it soon."""
        if self.work is not None:
            self.work.cancel()


class Background:
    """The running ones of one gateway. Belongs to one event loop."""

    def __init__(self, shelf: Shelf) -> None:
        """Own ``shelf``, where responses are kept."""
        self.shelf = shelf
        self._running: dict[str, tuple[Errand, asyncio.Task[None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._num_starting = 0
        self._closing = False

    @property
    def num_running(self) -> int:
        """Those that haven't ended."""
        return len(self._running)

    async def start(self, errand: Errand) -> Json:
        """Return the response as it is now, queued; it runs on.

        Raises ``GatewayError``: 400 if it is too large to keep, 429 if too many run already, 503 if the store is away.
        """
        if len(self._running) + self._num_starting >= MAX_RUNNING or self._closing:
            text = f"{MAX_RUNNING} responses run in the background already; try again later"
            raise GatewayError(429, text, type="rate_limit_error", code="queue_full")
        self._num_starting += 1
        try:
            await self._keep_queued(errand)
        finally:
            self._num_starting -= 1
        errand.services.metrics.began()
        errand.work = asyncio.ensure_future(self._work(errand))
        self._running[errand.key] = errand, spawn(self._see_through(errand), "background-response")
        if self._looking is None or self._looking.done():
            self._looking = spawn(self._look(), "background-leases")
        return {**errand.kept.response, "status": "queued"}

    async def _keep_queued(self, errand: Errand) -> None:
        store = self.shelf.store
        try:
            await store.lease(errand.key)
        except StoreAway as error:
            raise away(error) from error
        try:
            await self.shelf.keep(errand.owner, errand.kept)
        except BaseException:
            with contextlib.suppress(StoreAway):
                await store.end(errand.key)
            raise

    async def cancel(self, owner: str, response_id: str) -> Json:
        """Return the response, canceled; here or at another gateway.

        Raises ``GatewayError``: as ``Shelf.find``, 400 for one that has ended otherwise or isn't in the background.
        """
        kept = await self.shelf.find(owner, response_id)
        if not kept.response["background"]:
            raise invalid("response_id", "only responses that were asked for with background true can be canceled")
        if kept.response["status"] == "cancelled":
            return kept.response
        if not kept.is_running:
            raise invalid("response_id", f"this response has ended already: {kept.response['status']}")
        if await self._end_here(key_of(owner, response_id)):
            return (await self.shelf.find(owner, response_id)).response
        canceled = replace(kept, response={**kept.response, "status": "cancelled"})
        await self.shelf.keep(owner, canceled)
        with contextlib.suppress(StoreAway):  # then its gateway sees the entry
            await self.shelf.store.end(key_of(owner, response_id))
        return canceled.response

    async def drop(self, owner: str, response_id: str) -> None:
        """Forget a response, and end it if it runs. Raises ``GatewayError`` as ``Shelf.drop``."""
        await self._end_here(key_of(owner, response_id), forget=True)
        await self.shelf.drop(owner, response_id)

    async def close(self) -> None:
        """End all, which have failed then, and let go of the store."""
        self._closing = True
        for key in tuple(self._running):
            await self._end_here(key)
        if self._looking is not None:
            self._looking.cancel()
        try:
            await self.shelf.store.close()
        except StoreAway as error:
            log.warning("responses_not_closed", reason=str(error))

    async def _end_here(self, key: str, *, forget: bool = False) -> bool:
        """End one of ours and wait until it has; whether it was one."""
        if key not in self._running:
            return False
        errand, task = self._running[key]
        errand.forgotten |= forget
        errand.cancel()
        await asyncio.wait((task,))
        return True

    async def _work(self, errand: Errand) -> Json:
        answer, run, events = errand.answer, errand.run, errand.events
        if events is None:
            await run.start(errand.services.dispatcher)
            return await whole(answer)
        events.put(await answer.opening())
        await run.start(errand.services.dispatcher)
        while (pieces := await run.batch()) or not run.over:
            events.put(answer.events(pieces))
        response = await answer.ended()
        events.put(answer.closing(response))
        return response

    async def _see_through(self, errand: Errand) -> None:
        assert errand.work is not None
        try:
            await asyncio.wait((errand.work,))
            errand.run.close("canceled")
            response = self._outcome(errand, errand.work)
            with contextlib.suppress(StoreAway):
                await self._end_events(errand, response)
            if not errand.forgotten:
                await self._keep(errand, response)
            with contextlib.suppress(StoreAway):
                await self.shelf.store.end(errand.key)
        finally:
            del self._running[errand.key]
            seconds = time.monotonic() - errand.record.started
            errand.services.metrics.ended(errand.record, seconds)
            errand.record.write(seconds)
            await errand.services.settle(errand.record)

    async def _end_events(self, errand: Errand, response: Json) -> None:
        """Before the response is kept as ended: who reads kept events looks for more until then.

        Raises ``StoreAway``.
        """
        if errand.events is None:
            return
        if response["status"] == "failed":
            errand.events.put(errand.answer.closing(response))
        errand.events.end()
        if errand.forgotten:
            await errand.events.drop()
        else:
            await errand.events.flush()

    def _outcome(self, errand: Errand, work: asyncio.Future[Json]) -> Json:
        record = errand.record
        if work.cancelled() and not self._closing:
            record.status, record.reason = CLIENT_CLOSED, "canceled"
            return errand.head.response("cancelled")
        if work.cancelled():
            failure: BaseException | None = GatewayError(503, "The gateway that ran it has ended; ask again")
        else:
            failure = work.exception()
        if failure is None:
            record.status = OK
            return work.result()
        if not isinstance(failure, GatewayError):
            log.error("background_failed", cause=failure, request_id=errand.run.request_id)
            failure = internal_error()
        record.status, record.error_code = failure.status, failure.code or str(failure.status)
        return errand.head.response("failed", error=failure)

    async def _keep(self, errand: Errand, response: Json) -> None:
        try:
            await self.shelf.keep(errand.owner, replace(errand.kept, response=response))
        except GatewayError as error:
            log.warning("response_not_kept", reason=error.message)
            failed = replace(errand.kept, response=errand.head.response("failed", error=error))
            await self.shelf.keep_if_possible(errand.owner, failed)

    async def _look(self) -> None:
        while self._running:
            await asyncio.sleep(LOOK_S)
            for errand, _ in tuple(self._running.values()):
                with contextlib.suppress(StoreAway):
                    await self._renew(errand)
                    if errand.events is not None and not errand.forgotten:
                        await errand.events.flush()

    async def _renew(self, errand: Errand) -> None:
        """A lease that is gone means that another gateway was told to end it, or that the store was away for long."""
        store = self.shelf.store
        if await store.renew(errand.key) or errand.key not in self._running:
            return
        entry = await store.get(errand.key)
        if entry is not None and json.loads(entry)["response"]["status"] in RUNNING:
            await store.lease(errand.key)
            return
        errand.forgotten = entry is None
        errand.cancel()
