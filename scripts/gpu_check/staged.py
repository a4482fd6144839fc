"""Blocks between a card and the engine's pool on the host, by the engine's own copies (engine/staging.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.block_copies import host_pieces
from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory
from engine.staging import Staging
from gpu_check import errors, figures
from gpu_check.bench import Bench
from gpu_check.check import Found
from gpu_check.paged import LLAMA, TINY
from gpu_check.pool import LAYERS, NUM_BLOCKS, TINY_BLOCKS, TINY_LAYERS

KEY = ("gpu_check", 0)
SIDE, TINY_SIDE = 8192, 16
"""Of the square matrices that are multiplied meanwhile, in a product of some milliseconds."""


def travels(bench: Bench) -> Found:
    """Half of the blocks to the host and back, the cache being emptied in between: bytes there, and bytes here."""
    with _staging(bench) as (staging, blocks, host):
        cache = [half for layer in staging.cache for half in (layer.k, layer.v)]
        before = [half[blocks].clone() for half in cache]
        staging.fetch(KEY, -1, blocks).finish()
        pieces = [part[blocks].to(bench.device) for part in _halves(host, cache)]
        pairs = list(zip(pieces, (half.view(torch.uint8).flatten(1) for half in before), strict=True))
        for half in cache:
            half.zero_()
        staging.place(blocks)
        staging.come_first(blocks)
        pairs += [(half[blocks], was) for half, was in zip(cache, before, strict=True)]
        return errors.differing(pairs)


def fetches(bench: Bench) -> Found:
    """To the host, from when it is asked for until the host knows that it is there."""
    with _staging(bench) as (staging, blocks, host):
        ms = bench.timer.ms(lambda: _fetch(staging, blocks))
        return Found(f"{figures.time(ms)}, {len(blocks) * host.shape[1] / ms / 1e6:,.1f} GB/s of blocks")


def fetches_beside(bench: Bench) -> Found:
    """The same while products are computed: how long both take, and each by itself."""
    side = bench.size(SIDE, TINY_SIDE)
    one, other = bench.random(side, side), bench.random(side, side, seed=1)

    def compute() -> None:
        for _ in range(4):
            torch.mm(one, other)

    with _staging(bench) as (staging, blocks, _):

        def both() -> None:
            copy = staging.fetch(KEY, -1, blocks)
            staging.forget(KEY)
            compute()
            copy.finish()

        alone, copied = bench.timer.ms(compute), bench.timer.ms(lambda: _fetch(staging, blocks))
        ms = bench.timer.ms(both)
        return Found(f"{figures.time(ms)}; products {figures.time(alone)}, copies {figures.time(copied)}")


def _fetch(staging: Staging, blocks: list[int]) -> None:
    staging.fetch(KEY, -1, blocks).finish()
    staging.forget(KEY)
    staging.look()


@contextmanager
def _staging(bench: Bench) -> Iterator[tuple[Staging, list[int], torch.Tensor]]:
    """One full of random bytes, the blocks that travel, and the host's pieces; closed at the end."""
    heads = TINY if bench.is_tiny else LLAMA
    group = CacheGroup(tuple(range(bench.size(LAYERS, TINY_LAYERS))), heads.kv, heads.dim)
    layout, num_blocks = KVLayout((group,), "bfloat16", is_plain=True), bench.size(NUM_BLOCKS, TINY_BLOCKS)
    memory = PoolMemory(layout, num_blocks)
    staging = Staging(memory, bench.device.type)
    for place, layer in enumerate(staging.cache):
        for half, seed in ((layer.k, 2 * place), (layer.v, 2 * place + 1)):
            random = torch.Generator(bench.device).manual_seed(seed)
            bits = torch.randint(256, (half.nbytes,), dtype=torch.uint8, device=bench.device, generator=random)
            half.view(torch.uint8).view(-1).copy_(bits)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(7))[: num_blocks // 2].tolist()
    try:
        yield staging, blocks, host_pieces(memory.buffer, layout)
    finally:
        staging.close()


def _halves(host: torch.Tensor, cache: list[torch.Tensor]) -> list[torch.Tensor]:
    """Parts of the pieces on the host: K of the first layer, V of it, and so on."""
    return list(host.split([half[0].nbytes for half in cache], dim=1))
