"""The way across two workers whose caches are apart from their pools on the host, copies taking their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.copy_stream import LateStream
from engine.llama import LlamaModel
from engine.model import Model
from engine.pool_memory import PoolMemory
from engine.staging import Staging
from engine.toy_model import ToyModel
from protocol.messages import Tail
from protocol.sampling import Sampling
from tests.engine.test_model_shapes import save_tiny
from tests.support.scripted_gateway import GREEDY, gateway_of
from tests.support.stack import Stack, run

PROMPT = [3 + (i * i) % 97 for i in range(77)]


def late(num_asks: int) -> Callable[[PoolMemory], Staging]:
    return lambda memory: Staging(memory, apart=True, stream=LateStream(num_asks))


def outputs(
    model: Model,
    staging: Callable[[PoolMemory], Staging],
    prompt: list[int] = PROMPT,
    sampling: Sampling = GREEDY,
    names: tuple[str, ...] = ("one", "two"),
    *,
    split: bool,
) -> list[list[int]]:
    """What a prompt's choices are, each time it is asked: from the second on the decode worker has blocks of it."""

    async def body() -> list[list[int]]:
        stack = Stack(model=model, staging=staging, max_model_len=200)
        await stack.add("prefill", "prefill-1", max_num_batched_tokens=32)
        await stack.add("decode", "decode-1")
        made: list[list[int]] = []
        async with gateway_of(stack) as gateway:
            for name in names:
                where = "prefill-1" if split else "decode-1"
                gateway.ask(prompt, request_id=name, prefill=where, sampling=sampling, tails=(Tail(0), Tail(1)))
                made += await gateway.finished(0, 1, request_id=name)
        return made

    return run(body)


@pytest.mark.parametrize("num_asks", [0, 3, 40])
def test_split_gives_the_tokens_of_one_worker_however_long_copies_take(num_asks: int) -> None:
    expected = outputs(ToyModel(), Staging, split=False)
    assert outputs(ToyModel(), late(num_asks), split=True) == expected


def test_blocks_of_a_gpus_order_go_through_both_pools_on_the_hosts(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    asked = (PROMPT[:37], replace(GREEDY, max_tokens=3), ("one",))
    expected = outputs(LlamaModel(tmp_path, "float32"), Staging, *asked, split=False)
    assert outputs(LlamaModel(tmp_path, "float32", "interpreter"), late(3), *asked, split=True) == expected
