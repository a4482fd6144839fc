"""What a model's folder says about itself, and what clients are told of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import ModelFolderError

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The folder's facts. ``eos_ids`` is empty if no file names any; ``template`` None likewise."""

    vocab_size: int
    max_model_len: int
    eos_ids: tuple[int, ...]
    template: str | None
    special_tokens: dict[str, str]


def read_model_card(folder: Path) -> ModelCard:
    """Read a model's folder.

    Raises ``ModelFolderError``: config.json is missing or lacks what is needed.
    """
    if not folder.is_dir():
        raise ModelFolderError(f"no such folder: {folder}")
    config = _read_json(folder / "config.json")
    if config is None:
        raise ModelFolderError(f"no config.json in {folder}")
    generation = _read_json(folder / "generation_config.json") or {}
    tokenizer = _read_json(folder / "tokenizer_config.json") or {}
    named = {**(_read_json(folder / "special_tokens_map.json") or {}), **tokenizer}
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelCard(
        vocab_size=_number(config, "vocab_size"),
        max_model_len=_number(config, "max_position_embeddings"),
        eos_ids=_ids(eos),
        template=_template_of(folder, tokenizer),
        special_tokens={name: text for name in _TOKEN_NAMES if (text := _token_text(named.get(name))) is not None},
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} is not a JSON object")
    return value


def _number(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelFolderError(f"config.json has no usable {name}: {value!r}")
    return value


def _ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, int))


def _token_text(value: object) -> str | None:
    """Read a special token, written as a text or as an object with its options."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template_of(folder: Path, tokenizer: dict[str, Any]) -> str | None:
    """Find the default template: a file of its own, or a part of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = tokenizer.get("chat_template")
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def card_json(name: str, created: int, max_model_len: int) -> dict[str, object]:
    """One entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kvferry",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [],
    }
