"""How well a model foretells a text, by number format: `python scripts/perplexity.py [--model FOLDER] [--text FILE]`.

Prints the perplexity, e^(mean of -log p) over the text's tokens, in float32, in bfloat16 and with
`--quantization int8`, and each one's ratio to float32's. The text is computed in windows, each token given those before
it in its window. The default text was written for this project and is under its license.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.batch import Batch, GroupBatch
from engine.kv_cache import cache_bytes, map_cache
from engine.llama import LlamaModel
from kvferry.model_store import ensure_model

TEXT = Path(__file__).parents[1] / "tests" / "data" / "crossing.txt"

WINDOW, CHUNK = 1024, 256
"""Tokens that are read together, and those computed in a step: their logits are all in memory."""

FORMATS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"))
"""Number formats and quantizations, what the others are compared with first."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder [default: the bundled model]")
    parser.add_argument("--text", type=Path, default=TEXT)
    asked = parser.parse_args()
    folder = asked.model or ensure_model(None, lambda line: None)
    ids = token_ids(folder, asked.text)
    sys.stdout.write(f"{asked.text.name}, {len(ids)} tokens\n")
    first = 0.0
    for dtype, quantization in FORMATS:
        found = perplexity(LlamaModel(folder, dtype, quantization=quantization), ids)
        first = first or found
        name = dtype if quantization == "none" else f"{quantization} in {dtype}"
        sys.stdout.write(f"{name:17} {found:9.4f}  {found / first:.4f} of {FORMATS[0][0]}'s\n")


def token_ids(folder: Path, text: Path) -> list[int]:
    """Return a text as tokens of the folder's model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text.read_text(encoding="utf-8")).ids
    return ids


def perplexity(model: LlamaModel, ids: list[int]) -> float:
    """Return a model's perplexity over all tokens but each window's first."""
    total, count = 0.0, 0
    for start in range(0, len(ids), WINDOW):
        window = ids[start : start + WINDOW]
        total += _surprise(model, window)
        count += len(window) - 1
    return math.exp(total / count)


def _surprise(model: LlamaModel, ids: list[int]) -> float:
    """Sum of -log p over all tokens but the first."""
    layout = model.layout
    num_blocks = layout.num_blocks(len(ids))
    cache = map_cache(bytearray(cache_bytes(layout, num_blocks)), layout, num_blocks)
    table = torch.arange(num_blocks, dtype=torch.int32)[None]
    total = 0.0
    for start in range(0, len(ids), CHUNK):
        end = min(start + CHUNK, len(ids))
        places = torch.arange(start, end)
        batch = Batch(
            torch.tensor(ids[start:end]),
            places,
            torch.tensor([0, end - start], dtype=torch.int32),
            torch.tensor([end], dtype=torch.int32),
            torch.arange(end - start),
            (GroupBatch(places, table),),
            (end - start,),
            (end,),
        )
        logprobs = model.logits(model.forward(batch, cache, lambda layers: None)).log_softmax(-1)
        following = torch.tensor(ids[start + 1 : end + 1])
        total -= logprobs[: len(following)].gather(1, following[:, None]).double().sum().item()
    return total


if __name__ == "__main__":
    main()
