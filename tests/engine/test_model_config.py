"""A folder's config is read in both of transformers' forms, and what isn't built is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.memory import DEFAULT_KV_BYTES, host_memory_bytes, kv_budget_bytes
from engine.model_config import ModelConfig, read_model_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    config = {k: v for k, v in {**BASE, **changes}.items() if v != "absent"}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(folder)


def test_old_and_new_rope_settings_mean_the_same(tmp_path: Path) -> None:
    old = read(tmp_path, rope_theta=500.0, rope_scaling=YARN)
    new = read(tmp_path, rope_parameters={**YARN, "rope_theta": 500.0, "rope_type": "yarn"})
    assert old.rope == new.rope
    assert (old.rope.kind, old.rope.theta, old.rope.factor) == ("yarn", 500.0, 4.0)
    assert read(tmp_path).rope.kind == "default"
    assert read(tmp_path, rope_scaling=None, rope_theta=7.0).rope.theta == 7.0


def test_left_out_sizes_have_the_usual_meaning(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.tied_embeddings) == (4, 16, False)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (False, False, False)


@pytest.mark.parametrize(
    ("changes", "biases", "head_norm"),
    [
        ({"attention_bias": True, "mlp_bias": True}, (True, True, True), False),
        ({"architectures": ["Qwen2ForCausalLM"]}, (True, False, False), False),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, (True, True, False), True),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, (False, False, False), False),
    ],
)
def test_each_family_has_its_own_biases_and_norms(
    tmp_path: Path, changes: dict[str, Any], biases: tuple[bool, bool, bool], head_norm: bool
) -> None:
    config = read(tmp_path, **changes)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == biases
    assert config.head_norm == head_norm


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    assert read(tmp_path).eos_ids == (2,)
    assert read(tmp_path, eos_token_id=[3, 4]).eos_ids == (3, 4)
    assert read(tmp_path, generation={"eos_token_id": [5, 6]}).eos_ids == (5, 6)
    assert read(tmp_path, generation={}).eos_ids == (2,)
    assert read(tmp_path, generation={}, eos_token_id="absent").eos_ids == ()


@pytest.mark.parametrize(
    ("changes", "max_len"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 512}, 512),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, 2048),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 2048),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512}, 2048),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512, "use_sliding_window": False}, 2048),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            512,
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 512,
                "use_sliding_window": True,
                "layer_types": ["full_attention"] * 4,
            },
            2048,
        ),
    ],
)
def test_a_sliding_window_limits_the_length_and_says_so(tmp_path: Path, changes: dict[str, Any], max_len: int) -> None:
    config = read(tmp_path, **changes)
    assert config.max_len == max_len
    assert len(config.warnings) == (1 if max_len == 512 else 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel isn't built"),
        ({"architectures": "absent", "model_type": "bert"}, "architecture bert isn't built"),
        ({"architectures": []}, "no architecture"),
        ({"architectures": 5}, "odd value"),
        ({"hidden_act": "gelu"}, "activation gelu isn't built"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling dynamic isn't built"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope scaling longrope isn't built"),
        ({"rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"vocab_size": "absent"}, "lacks 'vocab_size'"),
        ({"vocab_size": "many"}, "odd value"),
        ({"num_hidden_layers": 0}, "below 1"),
        ({"num_key_value_heads": 3}, "4 query heads don't divide over 3 KV heads"),
        ({"head_dim": 15}, "odd: rotary"),
    ],
)
def test_what_is_not_built_is_one_clear_line(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        read(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_readable_config_is_one_clear_line(tmp_path: Path) -> None:
    for content, text in ((None, "does not exist"), (b"{", "can't be read"), (b"[]", "not a JSON object")):
        if content is not None:
            (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ModelError, match=text):
            read_model_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (1 << 21))
    with pytest.raises(ModelError, match="longer than"):
        read_model_config(tmp_path)


def test_host_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    assert host_memory_bytes(tmp_path) == 2048 * 1024
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert host_memory_bytes(tmp_path) == 2048 * 1024
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    assert host_memory_bytes(tmp_path) == 1048576
    assert 0 < host_memory_bytes() < 1 << 50


def test_kv_memory_is_a_share_of_the_host_less_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.host_memory_bytes", lambda: 8 << 30)
    assert kv_budget_bytes(1 << 30, 0.9, 12345, 2) == 12345
    assert kv_budget_bytes(1 << 30, 0.5, None, 2) == 1 << 30
    assert kv_budget_bytes(1 << 20, 0.9, None, 1) == DEFAULT_KV_BYTES
    with pytest.raises(ModelError, match="fill the worker's share"):
        kv_budget_bytes(1 << 30, 0.5, None, 4)
