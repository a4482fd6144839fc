"""The 24 prompts of the parity tests as token ids of the real model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

DATA = Path(__file__).parents[1] / "data" / "prompts.json"

CHAT = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
"""What the default model's template makes of one user message, less its system prompt."""


def prompt_ids(folder: Path) -> dict[str, list[int]]:
    """Token ids of each prompt by name, shortest first."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = json.loads(DATA.read_text(encoding="utf-8"))
    texts = {p["name"]: CHAT.format(text=p["text"]) if p["chat"] else p["text"] for p in prompts}
    ids = {name: tokenizer.encode(text).ids for name, text in texts.items()}
    return dict(sorted(ids.items(), key=lambda item: len(item[1])))
