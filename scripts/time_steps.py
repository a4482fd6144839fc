"""Time decode steps of the default model's engine, without network: `python scripts/time_steps.py`.

Prints milliseconds a step (median, least, most of 48) for a batch of 1 and of 16 at a context of about 200
tokens, on one thread and on two. A step is all that the engine does for it: plan, model, sampling, report.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # threads that wait spin for a bounded time; read when torch loads

import torch

from engine.api import ChoiceTail, Prefill
from engine.core import Engine, EngineSettings
from engine.llama import LlamaModel
from engine.pool_memory import PoolMemory
from kvferry.model_store import ensure_model
from protocol.sampling import Sampling

PROMPT_LEN, NUM_STEPS = 176, 48
"""Contexts grow from 176 to 224 tokens while they are timed."""
NUM_BLOCKS = 512
GREEDY = Sampling(temperature=0.0, max_tokens=NUM_STEPS + 8, ignore_eos=True)


def main() -> None:
    """Measure and print."""
    model = LlamaModel(ensure_model(None, lambda line: None), "bfloat16")
    sys.stdout.write(f"{model.numerics}\n")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 16):
            times = step_times(model, batch)
            spread = f"median {statistics.median(times):5.1f}  least {min(times):5.1f}  most {max(times):5.1f}"
            sys.stdout.write(f"threads {threads}  batch {batch:2}  ms a step: {spread}\n")


def step_times(model: LlamaModel, batch: int) -> list[float]:
    """Milliseconds of each timed step, once all prompts are computed."""
    settings = EngineSettings(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=4096)
    engine = Engine(model, PoolMemory(model.layout, NUM_BLOCKS), settings)
    for number in range(batch):
        prompt = tuple(3 + (number * 131 + 7 * i) % 40_000 for i in range(PROMPT_LEN))
        engine.submit(Prefill((f"r{number}", 1), prompt, (ChoiceTail(0),), GREEDY))
    while engine.report().load.tokens_made < batch:
        engine.step()
    engine.step()
    times = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1000)
    return times


if __name__ == "__main__":
    main()
