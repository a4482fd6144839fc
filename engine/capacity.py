"""What a worker's memory holds: weights, KV blocks, context, requests. Pure arithmetic, before anything is loaded.

The engine sizes itself by it at its start, and `kvferry plan` foretells by it. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import AUTO_LEN, EngineConfig
from engine.device import has_gpu_kernels, torch_device
from engine.errors import ModelError
from engine.layout import BLOCK_SIZE, KVLayout
from engine.memory import kv_budget_bytes, size_text
from engine.model_config import ModelConfig
from engine.model_sizes import kv_layout, model_len, resolve_dtype, resolve_quantization, weight_bytes

SPARE_BLOCKS = 1
"""Beyond the blocks of its tokens a request wants one more: a free block for each live choice is never given away."""

USUAL_LEN = 1024
"""Prompt and answer of a usual request, in tokens, for a figure that says something of every model."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One worker's weights and pool.

    ``max_model_len`` is the longest context that it serves; ``shortened_from`` what was asked for, if the
    pool can't hold one request of that length, else 0.
    """

    weight_bytes: int
    layout: KVLayout
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    shortened_from: int = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.layout.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens whose K and V fill the pool."""
        return self.num_blocks * self.layout.block_size

    @property
    def usual_len(self) -> int:
        """``USUAL_LEN``, or the whole context where that is shorter."""
        return min(USUAL_LEN, self.max_model_len)

    def request_blocks(self, context_len: int) -> int:
        """Blocks that a request of so many tokens, prompt and answer, takes at its end."""
        return self.layout.num_blocks(context_len) + SPARE_BLOCKS

    def concurrency(self, context_len: int) -> int:
        """Requests of so many tokens, prompt and answer, that decode at once without sharing a prefix."""
        return min(self.num_blocks // self.request_blocks(context_len), self.max_num_seqs)

    def handover_bytes(self, prompt_len: int) -> int:
        """Content bytes that a prompt's hand-over ships when the decode worker has none of it cached."""
        return self.layout.num_blocks(prompt_len) * self.layout.block_bytes

    def __str__(self) -> str:
        """All of it in one line."""
        layout, longest, usual = self.layout, self.max_model_len, self.usual_len
        counts = f"about {self.concurrency(usual)} requests of {usual} tokens at once"
        if longest > usual:
            counts += f", {self.concurrency(longest)} of {longest}"
        return (
            f"weights {size_text(self.weight_bytes)}; KV {size_text(layout.token_bytes)} a token; "
            f"pool {self.num_blocks} blocks of {layout.block_size} tokens, "
            f"{self.num_tokens} tokens in {size_text(self.pool_bytes)}; "
            f"context {longest} tokens; {counts}"
        )


def longest_context(num_blocks: int, block_size: int, concurrency: int) -> int:
    """Tokens of the longest context of which the pool holds ``concurrency`` at once; one block at the least."""
    return max(1, num_blocks // concurrency - SPARE_BLOCKS) * block_size


def plan_capacity(
    model: ModelConfig,
    engine: EngineConfig,
    device: str,
    memory_bytes: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> Capacity:
    """What a worker with these settings will hold on one of engine.device; ModelError if it can't be.

    ``memory_bytes`` is the host's memory or the GPU's; None asks the machine.
    """
    dtype = resolve_dtype(engine.dtype, model, device)
    int8 = resolve_quantization(engine.quantization, device)
    layout = kv_layout(model, dtype, block_size, is_plain=has_gpu_kernels(device))
    place = torch_device(device)
    weights = weight_bytes(model, dtype, place, int8=int8)
    budget = _budget_bytes(weights, dtype, engine, place, memory_bytes)
    num_blocks = budget // layout.block_bytes
    if num_blocks < 1:
        knob = "--kv-cache-memory-bytes" if engine.kv_cache_memory_bytes else "--gpu-memory-utilization"
        raise ModelError(
            f"{size_text(budget)} for the KV pool hold no block of {size_text(layout.block_bytes)}: raise {knob}"
        )
    auto = engine.max_model_len == AUTO_LEN
    wanted = model_len(model, None if auto else engine.max_model_len or None)
    longest = min(wanted, longest_context(num_blocks, block_size, engine.auto_concurrency if auto else 1))
    shortened_from = wanted if longest < wanted and not auto else 0
    return Capacity(weights, layout, num_blocks, longest, engine.max_num_seqs, shortened_from)


def _budget_bytes(weights: int, dtype: str, engine: EngineConfig, device: str, memory_bytes: int | None) -> int:
    try:
        return kv_budget_bytes(
            weights,
            engine.gpu_memory_utilization,
            engine.kv_cache_memory_bytes or None,
            engine.host_workers,
            device,
            memory_bytes,
        )
    except ModelError as error:
        if dtype == "float32":
            raise ModelError(f"{error}, or halve the weights with --dtype bfloat16") from None
        raise
