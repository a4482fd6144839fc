"""Turn a Llama GGUF file into a Hugging Face folder in bf16: ``convert_gguf SOURCE TARGET``.

A program of its own, because it imports torch and transformers and its parent must not. It says
each step on stdout, one line each; what goes wrong is the last line on stderr.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from kvferry.flush import flush

CONVERTER_VERSION = 1
"""Part of the cached folder's name: raise it when the same file would give another folder."""

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the file


def convert(source: Path, target: Path) -> None:
    """Write the model in `source` (GGUF, architecture llama) to the existing folder `target`."""
    _say("reading the quantized weights")
    config = _save_weights(source, target)
    _say("writing the tokenizer")
    _save_tokenizer(source, target, model_max_length=config["max_position_embeddings"])
    for path in target.iterdir():
        flush(path)
    flush(target)


def _save_weights(source: Path, target: Path) -> dict[str, Any]:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        GenerationConfig,
        GgufConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    dequantized = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    # transformers won't save an object that came from a quantized file, so a plain one takes over.
    fields = dequantized.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "dtype"):
        fields.pop(name, None)
    config = LlamaConfig(**fields)
    with torch.device("meta"):
        plain = LlamaForCausalLM(config)
    plain.load_state_dict(dequantized.state_dict(), strict=True, assign=True)
    plain.tie_weights()
    plain.bfloat16()
    ids = {name: fields[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    plain.generation_config = GenerationConfig.from_dict(ids)
    _say("writing safetensors in bf16")
    plain.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)
    return _without(target / "config.json", "_model_name_or_path")


def _save_tokenizer(source: Path, target: Path, *, model_max_length: int) -> None:
    """Save tokenizer and chat template, with the pre-tokenizer that the file names.

    transformers gives every byte-level vocabulary GPT-2's splitting. The kind "smollm" splits off
    each digit first, so two spaces before a digit stay one token.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    field = GGUFReader(source).get_field("tokenizer.ggml.pre")
    kind = field.contents() if field is not None else ""
    if kind != "smollm":
        raise ValueError(f"tokenizer.ggml.pre is {kind!r}, only 'smollm' is known")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.model_max_length = model_max_length
    tokenizer.save_pretrained(target)
    _without(target / "tokenizer_config.json", "is_local", "local_files_only")


def _without(path: Path, *names: str) -> dict[str, Any]:
    """Take fields that speak of this conversion out of a JSON file, and return the rest."""
    fields: dict[str, Any] = json.loads(path.read_text())
    for name in names:
        fields.pop(name, None)
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    return fields


def _say(step: str) -> None:
    sys.stdout.write(step + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    from kvferry.tether import tie_if_asked

    tie_if_asked()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
