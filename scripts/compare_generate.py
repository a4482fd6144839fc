"""Our engine against Hugging Face `generate` on the same batch, in turns in one process: a Markdown table.

    python scripts/compare_generate.py [--batch 16] [--prompt-tokens 128] [--new-tokens 64] [--rounds 3] [--threads N]

Greedy, no end token, the prefix cache off. Hugging Face gets the prompts left-padded to the longest.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the engine's own process has it; read when torch is loaded

import torch
import transformers

from engine.api import ChoiceTail, NewTokens, Prefill
from engine.core import Engine, EngineSettings
from engine.llama import LlamaModel
from engine.pool_memory import PoolMemory
from kvferry.model_store import ensure_model
from protocol.sampling import Sampling

PADDING_STEP = 2
"""Each prompt is this many tokens shorter than the one before, so that the batch really is padded."""

SPARE_BLOCKS = 64
Outputs = list[list[int]]


@dataclass(frozen=True, slots=True)
class Task:
    """What both are asked to do."""

    prompts: list[list[int]]
    num_new: int

    @property
    def num_tokens(self) -> int:
        """Tokens that a round makes."""
        return len(self.prompts) * self.num_new


def main() -> int:
    """Measure, print, return 0 if ours is the faster in every round."""
    asked = parse()
    torch.set_num_threads(asked.threads)
    folder = ensure_model(asked.model, lambda line: None)
    task = Task(prompts(asked.batch, asked.prompt_tokens), asked.new_tokens)
    ours, theirs = make_ours(folder, task, asked.dtype), make_theirs(folder, task, asked.dtype)
    outputs = ours(), theirs()  # warm-up, and what they say
    speeds: tuple[list[float], list[float]] = ([], [])
    for number in range(asked.rounds):
        for which, run in enumerate((ours, theirs)):
            speeds[which].append(task.num_tokens / seconds_of(run))
        print(f"round {number + 1}: {speeds[0][-1]:.0f} and {speeds[1][-1]:.0f} tokens/s", file=sys.stderr)
    report(asked, task, speeds, sum(a == b for a, b in zip(*outputs, strict=True)))
    return 0 if min(a / b for a, b in zip(*speeds, strict=True)) > 1 else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def prompts(batch: int, longest: int) -> list[list[int]]:
    """Ids that look like noise; any token is as good as another for time."""
    return [
        [100 + (31 * row + 7 * i * i + 13 * i) % 40_000 for i in range(max(1, longest - PADDING_STEP * row))]
        for row in range(batch)
    ]


def make_ours(folder: Path, task: Task, dtype: str) -> Callable[[], Outputs]:
    """The engine as a worker runs it, without its io process."""
    longest = max(map(len, task.prompts)) + task.num_new
    model = LlamaModel(folder, dtype, max_model_len=longest + 1)
    num_blocks = sum(model.layout.num_blocks(len(ids) + task.num_new) for ids in task.prompts) + SPARE_BLOCKS
    memory = PoolMemory(model.layout, num_blocks)
    settings = EngineSettings(
        max_num_seqs=len(task.prompts), max_num_batched_tokens=512, max_model_len=longest, enable_prefix_caching=False
    )
    engine = Engine(model, memory, settings)
    sampling = Sampling(temperature=0.0, max_tokens=task.num_new, ignore_eos=True)

    def run() -> Outputs:
        made: Outputs = [[] for _ in task.prompts]
        for row, ids in enumerate(task.prompts):
            engine.submit(Prefill((str(row), 1), tuple(ids), (ChoiceTail(0),), sampling))
        while engine.has_work():
            for result in engine.step().results:
                if isinstance(result, NewTokens):
                    made[int(result.key[0])] += result.token_ids
        return made

    return run


def make_theirs(folder: Path, task: Task, dtype: str) -> Callable[[], Outputs]:
    """`generate` with its default attention (sdpa) and cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    longest = max(map(len, task.prompts))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in task.prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in task.prompts])

    def run() -> Outputs:
        with torch.inference_mode():
            whole = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=task.num_new,
                max_new_tokens=task.num_new,
                pad_token_id=0,
            )
        made: Outputs = whole[:, longest:].tolist()
        return made

    return run


def seconds_of(run: Callable[[], Outputs]) -> float:
    """Time one round."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def report(asked: argparse.Namespace, task: Task, speeds: tuple[list[float], list[float]], num_equal: int) -> None:
    """Print the table, and what is needed to make it again."""
    ratios = [a / b for a, b in zip(*speeds, strict=True)]
    print(f"Command: `python {shlex.join(sys.argv)}`; commit {commit()}; {machine()}; {asked.threads} threads; ")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; {asked.dtype}, batch {asked.batch},")
    print(f"prompts of {min(map(len, task.prompts))} to {max(map(len, task.prompts))} tokens, {task.num_new} new each;")
    print(f"{asked.rounds} rounds in turns after one to warm up, prefill included. Equal outputs: {num_equal} rows.\n")
    print("| | tokens/s, median | lowest to highest |\n|---|---|---|")
    for name, row in (("KVFerry's engine", speeds[0]), ("`generate`", speeds[1])):
        print(f"| {name} | {statistics.median(row):.0f} | {min(row):.0f} to {max(row):.0f} |")
    print(f"| ratio | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


def commit() -> str:
    """The commit, with a + if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """The processor and how many cores of it."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].split(":", 1)[1].strip() if names else platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    sys.exit(main())
