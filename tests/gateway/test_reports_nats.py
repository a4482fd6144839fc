"""A public bug report, replayed over a real broker with its default limits: what is long came back as a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protocol.messages import PrefillRequest
from runtime.nats_bus import connect_bus
from tests.support.dispatch_rig import QUICK
from tests.support.front_rig import Call, Front, front, text_of
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.nats

WITHIN_S = 60.0
AT_ONCE_S = 10.0
"""For what is refused: no phase of a request may take as little, so it waits for none."""
MIB = 1 << 20
CONTEXT = 300_000
NUM_PROMPT = 250_000


@asynccontextmanager
async def on_nats(url: str) -> AsyncIterator[tuple[Front, ScriptedWorker]]:
    """A gateway, a prefill and a decode worker, each with a connection of its own; the prefill worker."""
    buses = [await connect_bus(url, name=name, on_wait=lambda _: None) for name in ("gateway", "p", "d")]
    assert {bus.max_payload for bus in buses} == {MIB}
    async with front(QUICK, max_model_len=CONTEXT, connect=iter(buses).__next__) as f:
        load: dict[str, Any] = {"max_model_len": CONTEXT, "total_blocks": 20_000, "free_blocks": 20_000}
        p, _ = await f.prefill(**load), await f.decode(**load)
        await f.rig.until(lambda: f.rig.dispatcher.health().ready)
        yield f, p


def prompts_at(worker: ScriptedWorker) -> set[tuple[int, ...]]:
    """Each once, however often a request was repeated."""
    return {message.prompt_ids for message in worker.heard if isinstance(message, PrefillRequest)}


async def refused(call: Call) -> dict[str, Any]:
    async with asyncio.timeout(AT_ONCE_S):
        await call.done()
    assert call.status == 400
    return call.error


def test_what_is_longer_than_a_message_goes_through_or_is_refused_at_once(nats_url: str) -> None:
    """Replays dynamo #9734: a prompt of 250,000 tokens, 2 MiB of text, 2 MiB of tools."""
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "description": "word " * 2000}} for number in range(210)
    ]

    async def work() -> None:
        async with on_nats(nats_url) as (f, p):
            call = await f.complete(prompt=[7] * NUM_PROMPT, max_tokens=4).done()
            assert call.status == 200, call.body
            assert call.json["choices"][0]["text"] == text_of(4)
            assert call.json["usage"]["prompt_tokens"] == NUM_PROMPT
            assert not f.rig.counts.moves
            assert prompts_at(p) == {(7,) * NUM_PROMPT}
            for long in ({"messages": [{"role": "user", "content": "word " * (2 * MIB // 5)}]}, {"tools": tools}):
                assert (await refused(f.chat(**long)))["code"] == "context_length_exceeded"
            assert len(prompts_at(p)) == 1
            assert (await f.chat().done()).text == text_of(8)
            await f.nothing_left()

    asyncio.run(asyncio.wait_for(work(), WITHIN_S))
