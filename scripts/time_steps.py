"""Time decode steps of the default model's engine, without network: `python scripts/time_steps.py`.

Prints milliseconds a step (median, least, most of 48) for a batch of 1 and of 16 at a context of about 200
tokens, on one thread and on two. A step is all that the engine does for it: plan, model, sampling, report.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # threads that wait spin for a bounded time; read when torch loads

import torch
from floors.steps import Decoding, Times

from engine.llama import LlamaModel
from kvferry.model_store import ensure_model

PROMPT_LEN, NUM_STEPS = 176, 48
"""Contexts grow from 176 to 224 tokens while they are timed, of the first of 16 sequences to 240."""


def main() -> None:
    """Measure and print."""
    model = LlamaModel(ensure_model(None, lambda line: None), "bfloat16")
    sys.stdout.write(f"{model.numerics}\n")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 16):
            decoding = Decoding(model, batch, PROMPT_LEN, NUM_STEPS)
            for _ in range(NUM_STEPS):
                decoding.step()
            times = Times.of(decoding.times)
            spread = f"median {times.median:5.1f}  least {times.least:5.1f}  most {times.most:5.1f}"
            sys.stdout.write(f"threads {threads}  batch {batch:2}  ms a step: {spread}\n")


if __name__ == "__main__":
    main()
