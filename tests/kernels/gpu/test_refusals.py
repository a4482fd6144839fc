"""Launchers refuse what would make a kernel read or write beside its tensors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.cache import write_cache
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.paged_decode import paged_decode
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import query_tiles
from tests.support.gpu_cases import empty_cache

Change = Callable[[dict[str, Any]], object]


def decode_call(device: str) -> dict[str, Any]:
    return {
        "q": torch.zeros(2, 4, 32, device=device),
        "cache": empty_cache(3, 2, 32, torch.float32, device),
        "block_tables": torch.zeros(2, 1, dtype=torch.int32, device=device),
        "context_lens": torch.zeros(2, dtype=torch.int32, device=device),
        "attention": Attention(1.0),
    }


SHARED: dict[str, Change] = {
    "another head dimension": lambda call: call.update(q=call["q"][..., :16].contiguous()),
    "heads that aren't a multiple": lambda call: call.update(q=call["q"][:, :3].contiguous()),
    "too many heads of one KV head": lambda call: call.update(q=call["q"].repeat(1, 40, 1)),
    "queries of another dtype": lambda call: call.update(q=call["q"].half()),
    "queries of a dtype that no kernel has": lambda call: call.update(q=call["q"].double()),
    "queries with gaps": lambda call: call.update(q=call["q"].repeat(1, 1, 2)[..., ::2]),
    "tables of 64 bits": lambda call: call.update(block_tables=call["block_tables"].long()),
    "flat tables": lambda call: call.update(block_tables=call["block_tables"][0]),
    "lengths of 64 bits": lambda call: call.update(context_lens=call["context_lens"].long()),
    "too few lengths": lambda call: call.update(context_lens=call["context_lens"][:1]),
    "sinks of another number": lambda call: call.update(attention=Attention(1.0, sinks=torch.zeros(3).to(call["q"]))),
    "sinks of 16 bits": lambda call: call.update(attention=Attention(1.0, sinks=torch.zeros(4).to(call["q"]).half())),
}


@pytest.mark.parametrize("change", SHARED)
def test_attention_is_refused_with(device: str, change: str) -> None:
    call = decode_call(device)
    SHARED[change](call)
    with pytest.raises(ValueError, match=r"heads|queries|tables|q:|lengths|sinks"):
        paged_decode(**call)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"heads|queries|tables|q:|lengths|sinks"):
        paged_prefill(**call, query_starts=starts, tiles=query_tiles([1, 1], [1, 1], 2, torch.float32).to(device))


def test_decode_is_refused_with_more_queries_than_sequences(device: str) -> None:
    call = decode_call(device)
    with pytest.raises(ValueError, match="3 queries"):
        paged_decode(**{**call, "q": call["q"].new_zeros(3, 4, 32)})


def test_prefill_is_refused_with_starts_or_tiles_of_another_shape(device: str) -> None:
    call, starts = decode_call(device), torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    tiles = query_tiles([1, 1], [1, 1], 2, torch.float32).to(device)
    for bad in ({"query_starts": starts[:2]}, {"query_starts": starts.long()}, {"tiles": tiles.long()}):
        with pytest.raises(ValueError, match=r"starts|tiles"):
            paged_prefill(**{**call, "query_starts": starts, "tiles": tiles, **bad})


def test_a_window_or_cap_below_zero_has_no_meaning() -> None:
    for wrong in ({"window": -1}, {"soft_cap": -1.0}):
        with pytest.raises(ValueError, match="window"):
            replace(Attention(1.0), **wrong)  # type: ignore[arg-type]


def test_caches_that_dont_fit_themselves_are_refused(device: str) -> None:
    k, scales = torch.zeros(3, 2, 16, 32, device=device), torch.ones(2, device=device)
    coded = k.to(torch.float8_e4m3fn)
    for arguments in (
        (k, k[:2]),
        (k, k.half()),
        (k, k.transpose(1, 2).contiguous().transpose(1, 2)),
        (k[:, :, :8].contiguous(), k[:, :, :8].contiguous()),
        (k.double(), k.double()),
        (k[0], k[0]),
        (k, k, scales, scales),
        (coded, coded),
        (coded, coded, scales, None),
        (coded, coded, scales, scales[:1]),
        (k.to(torch.int8), k.to(torch.int8), scales, scales),
    ):
        with pytest.raises(ValueError, match=r"cache of|shape|scales|V:"):
            PagedCache(*arguments)


def test_writes_of_another_shape_or_dtype_are_refused(device: str) -> None:
    cache, k = empty_cache(3, 2, 32, torch.float32, device), torch.zeros(4, 2, 32, device=device)
    slots = torch.zeros(4, dtype=torch.int64, device=device)
    for new in (k[:3], k[:, :1], k.half(), k.transpose(1, 2).contiguous().transpose(1, 2), k.int()):
        with pytest.raises(ValueError, match="V of"):
            write_cache(k, new, cache, slots)
    with pytest.raises(ValueError, match="slots"):
        write_cache(k, k, cache, slots.int())
