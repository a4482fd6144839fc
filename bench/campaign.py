"""A whole benchmark: every workload, every round, the servers in turn."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.client import Ask, Client
from bench.errors import BenchError
from bench.figures import Figures, Sent, figures_of
from bench.load import Load, OnDone, send
from bench.passages import Passages
from bench.requests import Requests
from bench.settings import Settings
from bench.target import Target
from bench.workload import Workload

WARMUP_PROMPT_LENS = (16, 64, 200, 500)
_WARMUP_OUTPUT_LEN = 8
SETTLE_S = 0.5
"""Between two runs, so that the server before has become idle."""


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one server in one round."""

    workload: Workload
    target: Target
    model: str
    seed: int
    place: int
    """Its place in the order of its round."""

    sent: Sent
    figures: Figures


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told how far it is."""

    on_start: Callable[[Workload, Target, int, int], OnDone]
    """With the round's number and the number of requests, 0 if it isn't known; returns who hears of each end."""

    on_run: Callable[[Run], None]


class Campaign:
    """Runs the benchmark; each finished run goes to the listener at once."""

    def __init__(self, settings: Settings, passages: Passages, listener: Listener) -> None:
        self._settings = settings
        self._passages = passages
        self._listener = listener
        self._clients: dict[Target, Client] = {}
        self._models: dict[Target, str] = {}

    async def run(self) -> None:
        """Do all of it. Raises `BenchError` if a server doesn't answer or fails its warm-up."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            for target in settings.targets:
                client = Client(target, settings.endpoint, settings.api_key, settings.request_timeout_s)
                self._clients[target] = await stack.enter_async_context(client)
                self._models[target] = settings.model or await client.first_model()
            for target in settings.targets:
                await self._warm_up(target)
            for workload in settings.workloads:
                for number, seed in enumerate(settings.seeds):
                    for place, target in enumerate(settings.in_turn(number)):
                        self._listener.on_run(await self._one(workload, target, number, seed, place))
                        await asyncio.sleep(SETTLE_S)

    async def _one(self, workload: Workload, target: Target, number: int, seed: int, place: int) -> Run:
        requests = Requests(self._settings, self._passages, self._models[target], workload, target.name, seed)
        asks, longs, prime = requests.asks(), requests.longs(), requests.prime()
        client = self._clients[target]
        if prime:
            await self._check(client, target, [prime], "the request that primes the shared prefix")
        on_done = self._listener.on_start(workload, target, number, 0 if workload.num_streams else len(asks))
        gc.collect()
        gc.disable()  # a collection among thousands of recorded chunks would look like a gap
        try:
            sent = await send(Load(client, on_done), workload, asks, longs)
        finally:
            gc.enable()
        figures = figures_of(sent, self._settings.limits)
        return Run(workload, target, self._models[target], seed, place, sent, figures)

    async def _warm_up(self, target: Target) -> None:
        settings = self._settings
        workload = Workload(name="warm-up")
        requests = Requests(settings, self._passages, self._models[target], workload, target.name, settings.seeds[0])
        lens = [WARMUP_PROMPT_LENS[i % len(WARMUP_PROMPT_LENS)] for i in range(settings.num_warmups)]
        asks = [requests.ask(length, _WARMUP_OUTPUT_LEN) for length in lens]
        await self._check(self._clients[target], target, asks, "the warm-up")

    async def _check(self, client: Client, target: Target, asks: list[Ask], what: str) -> None:
        """Send requests that no figure counts, four at a time; if one fails, the others would too."""
        sent = await Load(client, lambda num_done: None).closed(asks, 4)
        for answer in sent.answers:
            if not answer.is_ok:
                raise BenchError(f"{target.name}: {what} failed: {answer.error or 'no output'} {answer.detail}".strip())
