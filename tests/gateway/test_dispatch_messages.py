"""Messages lost, doubled and overtaken: the tokens are exact all the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from protocol.codec import decode
from protocol.messages import (
    Accepted,
    Ack,
    Cancel,
    Message,
    Peer,
    PrefillRequest,
    Resend,
    Reserve,
    TokenEvent,
    TokenEvents,
    WorkerStatus,
)
from tests.support.dispatch_rig import QUICK, Reader, Rig, read, rig, run, tokens

Lose = Callable[[Message], bool]


def losing(lose: Lose) -> Callable[[str, bytes], Iterable[bytes]]:
    """A filter that loses what ``lose`` says."""
    return lambda subject, frame: () if lose(decode(frame)[1]) else (frame,)


def first_of(kind: type[Message], count: int = 1) -> Lose:
    """Loses the first messages of a type."""
    seen = 0

    def lose(message: Message) -> bool:
        nonlocal seen
        seen += type(message) is kind
        return type(message) is kind and seen <= count

    return lose


@pytest.mark.parametrize("kind", [PrefillRequest, Reserve, Accepted, TokenEvents, Ack])
def test_one_lost_message_changes_nothing(kind: type[Message]) -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            r.hub.filter = losing(first_of(kind))
            assert await read(await r.submit(max_tokens=6)) == [tokens(0, 6)]
            await r.all_let_go()
            assert [o.num_attempts for o in r.counts.outcomes] == [1]

    run(work())


@pytest.mark.parametrize("seed", range(8))
def test_lost_doubled_and_overtaken_messages_give_the_exact_tokens(seed: int) -> None:
    async def work() -> None:
        async with rig(replace(QUICK, ask_s=2.0)) as r:
            await r.prefill(), await r.decode()
            dice = random.Random(seed)
            workers = {w.me for w in r.workers}

            def copies(subject: str, frame: bytes) -> Iterable[bytes]:
                sender, message = decode(frame)
                if isinstance(message, WorkerStatus) or not _with_gateway(sender.sender, subject, r, workers):
                    return (frame,)
                return [(), (frame,), (frame,), (frame, frame)][dice.randrange(4)]

            r.hub.filter = copies
            r.hub.delay = lambda subject, frame: dice.choice([0.0, 0.0, 0.004, 0.02])
            streams = [await r.submit(max_tokens=12, n=2) for _ in range(3)]
            readers = [Reader(stream, 2) for stream in streams]
            for reader in readers:
                assert await reader.all() == [tokens(0, 12), tokens(1, 12)]
            r.hub.filter = r.hub.delay = None
            await r.all_let_go()
            assert [o.kind for o in r.counts.outcomes] == ["finished"] * 3

    run(work())


def _with_gateway(sender: Peer, subject: str, r: Rig, workers: set[Peer]) -> bool:
    """The scripted workers' own hand-over is no matter of these tests."""
    return sender not in workers or subject.endswith(r.postbox.me.id)


def test_a_missing_token_is_asked_for_at_the_worker_that_sent_the_next_one() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 4
            dropped: list[int] = []

            def lose(message: Message) -> bool:
                index = message.events[0].first_index if isinstance(message, TokenEvents) else 0
                if index == 2 and not dropped:
                    dropped.append(index)
                    return True
                return False

            r.hub.filter = losing(lose)
            resends = d.also_hear(Resend)
            stream = await r.submit(max_tokens=8)
            reader = Reader(stream)
            await reader.until(4)
            assert resends
            assert isinstance(resends[0], Resend)
            assert resends[0].from_index == 2
            assert r.counts.num_resent >= 1
            assert not p.of(Cancel)
            stream.cancel("test")
            await r.nothing_left()

    run(work())


def test_events_of_an_older_attempt_are_dropped() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 3
            stream = await r.submit(max_tokens=8)
            reader = Reader(stream)
            await reader.until(3)
            old = d1.emitter
            key = (stream.request_id, 1)
            d2.habits.stall_decode_at = 5
            d1.fail("drained")
            await reader.until(5)
            old.begin(key, r.postbox.me)
            old.add(TokenEvent(*key, 0, 5, (666,), (), "", -1, -1, 0))
            old.flush()
            await r.until(lambda: not old.num_unacknowledged(key))
            assert reader.tokens == [tokens(0, 5)]
            stream.cancel("test")

    run(work())


@pytest.mark.parametrize("how", ["dies", "has let go"])
def test_unsure_whether_it_was_handed_over_the_decode_worker_is_asked(how: str) -> None:
    """Its events are lost for a while, and so is the news that it has adopted."""

    async def work() -> None:
        async with rig(replace(QUICK, ask_s=2.0)) as r:
            p1 = await r.prefill("p1")
            p2 = await r.prefill("p2", waiting_tokens=10)
            d = await r.decode()
            quiet = True
            r.hub.filter = lambda subject, frame: () if quiet and _from_decode(frame) else (frame,)
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(1)
            if how == "dies":
                p1.die()
            else:
                p1.fail("unknown", "prefill")
            asked = d.also_hear(Resend)
            await r.until(lambda: asked)
            quiet = False
            assert await reader.all() == [tokens(0, 6)]
            assert not p2.heard
            await r.all_let_go()
            assert r.counts.outcomes[0].num_attempts == 1

    def _from_decode(frame: bytes) -> bool:
        message = decode(frame)[1]
        return isinstance(message, TokenEvents) and message.phase == "decode"

    run(work())


def test_a_refusal_that_only_says_it_is_over_is_no_failure() -> None:
    """A PrefillRequest that was repeated too often comes after all was handed over."""

    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.token_s = 0.01
            r.hub.filter = losing(lambda m: isinstance(m, Accepted) and m.phase == "prefill")
            reader = Reader(await r.submit(max_tokens=8))
            await reader.until(1)
            p.stop_working()
            p.habits.deaf_to = ()
            assert await reader.all() == [tokens(0, 8)]
            assert r.counts.outcomes[0].num_attempts == 1

    run(work())
