"""What grammars cost a decode step: `python scripts/time_grammars.py`.

The default model in bfloat16 decodes a batch, in turn with every answer held to a JSON schema and free. Prints the
output tokens per second of each round, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from engine.api import ChoiceTail, NewTokens, Prefill
from engine.core import Engine, EngineSettings
from engine.guides import Guides
from engine.llama import LlamaModel
from engine.pool_memory import PoolMemory
from kvferry.model_store import ensure_model
from protocol.sampling import Sampling

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "notes": {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 80}, "minItems": 40},
    },
    "required": ["name", "notes"],
    "additionalProperties": False,
}
PROMPT_TOKENS, OUTPUT_TOKENS, NUM_BLOCKS = 64, 128, 1024


def main() -> None:
    """Print a line a round, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    folder = ensure_model(None, lambda line: None)
    model = LlamaModel(folder, "bfloat16", max_model_len=2048)
    guides = Guides.load(folder, model.config.vocab_size)
    guides.prepare()
    rates: dict[str, list[float]] = {"free": [], "held": []}
    for number in range(chosen.rounds):
        for kind, grammar in (("free", ""), ("held", _grammar())):
            rates[kind].append(_rate(model, guides, grammar, chosen.batch, number))
        print(f"round {number}: free {rates['free'][-1]:.0f}, held {rates['held'][-1]:.0f} tokens/s", flush=True)
    free, held = (statistics.median(each) for each in rates.values())
    print(f"medians: free {free:.0f}, held {held:.0f} tokens/s: {held / free:.3f}")


def _grammar() -> str:
    return json.dumps({"grammars": [{"json_schema": {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}}]})


def _rate(model: LlamaModel, guides: Guides, grammar: str, batch: int, number: int) -> float:
    """Output tokens per second once all answers have begun."""
    settings = EngineSettings(batch, batch * PROMPT_TOKENS, 2048, enable_prefix_caching=False)
    engine = Engine(model, PoolMemory(model.layout, NUM_BLOCKS), settings, guides=guides)
    sampling = Sampling(temperature=0.8, seed=number, max_tokens=OUTPUT_TOKENS, grammar=grammar, ignore_eos=True)
    for row in range(batch):
        ids = tuple(1000 + (row * 977 + number * 131 + place * 7) % 40000 for place in range(PROMPT_TOKENS))
        engine.submit(Prefill((str(row), 0), ids, (ChoiceTail(0),), sampling))
    while engine.expects_news and not engine.has_work():
        time.sleep(0.001)
    counts, begun, first = 0, 0.0, set[str]()
    while engine.has_work() or engine.expects_news:
        made = [each for each in engine.step().results if isinstance(each, NewTokens)]
        if begun:
            counts += sum(len(each.token_ids) for each in made)
        first |= {each.key[0] for each in made}
        if not begun and len(first) == batch:
            begun = time.perf_counter()
    return counts / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
