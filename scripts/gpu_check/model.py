"""Steps of a model with Llama-3-8B's shape and random weights, by the engine's own forward pass."""

from __future__ import annotations

import json
import tempfile
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.decode_graphs import CudaRecorder, Repeating
from engine.device import CUDA, INTERPRETER
from engine.kv_cache import LayerCache, cache_bytes, split_cache
from engine.layout import BLOCK_SIZE
from engine.linear import Head, Linear
from engine.llama import LlamaModel
from engine.llama_weights import Layer, LlamaWeights
from gpu_check import figures
from gpu_check.bench import Bench
from gpu_check.check import Bound, Check, Found, NotRun
from kvferry_kernels.gpu.sampling import Ask, records, sample

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
TINY = SHAPE | {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

STEP = Bound(1.4, "times the floor", is_timed=True)
BATCH, TINY_BATCH = 64, 2
CONTEXTS = (4096, 1024)
PROMPT = 2048
TINY_PART = 128
"""Tiny contexts and prompts are that much shorter."""

ALIKE = 0.9
"""Tokens that a graph has to choose as its kernels do: of random logits two may be all but equal."""

WEIGHT_BYTES = 17 << 30
SPARE_BYTES = 4 << 30
"""Of the weights; and of activations, logits and what the allocator keeps."""


class RandomLlama(LlamaModel):
    """Weights are made on the device, of a size that keeps numbers near to 1."""

    def __init__(self, bench: Bench) -> None:
        """The shape is read from a folder that is there meanwhile."""
        self._bench = bench
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps(TINY if bench.is_tiny else SHAPE), encoding="utf-8")
            super().__init__(folder, "bfloat16", CUDA if bench.is_card else INTERPRETER)

    def _load(self, folder: Path, quantization: str, int8: bool, packed_dir: Path | None) -> LlamaWeights:
        config, random = self.config, self._bench.random
        hidden, inner, vocab, dim = config.hidden_size, config.intermediate_size, config.vocab_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim

        def matrix(outputs: int, inputs: int, seed: int) -> Tensor:
            return random(outputs, inputs, scale=inputs**-0.5, seed=seed)

        def ones() -> Tensor:
            return torch.ones(hidden, dtype=torch.bfloat16, device=self._device)

        layers = [
            Layer(
                input_norm=ones(),
                qkv=Linear(matrix(queries + 2 * keys, hidden, 4 * i)),
                q_norm=None,
                k_norm=None,
                output=Linear(matrix(hidden, queries, 4 * i + 1)),
                mlp_norm=ones(),
                gate_up=Linear(matrix(2 * inner, hidden, 4 * i + 2)),
                down=Linear(matrix(hidden, inner, 4 * i + 3)),
            )
            for i in range(config.num_layers)
        ]
        head, norm = Head(matrix(vocab, hidden, 1)), ones()
        read = norm.nbytes + head.weight_bytes + sum(layer.weight_bytes for layer in layers)
        return LlamaWeights(random(vocab, hidden), layers, norm, head, read)


