"""Sends the requests of one run: a closed loop, an open loop, or steady streams with long prompts arriving."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from bench.answer import Answer, read_answer
from bench.client import Ask, Client, until
from bench.figures import Sent
from bench.recording import Recording
from bench.workload import Workload

FLOW_TIMEOUT_S = 60.0
"""The window of steady streams opens when all flow, or after this."""

OnDone = Callable[[int], None]
"""Told how many requests are done."""


class Load:
    """One run against one server. Nothing is parsed before it is over."""

    def __init__(self, client: Client, on_done: OnDone) -> None:
        self._client = client
        self._on_done = on_done
        self._num_done = 0
        self._start_s = self._start_cpu_s = 0.0

    async def closed(self, asks: Sequence[Ask], concurrency: int) -> Sent:
        """Keep `concurrency` requests under way until none is left."""
        left = iter(asks)
        recordings: list[Recording] = []

        async def one_after_another() -> None:
            for ask in left:
                await self._send(ask, recordings)

        self._start()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(one_after_another())
        return self._sent(recordings)

    async def open(self, asks: Sequence[Ask]) -> Sent:
        """Send each request when it is due; wait for all answers."""
        recordings: list[Recording] = []
        start_s = self._start()
        async with asyncio.TaskGroup() as tasks:
            for ask in asks:
                await until(start_s + ask.due_s)
                tasks.create_task(self._send(ask, recordings, start_s + ask.due_s))
        return self._sent(recordings)

    async def steady(self, streams: Sequence[Sequence[Ask]], longs: Sequence[Ask], duration_s: float) -> Sent:
        """Watch streams for `duration_s` while `longs` arrive when they are due, then leave all."""
        recordings: list[Recording] = []
        late: list[Recording] = []

        async def stream(asks: Iterable[Ask]) -> None:
            for ask in asks:
                await self._send(ask, recordings)

        tasks = [asyncio.ensure_future(stream(asks)) for asks in streams]
        try:
            await asyncio.sleep(0)  # each stream has its first recording then
            await _all_flow(recordings[: len(streams)], tasks)
            start_s = self._start()
            for ask in longs:
                await until(start_s + ask.due_s)
                tasks.append(asyncio.ensure_future(self._send(ask, late, start_s + ask.due_s)))
            await until(start_s + duration_s)
            end_s, cpu_s = time.perf_counter(), self._cpu_s()
            num_dry = sum(task.done() for task in tasks[: len(streams)])
        finally:
            await _leave(tasks)
        return Sent(_read(recordings), start_s, end_s, cpu_s, _read(late), is_window=True, num_dry=num_dry)

    def _start(self) -> float:
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()
        return self._start_s

    def _cpu_s(self) -> float:
        return time.process_time() - self._start_cpu_s

    def _sent(self, recordings: Sequence[Recording]) -> Sent:
        end_s, cpu_s = time.perf_counter(), self._cpu_s()
        return Sent(_read(recordings), self._start_s, end_s, cpu_s)

    async def _send(self, ask: Ask, recordings: list[Recording], due_s: float = 0.0) -> None:
        recording = Recording(ask.output_len, due_s)
        recordings.append(recording)
        await self._client.ask(ask.body, recording)
        self._num_done += 1
        self._on_done(self._num_done)


async def send(load: Load, workload: Workload, asks: Sequence[Ask], longs: Sequence[Ask]) -> Sent:
    """Send `asks` as the workload's kind wants it."""
    if workload.kind == "closed":
        return await load.closed(asks, workload.concurrency)
    if workload.kind == "open":
        return await load.open(asks)
    num = workload.num_streams
    return await load.steady([asks[i::num] for i in range(num)], longs, workload.duration_s)


async def _all_flow(recordings: Sequence[Recording], streams: Sequence[asyncio.Future[None]]) -> None:
    """Wait until every stream is past its start; not longer if one ends, since it can only have failed."""

    async def flow() -> None:
        for recording in recordings:
            await recording.flowing.wait()

    flowing = asyncio.ensure_future(flow())
    await asyncio.wait([flowing, *streams], timeout=FLOW_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    await _leave([flowing])


async def _leave(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancel what still runs; raise what went wrong in a task."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


def _read(recordings: Sequence[Recording]) -> tuple[Answer, ...]:
    return tuple(read_answer(each) for each in recordings)
