"""A gateway for tests of workers: asks, keeps accepted tokens, acknowledges; chooses nothing by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

from protocol.messages import (
    Accepted,
    Ack,
    AckItem,
    AttemptRef,
    Cancel,
    Demand,
    Failed,
    Peer,
    PrefillRequest,
    Refused,
    Released,
    Reserve,
    Stop,
    Tail,
    TokenEvent,
    TokenEvents,
    Wanted,
)
from protocol.sampling import Sampling
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from tests.support.stack import Stack, until

GREEDY = Sampling(temperature=0.0, max_tokens=12, eos_ids=(0,), ignore_eos=True)


FINISH_S = 400.0
"""A deadline for a whole answer, of the real model too."""


class ScriptedGateway:
    """Speaks the messages. Answers are kept as they came; tokens are joined by their index."""

    def __init__(self, stack: Stack) -> None:
        self.postbox = Postbox(MemoryBus(stack.hub), new_peer("gateway-1"))
        self.stack = stack
        self.tokens: defaultdict[tuple[str, int, int], dict[int, int]] = defaultdict(dict)
        self._begins: dict[tuple[str, int, int], int] = {}
        self._last: dict[tuple[str, int, int], TokenEvent] = {}
        self.ends: dict[tuple[str, int, int], TokenEvent] = {}
        self.first: dict[tuple[str, int, int, str], TokenEvent] = {}
        self.answers: list[Accepted | Refused | Failed | Released] = []
        self.wanted: list[tuple[Peer, AttemptRef]] = []
        self.acknowledge = True
        for kind in (Accepted, Refused, Failed, Released):
            self.postbox.on(kind, lambda _, message: self.answers.append(message))
        self.postbox.on(TokenEvents, self._events)

    async def open(self) -> ScriptedGateway:
        await self.postbox.open()
        self._task = asyncio.ensure_future(self._want())
        return self

    async def close(self) -> None:
        self._task.cancel()
        self.postbox.close()
        await self.postbox.bus.close()

    def peer(self, worker_id: str) -> Peer:
        return self.stack.nodes[worker_id].node.postbox.me

    def ask(
        self,
        prompt: list[int],
        *,
        request_id: str = "r1",
        attempt: int = 1,
        tails: tuple[Tail, ...] = (Tail(0),),
        sampling: Sampling = GREEDY,
        prefill: str = "prefill-1",
        decode: str = "decode-1",
    ) -> None:
        """Send PrefillRequest and, for a split path, Reserve."""
        for tail in tails:
            self._begins[request_id, attempt, tail.choice] = len(tail.token_ids)
        p = self.peer(prefill)
        d = self.peer(decode) if decode else Peer()
        request = PrefillRequest(request_id, attempt, p, d, tuple(prompt), tails, sampling, "", 9000, 9000, 9000, 9000)
        if d.id and d != p:
            demand = Demand(
                len(prompt),
                tuple(t.choice for t in tails),
                tuple(len(t.token_ids) for t in tails),
                sampling.max_tokens,
            )
            self.postbox.send(d, Reserve(request_id, attempt, p, demand, 9000))
            self.wanted.append((d, AttemptRef(request_id, attempt)))
        self.postbox.send(p, request)
        self.wanted.append((p, AttemptRef(request_id, attempt)))

    async def ask_until_accepted(self, prompt: list[int], **more: object) -> None:
        """Repeat the question until both workers have taken it, as a gateway does."""

        def taken() -> bool:
            """By its word, or by tokens: a short request can end before a lost answer is repeated."""
            heard = {key[3] for key in self.first if key[:2] == ("r1", 1)}
            heard |= {a.phase for a in self.answers if isinstance(a, Accepted) and a.request_id == "r1"}
            return heard == {"prefill", "decode"}

        while not taken():
            self.wanted.clear()
            self.ask(prompt, **more)  # type: ignore[arg-type]
            with contextlib.suppress(TimeoutError):
                await until(taken, within_s=0.05)

    def cancel(self, *workers: str, request_id: str = "r1", attempt: int = 1) -> None:
        for worker in workers:
            self.postbox.send(self.peer(worker), Cancel(request_id, attempt, "test"))
        self.wanted.clear()

    def stop(self, worker: str, choice: int, num_tokens: int, request_id: str = "r1") -> None:
        self.postbox.send(self.peer(worker), Stop(request_id, 1, choice, num_tokens))

    async def finished(self, *choices: int, request_id: str = "r1", attempt: int = 1) -> list[list[int]]:
        """The whole output of choices, once each has ended."""
        await until(lambda: all((request_id, attempt, c) in self.ends for c in choices), FINISH_S)
        return [self.output(c, request_id=request_id, attempt=attempt) for c in choices]

    def output(self, choice: int = 0, *, request_id: str = "r1", attempt: int = 1) -> list[int]:
        tokens = self.tokens[request_id, attempt, choice]
        return [tokens[index] for index in sorted(tokens)]

    def _events(self, sender: Peer, message: TokenEvents) -> None:
        acks = []
        for event in message.events:
            key = (event.request_id, event.attempt, event.choice)
            self.first.setdefault((*key, message.phase), event)
            for offset, token in enumerate(event.token_ids):
                assert self.tokens[key].setdefault(event.first_index + offset, token) == token
            if event.finish_reason:
                assert event.num_tokens == event.first_index + len(event.token_ids)
                self._last[key] = event
            acks.append(AckItem(*key, self._passed(key)))
        if self.acknowledge:
            self.postbox.send(sender, Ack(tuple(acks)))

    def _passed(self, key: tuple[str, int, int]) -> int:
        """The first index that is missing; one more once the end is accepted too."""
        have = self._begins.get(key, 0)
        while have in self.tokens[key]:
            have += 1
        if key in self._last and self._last[key].num_tokens == have:
            self.ends[key] = self._last[key]
            have += 1
        return have

    async def _want(self) -> None:
        while True:
            for worker, ref in self.wanted:
                self.postbox.send(worker, Wanted((ref,)))
            await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def gateway_of(stack: Stack) -> AsyncIterator[ScriptedGateway]:
    """One for the length of the block, at whose end the stack is idle and whole again, and closed."""
    gateway = await ScriptedGateway(stack).open()
    yield gateway
    gateway.wanted.clear()
    await stack.idle()
    await gateway.close()
    await stack.close()
