"""What fits into a memory is plain arithmetic: checked against published sizes and numbers worked out by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.capacity import Capacity, longest_context, plan_capacity
from engine.config import AUTO_LEN, EngineConfig
from engine.errors import ModelError
from engine.memory import DEFAULT_KV_BYTES, kv_budget_bytes, size_text
from engine.model_config import ModelConfig, read_model_config
from engine.model_sizes import kv_layout, num_parameters, weight_bytes

GB, MIB, GIB = 10**9, 1 << 20, 1 << 30


def shape(
    architecture: str, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
        **more,
    }


LLAMA_8B = shape("Llama", 128256, 4096, 14336, 32, 32, 8)
LLAMA_1B = shape("Llama", 128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True)
SMOL = shape("Llama", 49152, 576, 1536, 30, 9, 3, tie_word_embeddings=True, max_position_embeddings=8192)
QWEN3_600M = shape("Qwen3", 151936, 1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True)
QWEN2_7B = shape("Qwen2", 152064, 3584, 18944, 28, 28, 4)


@pytest.fixture
def config_of(tmp_path: Path) -> Any:
    def read(fields: dict[str, Any]) -> ModelConfig:
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return read_model_config(tmp_path)

    return read


def engine(**changes: Any) -> EngineConfig:
    return EngineConfig(model="", worker_id="", **changes)


@pytest.mark.parametrize(
    ("fields", "parameters", "token_bytes"),
    [
        (LLAMA_8B, 8_030_261_248, 2 * 32 * 8 * 128 * 2),
        (LLAMA_1B, 1_235_814_400, 2 * 16 * 8 * 64 * 2),
        (SMOL, 134_515_008, 2 * 30 * 3 * 64 * 2),
        (QWEN3_600M, 596_049_920, 2 * 28 * 8 * 128 * 2),
        (QWEN2_7B, 7_615_616_512, 2 * 28 * 4 * 128 * 2),
    ],
    ids=["grouped heads", "tied", "the default model", "tied, wide heads, head norms", "biases"],
)
def test_parameters_are_as_published_and_kv_is_two_vectors_a_head_and_layer(
    config_of: Any, fields: dict[str, Any], parameters: int, token_bytes: int
) -> None:
    config = config_of(fields)
    assert num_parameters(config) == parameters
    assert kv_layout(config, "bfloat16").token_bytes == token_bytes
    assert kv_layout(config, "float32").token_bytes == 2 * token_bytes


def test_a_tied_embedding_is_counted_twice_on_a_cpu_alone(config_of: Any) -> None:
    tied, apart = config_of(LLAMA_1B), config_of(LLAMA_8B)
    assert weight_bytes(tied, "bfloat16", "cuda") == 2 * 1_235_814_400
    assert weight_bytes(tied, "bfloat16", "cpu") == 2 * (1_235_814_400 + 128256 * 2048)
    assert weight_bytes(apart, "float32", "cpu") == 4 * 8_030_261_248 == 2 * weight_bytes(apart, "bfloat16", "cuda")


def test_llama_8b_on_24_gb(config_of: Any) -> None:
    """21.6 GB less 16.06 GB of weights are 5,539,477,504 bytes; a block has 16 x 128 KiB."""
    found = plan_capacity(config_of(LLAMA_8B), engine(), "cuda", 24 * GB)
    assert found.weight_bytes == 16_060_522_496
    assert found.layout.block_bytes == 2 * MIB
    assert found.num_blocks == 2641
    assert found.num_tokens == 42256
    assert (found.max_model_len, found.shortened_from) == (2640 * 16, 131072)
    assert [found.concurrency(length) for length in (512, 1024, 4096, 42240)] == [64, 40, 10, 1]
    assert found.handover_bytes(1000) == 63 * 2 * MIB


def test_on_a_cpu_the_host_is_divided_and_the_pool_bounded(config_of: Any) -> None:
    config = config_of(SMOL)
    two = plan_capacity(config, engine(host_workers=2), "cpu", 2 * GIB)
    share = int(GIB * 0.9)
    assert two.weight_bytes == 325_653_120
    assert two.num_blocks == (share - 325_653_120) // 368_640
    assert plan_capacity(config, engine(), "cpu", 64 * GIB).num_blocks == DEFAULT_KV_BYTES // 368_640
    explicit = plan_capacity(config, engine(kv_cache_memory_bytes=64 * MIB), "cpu", GIB)
    assert (explicit.num_blocks, explicit.max_model_len, explicit.shortened_from) == (182, 181 * 16, 8192)


@pytest.mark.parametrize(("concurrency", "longest"), [(1, 2896), (2, 90 * 16), (4, 44 * 16), (182, 16), (500, 16)])
def test_auto_is_the_longest_context_of_which_so_many_fit(config_of: Any, concurrency: int, longest: int) -> None:
    config = config_of(SMOL)
    settings = engine(kv_cache_memory_bytes=64 * MIB, max_model_len=AUTO_LEN, auto_concurrency=concurrency)
    found = plan_capacity(config, settings, "cpu", GIB)
    assert (found.max_model_len, found.shortened_from) == (longest, 0)
    if concurrency <= 4:
        assert found.concurrency(longest) >= concurrency > found.concurrency(longest + 16)


def test_auto_never_exceeds_the_models_own_length(config_of: Any) -> None:
    settings = engine(kv_cache_memory_bytes=64 * GIB, max_model_len=AUTO_LEN)
    assert plan_capacity(config_of(SMOL), settings, "cpu", GIB).max_model_len == 8192


def test_a_length_that_was_asked_for_holds_if_the_pool_has_room(config_of: Any) -> None:
    config = config_of(SMOL)
    found = plan_capacity(config, engine(max_model_len=2896, kv_cache_memory_bytes=64 * MIB), "cpu", GIB)
    assert (found.max_model_len, found.shortened_from) == (2896, 0)
    with pytest.raises(ModelError, match="max model length 8193 is not in 1 to 8192"):
        plan_capacity(config, engine(max_model_len=8193), "cpu", GIB)


def test_a_request_wants_its_blocks_and_a_spare_one() -> None:
    assert longest_context(10, 16, 1) == 9 * 16
    assert longest_context(10, 16, 2) == 4 * 16
    assert longest_context(1, 16, 1) == 16


@pytest.mark.parametrize(
    ("weights", "utilization", "explicit_workers", "device", "knob"),
    [
        (7 * GIB, 0.5, 1, "cuda", "raise --gpu-memory-utilization to 0.88 or more"),
        (3 * GIB, 0.9, 4, "cpu", "run at most 2 of the host's 4 workers"),
        (16 * GIB, 0.9, 1, "cuda", "more than 17.8 GiB of memory are needed"),
        (16 * GIB, 0.8, 2, "cpu", "more than 40.0 GiB of memory are needed"),
    ],
)
def test_what_doesnt_fit_says_how_much_is_missing_and_what_helps(
    weights: int, utilization: float, explicit_workers: int, device: str, knob: str
) -> None:
    with pytest.raises(ModelError) as caught:
        kv_budget_bytes(weights, utilization, None, explicit_workers, device, 8 * GIB)
    text = str(caught.value)
    assert "\n" not in text
    missing = weights - int(8 * GIB // (explicit_workers if device == "cpu" else 1) * utilization)
    assert f"{size_text(missing)} are missing: {knob}" in text


@pytest.mark.parametrize("weights", [1, 5 * GIB, 8 * GIB - 90 * MIB])
def test_the_memory_share_that_an_error_names_does_help(weights: int) -> None:
    with pytest.raises(ModelError) as caught:
        kv_budget_bytes(weights, 1e-12, None, 1, "cuda", 8 * GIB)
    named = re.search(r"--gpu-memory-utilization to (\S+) or", str(caught.value))
    assert named
    assert kv_budget_bytes(weights, float(named[1]), None, 1, "cuda", 8 * GIB) > 0


def test_float32_weights_that_dont_fit_may_be_halved(config_of: Any) -> None:
    with pytest.raises(ModelError, match="or halve the weights with --dtype bfloat16"):
        plan_capacity(config_of(LLAMA_8B), engine(dtype="float32"), "cuda", 24 * GB)


def test_a_pool_without_a_block_is_refused_by_the_setting_that_made_it(config_of: Any) -> None:
    config = config_of(LLAMA_8B)
    with pytest.raises(ModelError, match=r"^1.0 MiB for the KV pool hold no block of 2.0 MiB: raise --kv-cache-mem"):
        plan_capacity(config, engine(kv_cache_memory_bytes=MIB), "cuda", GB)
    with pytest.raises(ModelError, match="raise --gpu-memory-utilization"):
        plan_capacity(config, engine(gpu_memory_utilization=1.0), "cuda", 16_060_522_496 + MIB)


def test_one_line_says_it_all(config_of: Any) -> None:
    found = plan_capacity(config_of(SMOL), engine(kv_cache_memory_bytes=64 * MIB), "cpu", GIB)
    assert str(found) == (
        "weights 310.6 MiB; KV 22.5 KiB a token; pool 182 blocks of 16 tokens, 2912 tokens in 64.0 MiB; "
        "context 2896 tokens; about 2 requests of 1024 tokens at once, 1 of 2896"
    )
    short: Capacity = replace(found, max_model_len=512)
    assert str(short).endswith("context 512 tokens; about 5 requests of 512 tokens at once")


def test_sizes_are_in_binary_units() -> None:
    sizes = [0, 1023, 1024, 368_640, 64 * MIB, 24 * GB, 3 << 40]
    assert [size_text(n) for n in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "360.0 KiB",
        "64.0 MiB",
        "22.4 GiB",
        "3.00 TiB",
    ]
