"""Rotary tables equal those of transformers, row by row, whatever their length."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.model_config import RopeConfig
from engine.rope import rope_tables

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 256},
    "yarn, untruncated": {"factor": 4.0, "original_max_position_embeddings": 256, "truncate": False},
    "yarn, mscale": {"factor": 4.0, "original_max_position_embeddings": 256, "mscale": 1.2, "mscale_all_dim": 0.8},
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_tables_equal_those_of_transformers(name: str, dim: int) -> None:
    kind, given = name.partition(",")[0], KINDS[name]
    theirs = LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": kind, "rope_theta": 20000.0, **given},
    )
    positions = torch.arange(1024)[None]
    cos, sin = LlamaRotaryEmbedding(theirs)(torch.empty(0), positions)
    fields = {k: v for k, v in given.items() if k != "original_max_position_embeddings"}
    trained = given.get("original_max_position_embeddings", 1024)
    our_cos, our_sin = rope_tables(RopeConfig(kind, 20000.0, original_max_len=trained, **fields), dim, 1024)
    torch.testing.assert_close(our_cos, cos[0, :, : dim // 2], atol=3e-7, rtol=0)
    torch.testing.assert_close(our_sin, sin[0, :, : dim // 2], atol=3e-7, rtol=0)


def test_a_row_is_the_same_whatever_the_length() -> None:
    rope = RopeConfig("default", 100000.0)
    short, long = rope_tables(rope, 64, 100), rope_tables(rope, 64, 9000)
    assert all(torch.equal(a, b[:100]) for a, b in zip(short, long, strict=True))
