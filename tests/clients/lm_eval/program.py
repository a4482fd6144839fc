"""lm-eval's `local-completions` on our small task: `PROGRAM BASE_URL MODEL TOKENIZER DATA WAY`, in JSON to stdout.

TOKENIZER is a folder, DATA that of `choice.jsonl` and `goes_on.jsonl`; WAY is how prompts are sent, `ids` or `text`.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import datasets
import lm_eval

NUM_CONCURRENT = 4
MAX_TOKENS = 4
"""Of what is written on: an answer is one word, or a number of two digits."""


def task(name: str, data: Path, **config: Any) -> dict[str, Any]:
    """A task over one file of ours, with nothing to download."""
    rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    made = {"test": datasets.Dataset.from_list(rows)}
    return {"task": name, "custom_dataset": lambda **_: made, "test_split": "test", "num_fewshot": 0, **config}


def tasks(data: Path) -> list[dict[str, Any]]:
    """Both kinds of requests that there are: log probabilities of given ends, and generations."""
    choice = task(
        "choice",
        data,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="answer",
        metric_list=[{"metric": "acc"}],
    )
    goes_on = task(
        "goes_on",
        data,
        output_type="generate_until",
        doc_to_text="{{text}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n", ",", "."], "temperature": 0, "max_gen_toks": MAX_TOKENS},
        metric_list=[{"metric": "exact_match"}],
    )
    return [choice, goes_on]


def evaluated(base_url: str, model: str, tokenizer: str, data: Path, way: str) -> dict[str, Any]:
    """Scores, and of each sample what was asked and what came."""
    options = {
        "base_url": f"{base_url}/v1/completions",
        "model": model,
        "tokenizer": tokenizer,
        "tokenizer_backend": "huggingface",
        "tokenized_requests": way == "ids",
        "num_concurrent": NUM_CONCURRENT,
        "max_retries": 1,
    }
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=options,
        tasks=tasks(data),
        bootstrap_iters=0,
        cache_requests=False,
    )
    samples = found["samples"]
    likelihoods = [
        (*asked, *told)
        for sample in samples["choice"]
        for asked, [told] in zip(sample["arguments"], sample["resps"], strict=True)
    ]
    return {
        "acc": found["results"]["choice"]["acc,none"],
        "exact": found["results"]["goes_on"]["exact_match,none"],
        "likelihoods": likelihoods,
        "generations": [(sample["arguments"][0][0], sample["resps"][0][0]) for sample in samples["goes_on"]],
    }


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    url, name, folder, where, how = sys.argv[1:]
    sys.stdout.write(json.dumps(evaluated(url, name, folder, Path(where), how)) + "\n")
