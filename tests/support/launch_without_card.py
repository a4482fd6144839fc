"""Launch the GPU kernels as their callers do, on a card that isn't there: they are compiled for it, not run.

A program, for Triton must not interpret: prints a row for each launch, as ``kvferry_kernels.gpu.ahead`` does.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from kvferry_kernels.gpu import (
    activation,
    ahead,
    card,
    fp8_matmul,
    matmul,
    norm,
    quantized_rows,
    rotary,
    rotary_cache,
    sampling,
)
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.block_copy import BlockPlanes, gather_blocks, scatter_blocks
from kvferry_kernels.gpu.cache import write_cache
from kvferry_kernels.gpu.paged_decode import paged_decode
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import query_tiles
from tests.support.gpu_cases import gpu_case

HEADS, KV_HEADS, DIM = 32, 8, 128
CAPABILITY = (9, 0)
STORED = {"": torch.bfloat16, ", fp8 cache": torch.float8_e4m3fn, ", int8 cache": torch.int8}


class NoCard:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(found: list[Any]) -> None:
    """From now on a launch compiles its kernel into ``found``."""
    run = triton.JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found.append(run(self, *arguments, grid=grid, warmup=True, **options))
        return found[-1]

    driver.set_active(NoCard())
    triton.JITFunction.run = compiled
    card.capability = lambda device: CAPABILITY


def launch(stored: torch.dtype) -> None:
    """One step of decode and of prefill over a cache, a write to it, and its blocks' travel."""
    case = gpu_case((600, 3), HEADS, KV_HEADS, DIM, torch.bfloat16, "cpu", stored)
    q, attention = torch.zeros(2, HEADS, DIM).bfloat16(), Attention(DIM**-0.5)
    tables, lens = case.tables_of([0, 1]), case.ints([600, 3])
    paged_decode(q, case.cache, tables, lens, attention)
    tiles = query_tiles([1, 1], [600, 3], HEADS // KV_HEADS, q.dtype)
    paged_prefill(q, case.cache, tables, case.ints([0, 1, 2]), lens, tiles, attention)
    qkv = torch.zeros(2, HEADS + 2 * KV_HEADS, DIM).bfloat16()
    write_cache(qkv[:, HEADS:-KV_HEADS], qkv[:, -KV_HEADS:], case.cache, torch.tensor([1, 2]))
    planes, blocks = BlockPlanes.of([case.cache.k, case.cache.v]), case.ints([1, 2])
    staging = torch.empty(2, planes.block_bytes, dtype=torch.uint8)
    gather_blocks(planes, blocks, staging)
    scatter_blocks(planes, blocks, staging)


def launch_rows() -> list[str]:
    """What works on rows, at Llama-3-8B's shapes; returns the names that they ship under. Products have none here."""
    hidden, heads, keys = torch.zeros(2, 4096).bfloat16(), torch.zeros(2, HEADS, DIM).bfloat16(), 2 * KV_HEADS
    weight, slots = torch.ones(4096).bfloat16(), torch.zeros(2, dtype=torch.int64)
    table = torch.zeros(8, DIM // 2)
    norm.rms_norm(hidden, weight, 1e-5)
    norm.rms_norm(hidden, weight, 1e-5, hidden.float())
    rotary.rotate(heads, heads[:, :KV_HEADS].contiguous(), slots, table, table)
    cache = torch.zeros(4, KV_HEADS, 16, DIM).bfloat16()
    qkv = torch.zeros(2, (HEADS + keys) * DIM).bfloat16()
    rotary_cache.rotate_and_cache(qkv, slots, table, table, slots, cache, cache.clone())
    activation.silu_and_mul(torch.zeros(2, 2 * 14336).bfloat16())
    quantized_rows.quantize_rows(torch.zeros(2, 14336).bfloat16())
    records = sampling.records([sampling.Ask(1), sampling.Ask(0)]).clone()  # aligned as torch does
    sampling.sample(torch.zeros(2, 128256), records)
    matmul.matmul(hidden, torch.zeros(64, 4096).bfloat16())
    fp8 = torch.zeros(2, 256).to(torch.float8_e4m3fn)
    fp8_matmul.fp8_matmul(fp8, torch.ones(2), fp8, torch.ones(2), torch.bfloat16)
    return ["rms_norm", "add_rms_norm", "rotate", "rotate_and_cache", "silu_and_mul", "quantize_rows", "sample"]


def say(names: list[str], found: list[Any]) -> None:
    """A row for each that has a name."""
    sys.stdout.write(
        ahead.table(
            [
                ahead.Compiled(name, 90, *ahead.used(each.asm["cubin"]), each.metadata.shared)
                for name, each in zip(names, found, strict=False)
            ]
        )
    )


def main() -> None:
    """Launch over each kind of cache, and what works on rows; with an argument that alone."""
    found: list[Any] = []
    compile_launches(found)
    say(launch_rows(), found)
    for name, stored in () if sys.argv[1:] else STORED.items():
        found.clear()
        launch(stored)
        names = [f"decode, bf16, 128{name}", "merge, bf16, 128", f"prefill, bf16, 128{name}", f"write, bf16, 128{name}"]
        say([*names, "gather blocks", "scatter blocks"], found)


if __name__ == "__main__":
    main()
