"""A launcher refuses tensors that don't fit: a kernel would read and write beside them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import activation, fp8_matmul, norm, quantized_rows, rotary, rotary_cache, sampling

EPS = 1e-5


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


def whole(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.int64)


def rotated(qkv: Tensor, cache: Tensor, slots: Tensor, positions: Tensor, cos: Tensor) -> Tensor:
    return rotary_cache.rotate_and_cache(qkv, positions, cos, cos, slots, cache, cache)


def multiplied(x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    weight = zeros(8, 16, dtype=torch.float8_e4m3fn)
    return fp8_matmul.fp8_matmul(x, scales, weight, zeros(8), torch.float32, bias)


def sampled(logits: Tensor, fields: int = 9, masks: Tensor | None = None, scratch: Tensor | None = None) -> Tensor:
    return sampling.sample(logits, whole(2, fields), masks, scratch)


REFUSED: dict[str, Callable[[], object]] = {
    "rows of whole numbers": lambda: norm.rms_norm(whole(2, 16), zeros(16), EPS),
    "rows with gaps": lambda: norm.rms_norm(zeros(16, 2).T, zeros(16), EPS),
    "weight of another size": lambda: norm.rms_norm(zeros(2, 16), zeros(15), EPS),
    "residual of 16 bits": lambda: norm.rms_norm(zeros(2, 16), zeros(16), EPS, zeros(2, 16, dtype=torch.bfloat16)),
    "rows of double": lambda: quantized_rows.quantize_rows(zeros(2, 16, dtype=torch.float64)),
    "odd gate and up": lambda: activation.silu_and_mul(zeros(2, 15)),
    "K of another dtype": lambda: rotary.rotate(
        zeros(1, 2, 16), zeros(1, 1, 16, dtype=torch.float16), whole(1), zeros(9, 8), zeros(9, 8)
    ),
    "heads apart": lambda: rotary.rotate(
        zeros(1, 2, 32)[..., :16], zeros(1, 1, 16), whole(1), zeros(9, 8), zeros(9, 8)
    ),
    "table of another size": lambda: rotated(zeros(1, 64), zeros(2, 1, 8, 16), whole(1), whole(1), zeros(9, 7)),
    "positions of 32 bits": lambda: rotated(zeros(1, 64), zeros(2, 1, 8, 16), whole(1), whole(1).int(), zeros(9, 8)),
    "too few slots": lambda: rotated(zeros(2, 64), zeros(2, 1, 8, 16), whole(1), whole(2), zeros(9, 8)),
    "cache of another dtype": lambda: rotated(
        zeros(1, 64), zeros(2, 1, 8, 16, dtype=torch.bfloat16), whole(1), whole(1), zeros(9, 8)
    ),
    "heads that aren't whole": lambda: rotated(zeros(1, 65), zeros(2, 1, 8, 16), whole(1), whole(1), zeros(9, 8)),
    "rows that aren't quantized": lambda: multiplied(zeros(2, 16), zeros(2)),
    "rows of another size": lambda: multiplied(zeros(2, 15, dtype=torch.float8_e4m3fn), zeros(2)),
    "too few scales": lambda: multiplied(zeros(2, 16, dtype=torch.float8_e4m3fn), zeros(1)),
    "bias of another size": lambda: multiplied(zeros(2, 16, dtype=torch.float8_e4m3fn), zeros(2), zeros(7)),
    "logits of 16 bits": lambda: sampled(zeros(2, 40, dtype=torch.bfloat16)),
    "too few fields": lambda: sampled(zeros(2, 40), 8),
    "too few words": lambda: sampled(zeros(2, 40), 9, zeros(1, 1, dtype=torch.int32)),
    "too little scratch": lambda: sampled(zeros(2, 40), 9, None, zeros(1, 40, dtype=torch.int32)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"torch|heads"):
        REFUSED[what]()
