"""A dispatcher on a memory bus, with scripted workers, on a virtual clock: what its tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from gateway.dispatch_settings import DispatchSettings
from gateway.dispatcher import GatewayDispatcher
from gateway.errors import GatewayError
from gateway.generation import Generation, Stream, Update
from gateway.outcome import DispatchMetrics, Outcome
from protocol.messages import GatewayStatus
from protocol.sampling import Sampling
from runtime.bus import Bus
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.postbox import Postbox
from runtime.roster import Roster
from tests.support.scripted_worker import ScriptedWorker
from tests.support.virtual_clock import run_virtually
from tests.support.worker_habits import token

DEADLINE_S = 900.0
"""Virtual seconds: what never happens ends a test in one or two real ones."""
WARM_S = 5.5
"""A gateway that hears itself for so long may judge its peers."""
Connect = Callable[[], Bus]
QUICK = DispatchSettings(ack_s=0.005, gap_s=0.01, wanted_s=0.03, ask_s=0.15, queue_s=5.0)


def tokens(choice: int, count: int) -> list[int]:
    """What a choice of this length says."""
    return [token(choice, index) for index in range(count)]


def run(work: Coroutine[Any, Any, None]) -> None:
    """A loop of its own whose time costs nothing, with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    run_virtually(bounded())


class Counts(DispatchMetrics):
    """Keeps what the hooks heard."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.paths: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.moves: list[tuple[str, str]] = []
        self.num_resent = 0
        self.kept_out_for: list[tuple[str, str]] = []
        self.num_absent = 0

    def kept_out(self, role: str, code: str, *, first: bool) -> None:
        self.kept_out_for.append((role, code))
        self.num_absent += first

    def let_back(self, role: str) -> None:
        self.num_absent -= 1

    def routed(self, path: str) -> None:
        self.paths.append(path)

    def refused(self, role: str, code: str) -> None:
        self.refusals.append((role, code))

    def moved(self, phase: str, code: str) -> None:
        self.moves.append((phase, code))

    def resent(self) -> None:
        self.num_resent += 1

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Rig:
    """One gateway. Workers are made by ``prefill`` and ``decode``, and known once these return."""

    def __init__(
        self,
        settings: DispatchSettings,
        hub: MemoryHub | None = None,
        name: str = "gateway-1",
        max_payload: int = 1 << 20,
        connect: Connect | None = None,
    ) -> None:
        """``connect`` makes a connection for each process in place of the hub's."""
        self.hub = hub or MemoryHub()
        self.counts = Counts()
        self._connect: Connect = connect or (lambda: MemoryBus(self.hub, max_payload))
        self.bus = self._connect()
        self.postbox = Postbox(self.bus, new_peer(name))
        self.roster = Roster(self.postbox)
        self.dispatcher = GatewayDispatcher(self.postbox, self.roster, settings, self.counts)
        self.heartbeat = Heartbeat(self.postbox, lambda: GatewayStatus("", self.dispatcher.num_requests))
        self.workers: list[ScriptedWorker] = []

    async def open(self) -> None:
        """Beat until it may judge."""
        await self.postbox.open()
        self.heartbeat.start()
        await asyncio.sleep(WARM_S)

    async def close(self) -> None:
        self.dispatcher.close()
        for worker in self.workers:
            await worker.close()
        await self.heartbeat.stop()
        self.roster.close()
        self.postbox.close()
        await self.bus.close()

    async def prefill(self, worker_id: str = "p1", **load: object) -> ScriptedWorker:
        return await self._worker(worker_id, "prefill", load)

    async def decode(self, worker_id: str = "d1", **load: object) -> ScriptedWorker:
        return await self._worker(worker_id, "decode", load)

    async def submit(
        self,
        max_tokens: int = 5,
        n: int = 1,
        prompt: int | tuple[int, ...] = 40,
        salt: str = "",
        deadline_ms: int = 0,
    ) -> Stream:
        ids = tuple(range(prompt)) if isinstance(prompt, int) else prompt
        sampling = Sampling(max_tokens=max_tokens)
        return await self.dispatcher.submit(Generation(ids, n, sampling, salt, deadline_ms=deadline_ms))

    def queued(self, **request: Any) -> asyncio.Task[Stream]:
        """Submit without waiting for a place."""
        return asyncio.ensure_future(self.submit(**request))

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when it holds; the test's deadline bounds it."""
        while not condition():
            await asyncio.sleep(0.001)

    async def nothing_left(self) -> None:
        """The gateway keeps nothing of any request."""
        await self.until(lambda: not any(self.dispatcher.counts().values()))
        await self.until(lambda: not self.dispatcher._desk.repeats._open)

    async def all_let_go(self) -> None:
        """Neither do the workers hold anything that isn't acknowledged."""
        await self.nothing_left()
        for worker in self.workers:
            await self.until(lambda w=worker: not any(map(w.emitter.num_unacknowledged, w.held)))  # type: ignore[misc]

    async def _worker(self, worker_id: str, role: str, load: dict[str, object]) -> ScriptedWorker:
        worker = await ScriptedWorker(self._connect(), worker_id, role, **load).open()
        self.workers.append(worker)
        await self.until(lambda: self.roster.member(worker.me))
        return worker


@asynccontextmanager
async def rig(settings: DispatchSettings = QUICK) -> AsyncIterator[Rig]:
    """A rig that is closed afterwards."""
    made = Rig(settings)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


class Reader:
    """Reads a stream as the HTTP side does; gaps, doubles and a second end are errors."""

    def __init__(self, stream: Stream, n: int = 1) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(n)]
        self.ends: dict[int, str] = {}
        self.error: GatewayError | None = None
        self._stream = stream
        self._news = asyncio.Condition()
        self._task = asyncio.ensure_future(self._read())

    async def until(self, num_tokens: int, choice: int = 0) -> None:
        """Return when a choice has this many tokens."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.tokens[choice]) >= num_tokens)

    async def all(self) -> list[list[int]]:
        """Everything, once the stream has ended well."""
        await self._task
        if self.error is not None:
            raise self.error
        return self.tokens

    async def failed(self) -> GatewayError:
        """How it ended."""
        await self._task
        assert self.error is not None
        return self.error

    async def _read(self) -> None:
        try:
            async for update in updates_of(self._stream):
                self._take(update)
                async with self._news:
                    self._news.notify_all()
        except GatewayError as error:
            self.error = error

    def _take(self, update: Update) -> None:
        assert update.choice not in self.ends
        assert update.first_index == len(self.tokens[update.choice])
        self.tokens[update.choice].extend(update.token_ids)
        if update.finish_reason:
            self.ends[update.choice] = update.finish_reason


async def read(stream: Stream, n: int = 1) -> list[list[int]]:
    """All tokens of each choice."""
    return await Reader(stream, n).all()


async def updates_of(stream: Stream) -> AsyncIterator[Update]:
    """What a stream says, one after another, as long as it says anything."""
    news = asyncio.Event()
    stream.on_news(news.set)
    while True:
        news.clear()
        updates = stream.take()
        for update in updates:
            yield update
        if not updates and stream.over:
            return
        if not updates:
            await news.wait()
