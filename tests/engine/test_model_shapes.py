"""Tiny random models of each family compute what transformers computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from engine.capacity import plan_capacity
from engine.config import AUTO_LEN, EngineConfig
from engine.errors import ModelError
from engine.llama import LlamaModel
from engine.model_config import read_model_config
from engine.model_sizes import num_parameters, weight_bytes
from engine.process import load_engine
from engine.turns import NoTurns
from kvferry_kernels import ops
from tests.support.model_rig import Line, ModelRig

TINY = {
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied, biases": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, head_dim 32, MQA": ("Llama", {"head_dim": 32, "num_key_value_heads": 1}),
    "llama, head_dim 12": ("Llama", {"head_dim": 12}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn rope": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window as long as the test": ("Mistral", {"sliding_window": 140}),
    "qwen2": ("Qwen2", {}),
    "qwen2, yarn rope with its own factors": (
        "Qwen2",
        {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.9}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3, biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
}


def save_tiny(folder: Path, family: str, **changes: Any) -> Any:
    """Save a random model of this family; every tensor is random, norms and biases too."""
    config = getattr(transformers, f"{family}Config")(**{**TINY, **changes})
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, tensor in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(tensor.data, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(folder)
    return model


def logits_of(folder: Path, ids: Tensor, dtype: str = "float32") -> Tensor:
    rig = ModelRig(LlamaModel(folder, dtype), num_blocks=32)
    return rig.step((Line(ids.tolist()), len(ids)), every_row=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    family, changes = FAMILIES[name]
    model = save_tiny(tmp_path, family, **changes)
    ids = torch.randint(0, 160, (140,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    ours = logits_of(tmp_path, ids)
    assert ours.dtype == torch.float32
    assert expected.std() > 0.5
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-4)


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "whole", "Llama")
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    ids = torch.arange(20)
    assert torch.equal(logits_of(tmp_path / "shards", ids), logits_of(tmp_path / "whole", ids))


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3", head_dim=32)
    ids = torch.arange(40)
    exact = logits_of(tmp_path, ids)
    assert (logits_of(tmp_path, ids, "bfloat16") - exact).std() < 0.03 * exact.std()


def test_an_intermediate_chunk_needs_no_logits(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    rig = ModelRig(LlamaModel(tmp_path, "float32"), num_blocks=32)
    batch = rig.batch([(Line(list(range(20))), 20)], every_row=False)
    no_rows = type(batch)(
        batch.token_ids,
        batch.positions,
        batch.query_starts,
        batch.context_lens,
        torch.empty(0, dtype=torch.int64),
        batch.groups,
        batch.query_lens,
        batch.host_context_lens,
    )
    calls: list[int] = []
    assert rig.model.logits(rig.model.forward(no_rows, rig.cache, calls.append)).shape == (0, 160)
    assert sum(calls) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_compiled_kernels_the_numbers_are_near_and_bits_still_keep_to_their_own_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    save_tiny(tmp_path, "Qwen3", head_dim=32)
    ids = torch.randint(0, 160, (70,), generator=torch.Generator().manual_seed(2))
    compiled = logits_of(tmp_path, ids, dtype)
    monkeypatch.setattr(ops, "KERNELS", None)
    rig = ModelRig(LlamaModel(tmp_path, dtype), num_blocks=64)
    assert rig.model.numerics.startswith("reference-cpu;")
    whole = rig.step((Line(ids.tolist()), 70), every_row=True)
    assert (whole - compiled).std() < (1e-4 if dtype == "float32" else 0.03) * compiled.std()
    line, other = Line(ids.tolist()), Line(list(range(50)))
    parts = [rig.step((other, other.computed + 5), (line, end))[1] for end in (1, 20, 33, 69, 70)]
    assert torch.equal(torch.stack(parts), whole[[0, 19, 32, 68, 69]])


@pytest.mark.parametrize("name", FAMILIES)
def test_weight_bytes_count_each_tensor_as_it_is_computed_with_and_are_foretold(tmp_path: Path, name: str) -> None:
    family, changes = FAMILIES[name]
    model = save_tiny(tmp_path, family, **changes)
    numbers = sum(p.numel() for p in model.parameters())
    copied = TINY["vocab_size"] * TINY["hidden_size"] if changes.get("tie_word_embeddings") else 0
    config = read_model_config(tmp_path)
    assert num_parameters(config) == numbers
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        loaded = LlamaModel(tmp_path, dtype)
        assert loaded.weight_bytes == size * (numbers + copied) == weight_bytes(config, dtype, "cpu")


def test_an_engine_sizes_itself_as_was_foretold(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    for max_model_len, longest in ((AUTO_LEN, 20 * 16), (0, 512), (100, 100)):
        config = EngineConfig(
            model=str(tmp_path),
            worker_id="",
            device="cpu",
            num_threads=1,
            max_model_len=max_model_len,
            auto_concurrency=3,
            kv_cache_memory_bytes=64 * 8192,
        )
        foretold = plan_capacity(read_model_config(tmp_path), config, "cpu")
        loaded = load_engine(config, NoTurns())
        ready = loaded.started.ready
        assert ready.weight_bytes == foretold.weight_bytes
        assert (ready.num_blocks, ready.max_model_len) == (64, longest)
        assert (foretold.num_blocks, foretold.max_model_len) == (64, longest)
        assert loaded.pool.layout == foretold.layout
        loaded.pool.close()


def test_auto_takes_the_folders_dtype_and_bfloat16_for_float16(tmp_path: Path) -> None:
    for dtype, expected in (("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "bfloat16")):
        model = save_tiny(tmp_path / dtype, "Llama")
        model.to(getattr(torch, dtype)).save_pretrained(tmp_path / dtype)
        assert LlamaModel(tmp_path / dtype, "auto").layout.dtype == expected


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    with pytest.raises(ModelError, match=r"^dtype float16 isn't built on cpu"):
        LlamaModel(tmp_path, "float16")
    with pytest.raises(ModelError, match="max model length 513 is not in 1 to 512"):
        LlamaModel(tmp_path, "float32", max_model_len=513)