class Steps:
    """A batch of sequences of one context, each with ``new`` tokens; a step gives each its next token."""

    def __init__(self, model: LlamaModel, cache: list[LayerCache], batch: int, context: int, new: int) -> None:
        """``context`` in tokens, the new ones included. Blocks follow each other in ``cache``; NotRun if it is full."""
        device, blocks = cache[0].k.device, blocks_of(context)
        if batch * blocks > len(cache[0].k):
            raise NotRun(f"the card's memory has no room for {batch} contexts of {context:,}")
        tables = torch.arange(batch * blocks, dtype=torch.int32, device=device).view(batch, blocks)
        positions = torch.arange(context - new, context, device=device)
        slots = tables.long()[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * new
        self._model, self._cache = model, cache
        self._batch = Batch(
            token_ids=torch.arange(batch * new, device=device) * 37 % model.config.vocab_size,
            positions=positions.repeat(batch),
            query_starts=starts,
            context_lens=torch.full((batch,), context, dtype=torch.int32, device=device),
            output_rows=starts[1:].long() - 1,
            groups=(GroupBatch(slots.flatten(), tables),),
            query_lens=(new,) * batch,
            host_context_lens=(context,) * batch,
        )
        self._greedy = records([Ask(row, temperature=0.0) for row in range(batch)]).to(device)

    def step(self) -> Tensor:
        """Hidden states, logits, and the likeliest token of each sequence."""
        hidden = self._model.forward(self._batch, self._cache, lambda layers: None)
        return sample(self._model.logits(hidden), self._greedy)


def checks() -> list[Check]:
    """Decode steps, kernel by kernel and as a graph, and a prompt."""
    found = []
    for context in CONTEXTS:
        name = f"decode step, 8B shape, batch {BATCH}, context {context:,}"
        found.append(Check(f"{name}, eager", partial(decodes, context=context, in_graph=False)))
        found.append(Check(f"{name}, graph", partial(decodes, context=context, in_graph=True), STEP))
    return [*found, Check(f"prefill of {PROMPT:,} tokens, 8B shape", prefills)]


def decodes(bench: Bench, *, context: int, in_graph: bool) -> Found:
    """The floor is the time to read weights, and K and V of all contexts, at the card's rate of reading."""
    batch, context = bench.size(BATCH, TINY_BATCH), context // bench.size(1, TINY_PART)
    model = model_of(bench)
    steps = Steps(model, cache_of(bench), batch, context, 1)
    model.record_with(None)
    eager = steps.step()
    if in_graph:
        model.record_with(CudaRecorder() if bench.is_card else Repeating.record)
        if float((steps.step() == eager).float().mean()) < ALIKE:
            raise ValueError("a graph's tokens aren't those of its kernels one by one")
    ms = bench.timer.ms(steps.step)
    floor_bytes = model.weight_bytes + batch * context * model.layout.token_bytes
    floor = floor_bytes / bench.rates.read * 1e3
    return Found(f"{figures.time(ms)}, floor {figures.time(floor)}", ms / floor, "times the floor")


def prefills(bench: Bench) -> Found:
    """Operations of all products, as a share of the rate of large ones."""
    new = bench.size(PROMPT, PROMPT // TINY_PART)
    model = model_of(bench)
    ms = bench.timer.ms(Steps(model, cache_of(bench), 1, new, new).step)
    config = model.config
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    attended = 4 * queries * (new * (new + 1) // 2)
    operations = config.num_layers * (2 * new * layer + attended) + 2 * config.vocab_size * config.hidden_size
    return figures.throughput(operations, ms, bench.rates.bf16, "bf16 matmul")


@cache
def model_of(bench: Bench) -> RandomLlama:
    """The one model of a run. NotRun if the card's memory is too small."""
    if bench.free_bytes() < WEIGHT_BYTES + SPARE_BYTES:
        raise NotRun(f"less than {(WEIGHT_BYTES + SPARE_BYTES) >> 30} GiB of the card's memory are free")
    return RandomLlama(bench)


@cache
def cache_of(bench: Bench) -> list[LayerCache]:
    """The one cache of a run, full of numbers, for the longest of ``CONTEXTS`` that the card's memory has room for."""
    layout = model_of(bench).layout
    for context in CONTEXTS:
        num_blocks = bench.size(BATCH, TINY_BATCH) * blocks_of(context // bench.size(1, TINY_PART))
        num_bytes = cache_bytes(layout, num_blocks)
        if bench.free_bytes() >= num_bytes + SPARE_BYTES:
            flat = torch.empty(num_bytes // 2, dtype=torch.bfloat16, device=bench.device).normal_()
            return split_cache(flat.view(torch.uint8), layout, num_blocks)
    raise NotRun(f"the card's memory has no room for {BATCH} contexts")


def blocks_of(num_tokens: int) -> int:
    """Blocks of one sequence."""
    return -(-num_tokens // BLOCK_SIZE)
