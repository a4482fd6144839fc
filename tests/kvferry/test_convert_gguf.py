"""The default model's conversion: the same numbers, tokens and template as in the GGUF file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvferry.model_store import _GGUF_NAME, _WHEEL
from kvferry.wheel_file import find_wheel_file

if TYPE_CHECKING:
    from gguf import GGUFReader

pytestmark = pytest.mark.model

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TEXTS = [
    "What is the capital of France?",
    "a  12\n    345 x",  # two spaces before a digit are one token, digits are single
    "日本語 and naïve 👩‍👩‍👧 ²½",
    "\t\n  \n",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]


@pytest.fixture(scope="module")
def gguf() -> "GGUFReader":
    from gguf import GGUFReader

    path = find_wheel_file(_WHEEL, _GGUF_NAME)
    assert path is not None
    return GGUFReader(path)


def content(gguf: "GGUFReader", key: str) -> Any:
    field = gguf.get_field(f"tokenizer.{key}")
    assert field is not None
    return field.contents()


def test_config_and_generation_config_say_what_the_file_says(model_dir: Path) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 100_000.0
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    assert not any("/" in str(value) for value in config.values())
    generation = json.loads((model_dir / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (1, 2)


def test_every_weight_is_the_dequantized_one_rounded_to_bf16(model_dir: Path, gguf: "GGUFReader") -> None:
    import torch
    from gguf import dequantize
    from safetensors import safe_open

    with safe_open(model_dir / "model.safetensors", framework="pt") as weights:
        converted = set(weights.keys())
        for tensor in gguf.tensors:
            name = hugging_face_name(tensor.name)
            shape = [int(size) for size in reversed(tensor.shape)]
            numbers = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
            expected = numbers.reshape(shape).to(torch.bfloat16)
            if "q_proj" in name or "k_proj" in name:  # GGUF interleaves the halves of each head
                pairs = expected.reshape(-1, 32, 2, shape[1])
                expected = pairs.swapaxes(1, 2).reshape(shape)
            assert torch.equal(weights.get_tensor(name), expected), name
            converted.remove(name)
    assert not converted


def hugging_face_name(name: str) -> str:
    outside = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}
    if name in outside:
        return f"{outside[name]}.weight"
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[kind]}.weight"


def test_the_tokenizer_has_the_files_vocabulary_merges_and_special_tokens(model_dir: Path, gguf: "GGUFReader") -> None:
    saved = json.loads((model_dir / "tokenizer.json").read_text())
    tokens = content(gguf, "ggml.tokens")
    assert saved["model"]["vocab"] == {token: number for number, token in enumerate(tokens)}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in saved["model"]["merges"]]
    assert merges == content(gguf, "ggml.merges")
    special = [number for number, kind in enumerate(content(gguf, "ggml.token_type")) if kind == 3]
    added = saved["added_tokens"]
    assert [token["id"] for token in added if token["special"]] == special


def test_text_survives_the_way_through_tokens(model_dir: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_split_as_the_file_asks(model_dir: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


def test_the_template_is_the_files(model_dir: Path, gguf: "GGUFReader") -> None:
    template = (model_dir / "chat_template.jinja").read_text()
    assert template == content(gguf, "chat_template")


def test_transformers_reads_the_folder_and_finds_paris(model_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer.encode(text)])
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    made = model.generate(ids, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
