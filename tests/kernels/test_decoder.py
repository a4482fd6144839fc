"""Layers in one compiled call give the bits of the single operations, in any batch, chunks and threads."""

import ctypes
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from kvferry_kernels import native, ops
from kvferry_kernels.decoder import Decoder, DecoderBatch, DecoderLayer, DecoderSizes, leave_claimed_cores

HIDDEN, HEADS, KV_HEADS, DIM, INNER, NUM_LAYERS = 96, 6, 2, 32, 160, 3
NUM_BLOCKS, MAX_LEN = 40, 256
COMPILED = native.available()
INT8 = pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).bfloat16()


def sizes() -> DecoderSizes:
    angles = torch.rand(MAX_LEN, DIM // 2, generator=torch.Generator().manual_seed(1)) * 6
    return DecoderSizes(HIDDEN, HEADS, KV_HEADS, DIM, INNER, angles.cos(), angles.sin(), 1e-5, DIM**-0.5)


def layers(extras: bool, int8: bool) -> list[DecoderLayer]:
    """Random weights; ``extras`` are biases and head norms."""
    pack = ops.pack_linear_int8 if int8 else ops.pack_linear
    wide = (HEADS + 2 * KV_HEADS) * DIM

    def matrix(outputs: int, inputs: int, seed: int) -> Tensor:
        return pack((random(outputs, inputs, seed=seed).float() * inputs**-0.5).bfloat16())

    def vector(size: int, seed: int) -> Tensor | None:
        return random(size, seed=seed) if extras else None

    return [
        DecoderLayer(
            random(HIDDEN, seed=i),
            matrix(wide, HIDDEN, i),
            vector(wide, i),
            vector(DIM, i),
            vector(DIM, i + 9),
            matrix(HIDDEN, HEADS * DIM, i),
            vector(HIDDEN, i),
            random(HIDDEN, seed=i + 5),
            matrix(2 * INNER, HIDDEN, i),
            vector(2 * INNER, i),
            matrix(HIDDEN, INNER, i),
            vector(HIDDEN, i + 3),
        )
        for i in range(NUM_LAYERS)
    ]


def caches() -> list[tuple[Tensor, Tensor]]:
    shapes = (NUM_BLOCKS, KV_HEADS, DIM // 2, 16, 2), (NUM_BLOCKS, KV_HEADS, 8, DIM, 2)
    return [(torch.zeros(shapes[0]).bfloat16(), torch.zeros(shapes[1]).bfloat16()) for _ in range(NUM_LAYERS)]


def batch_of(spans: Sequence[tuple[int, int, int]]) -> DecoderBatch:
    """Tokens ``first`` to ``end`` of some sequences, each with ten blocks of its own."""
    positions = [torch.arange(first, end) for _, first, end in spans]
    slots = [seq * 160 + places for (seq, _, _), places in zip(spans, positions, strict=True)]
    counts = torch.tensor([end - first for _, first, end in spans])
    return DecoderBatch(
        torch.cat(positions),
        torch.cat(slots),
        torch.tensor([[seq * 10 + b for b in range(10)] for seq, _, _ in spans], dtype=torch.int32),
        torch.cat((torch.zeros(1), counts.cumsum(0))).int(),
        torch.tensor([end for _, _, end in spans], dtype=torch.int32),
    )


def embedded(spans: Sequence[tuple[int, int, int]]) -> Tensor:
    """What stands at each token: its sequence and place decide."""
    return torch.cat([random(160, HIDDEN, seed=seq)[first:end] for seq, first, end in spans])


def multiply(x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None, group: int = ops.WHOLE_ROW) -> Tensor:
    if packed.dtype == torch.uint8:
        return ops.linear_int8(ops.quantize_rows(x, group), packed, outputs, bias, torch.bfloat16)
    return ops.linear(x, packed, outputs, bias, torch.bfloat16)


def by_operations(
    model: DecoderSizes, all_layers: Sequence[DecoderLayer], cache: Sequence[tuple[Tensor, Tensor]],
    spans: Sequence[tuple[int, int, int]],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, hidden = batch_of(spans), embedded(spans)
    residual = hidden.float()
    hidden = ops.rms_norm(hidden, all_layers[0].input_norm, model.eps)
    for i, (layer, (k, v)) in enumerate(zip(all_layers, cache, strict=True)):
        qkv = multiply(hidden, layer.qkv, (HEADS + 2 * KV_HEADS) * DIM, layer.qkv_bias)
        query = ops.rope_and_cache(
            qkv, batch.positions, model.cos, model.sin, batch.slots, k, v, layer.q_norm, layer.k_norm, model.eps
        )
        mixed = ops.paged_attention(
            query, k, v, batch.block_tables, batch.query_starts, batch.context_lens, model.scale
        )
        hidden = multiply(mixed.flatten(1), layer.output, HIDDEN, layer.output_bias)
        hidden = ops.rms_norm(hidden, layer.mlp_norm, model.eps, residual)
        hidden = ops.silu_and_mul(multiply(hidden, layer.gate_up, 2 * INNER, layer.gate_up_bias))
        hidden = multiply(hidden, layer.down, HIDDEN, layer.down_bias, ops.GROUP)
        if i + 1 < len(all_layers):
            hidden = ops.rms_norm(hidden, all_layers[i + 1].input_norm, model.eps, residual)
    return hidden, residual


def compiled(ready: Decoder, model: DecoderSizes, first_norm: Tensor, *spans: tuple[int, int, int]) -> Tensor:
    """Hidden state after all layers, the residual added, of one batch run one layer and then the rest at a time."""
    hidden = embedded(spans)
    residual = hidden.float()
    hidden = ops.rms_norm(hidden, first_norm, model.eps)
    run = ready.begin(batch_of(spans), hidden, residual)
    run.layers(0, 1)
    run.layers(1, NUM_LAYERS)
    return torch.cat((hidden.float(), residual), dim=1)


@pytest.mark.parametrize("kernels", COMPILED, indirect=True)
@INT8
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "biases and norms"])
def test_compiled_layers_equal_the_operations_bit_for_bit(kernels: str, extras: bool, int8: bool) -> None:
    model, weights = sizes(), layers(extras, int8)
    for spans in ([(0, 0, 150)], [(0, 0, 20), (1, 0, 1), (2, 0, 113), (3, 0, 16)]):
        ours, theirs = caches(), caches()
        ready = Decoder(model, weights, ours)
        result = compiled(ready, model, weights[0].input_norm, *spans)
        assert torch.equal(result, torch.cat([x.float() for x in by_operations(model, weights, theirs, spans)], dim=1))
        assert all(
            torch.equal(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
        )
        assert result.isfinite().all()


@pytest.mark.parametrize("kernels", COMPILED, indirect=True)
@INT8
def test_batch_chunks_and_threads_change_no_bit(kernels: str, threads: None, int8: bool) -> None:
    model, weights = sizes(), layers(False, int8)
    norm = weights[0].input_norm
    whole = compiled(Decoder(model, weights, caches()), model, norm, (0, 0, 150))
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        ready = Decoder(model, weights, caches())
        parts = [compiled(ready, model, norm, (0, start, min(start + 37, 148))) for start in range(0, 148, 37)]
        mixed = compiled(ready, model, norm, (1, 0, 40), (0, 148, 149), (2, 0, 1))
        last = compiled(ready, model, norm, (1, 40, 41), (0, 149, 150), (2, 1, 2))
        assert torch.equal(torch.cat([*parts, mixed[40:41], last[1:2]]), whole)


@pytest.mark.parametrize("kernels", COMPILED, indirect=True)
def test_what_lies_outside_a_table_is_refused_and_nothing_is_written(kernels: str) -> None:
    model, weights, cache = sizes(), layers(extras=False, int8=False), caches()
    ready = Decoder(model, weights, cache)
    for bad in ("positions", "slots", "block_tables", "context_lens"):
        batch = batch_of([(0, 0, 20)])
        getattr(batch, bad).view(-1)[-1 if bad != "block_tables" else 1] = 100_000
        hidden = embedded([(0, 0, 20)])
        with pytest.raises(IndexError):
            ready.begin(batch, hidden, hidden.float()).layers(0, NUM_LAYERS)
    assert not any(part.any() for layer in cache for part in layer)


@pytest.mark.parametrize("kernels", COMPILED[:1], indirect=True)
def test_matrices_of_two_formats_are_refused(kernels: str) -> None:
    mixed = [layers(False, int8)[0] for int8 in (False, True)]
    with pytest.raises(ValueError, match="more than one number format"):
        Decoder(sizes(), mixed, caches()[:2])


def prompt_of_150(num_threads: int) -> Callable[[], torch.Tensor]:
    """What computes its layers anew on so many threads."""
    model, weights = sizes(), layers(extras=False, int8=False)
    torch.set_num_threads(num_threads)
    return lambda: compiled(Decoder(model, weights, caches()), model, weights[0].input_norm, (0, 0, 150))


@pytest.mark.parametrize("kernels", COMPILED, indirect=True)
def test_cores_that_others_claim_meanwhile_change_no_bit(kernels: str, threads: None) -> None:
    compute = prompt_of_150(num_threads=3)
    whole = compute()
    claims = (ctypes.c_int64 * 6)(0, 9, 0, 9, 0, 9)  # every other word, as on a page with other things between
    try:
        leave_claimed_cores(ctypes.addressof(claims), 3, 2, 8)
        for first, second in ((1, 0), (2, 0), (1, 3), (0, 0)):
            claims[0], claims[4] = first, second
            assert torch.equal(compute(), whole)
    finally:
        leave_claimed_cores(0, 0, 0, 0)


@pytest.mark.parametrize("kernels", COMPILED, indirect=True)
def test_while_all_cores_are_claimed_nothing_is_computed_and_then_the_same(kernels: str, threads: None) -> None:
    compute = prompt_of_150(num_threads=2)
    whole = compute()
    claims = (ctypes.c_int64 * 1)(2)
    release = threading.Timer(0.05, lambda: claims.__setitem__(0, 0))
    try:
        leave_claimed_cores(ctypes.addressof(claims), 1, 1, 2)
        release.start()
        assert torch.equal(compute(), whole)
        assert claims[0] == 0  # it had to wait for that
    finally:
        release.join()
        leave_claimed_cores(0, 0, 0, 0)
