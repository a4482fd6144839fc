"""Damaged and misplaced pieces: found before anything is computed from them, and the request still ends right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvtransfer.pieces import HEADER_BYTES
from tests.handover.test_programs import MODES, PROMPTS, oracle
from tests.support.virtual_clock import run_virtually
from tests.support.world import World

PROMPT = PROMPTS[3]
Fault = Callable[[str, bytes], Iterator[bytes]]


def flip_once(place: float) -> Fault:
    """Flip one bit at this relative place of each piece's first sending."""
    seen: set[bytes] = set()

    def fault(subject: str, payload: bytes) -> Iterator[bytes]:
        if "contents" not in subject or payload[:HEADER_BYTES] in seen:
            yield payload
            return
        seen.add(payload[:HEADER_BYTES])
        damaged = bytearray(payload)
        damaged[int(place * (len(payload) - 1))] ^= 0x10
        yield bytes(damaged)

    return fault


def misplace() -> Fault:
    """Each piece comes first with the bytes of the piece before it, and with that one's digest."""
    before: list[bytes] = []

    def fault(subject: str, payload: bytes) -> Iterator[bytes]:
        if "contents" in subject:
            if before:
                size = HEADER_BYTES - 8
                yield payload[:size] + before[-1][size:]
            before.append(payload)
        yield payload

    return fault


@pytest.mark.parametrize(
    "fault",
    [*(flip_once(place) for place in (0.0, 0.001, 0.004, 0.009, 0.012, 0.02, 0.5, 1.0)), misplace()],
    ids=["version", "transfer", "number", "range", "digest", "first byte", "middle", "last byte", "misplaced"],
)
def test_the_output_is_that_of_an_undamaged_transfer(fault: Fault) -> None:
    async def check() -> None:
        world = World()
        await world.start()
        world.stack.hub.filter = fault
        asked = world.ask(PROMPT, *MODES[1])
        assert asked is not None
        await world.gateways["gateway-1"].tasks[0]
        assert asked.error is None
        assert asked.tokens == oracle(PROMPT, *MODES[1])
        assert world.outcomes.all[0].num_attempts == 1
        await world.settle()
        await world.close()

    run_virtually(check())
