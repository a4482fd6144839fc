"""lm-eval's `local-completions`: every way to serve gives the same scores, and they are those of Transformers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.clients.roster import EVALUATION, LM_EVAL, cell_name
from tests.clients.setup import command_of, ensure, environment_of, variables_of
from tests.e2e.conftest import Up

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.nats]

DATA = Path(__file__).parents[1] / "data" / "lm_eval"
EVALUATION_S = 300.0
IDLE_S = 5.0
MAX_TOKENS, STOPS = 4, "\n,."
"""Of what is written on, as the program asks for it."""
ROUNDING = 1e-4
"""Of a sum of one or two log probabilities in float32, computed in another order."""

Found = dict[str, Any]


def evaluated(up: Up, model_dir: Path, way: str) -> Found:
    """What the program found at a stack."""
    name = httpx.get(f"{up.base_url}/v1/models", timeout=60).json()["data"][0]["id"]
    done = subprocess.run(
        [*command_of(LM_EVAL), up.base_url, name, str(model_dir), str(DATA), way],
        cwd=environment_of(LM_EVAL),
        env=variables_of(LM_EVAL) | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=EVALUATION_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    up.idle(IDLE_S)
    found: Found = json.loads(done.stdout)
    return found


class Oracle:
    """The model as Transformers runs it in float32."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def likelihood(self, context: str, end: str) -> tuple[float, bool]:
        """The log probability of an end, and whether it is the likeliest."""
        ids = torch.tensor([self._tokenizer(context + end)["input_ids"]])
        first = len(self._tokenizer(context)["input_ids"])
        scores = torch.log_softmax(self._model(ids).logits[0, first - 1 : -1], dim=-1)
        told = ids[0, first:]
        chosen = scores[range(len(told)), told]
        return float(chosen.sum()), bool((scores.argmax(dim=-1) == told).all())

    @torch.no_grad()
    def generation(self, text: str) -> str:
        """What is written on, up to where it stops."""
        asked = self._tokenizer(text, return_tensors="pt")
        ids = self._model.generate(**asked, do_sample=False, max_new_tokens=MAX_TOKENS)
        told: str = self._tokenizer.decode(ids[0, asked["input_ids"].shape[1] :])
        return told[: min([told.find(stop) for stop in STOPS if stop in told], default=len(told))]


def test_scores_are_the_same_however_it_is_served_and_those_of_transformers(
    model_dir: Path, results: list[str]
) -> None:
    ensure(LM_EVAL)
    runs: list[Found] = []
    for role in ("split", "both"):
        up = Up("--dtype", "float32", "--role", role).ready()
        runs += [evaluated(up, model_dir, way) for way in ("ids", "text")]
        assert up.end() == 0
    found = runs[0]
    assert (len(found["likelihoods"]), len(found["generations"])) == (80, 8)
    assert all(each == found for each in runs), "to the last bit"
    assert found["acc"] > 0.5, "a quarter is chance"
    oracle = Oracle(model_dir)
    for context, end, likelihood, is_greedy in found["likelihoods"]:
        right = oracle.likelihood(context, end)
        assert (likelihood, is_greedy) == (pytest.approx(right[0], abs=ROUNDING), right[1]), context + end
    for text, told in found["generations"]:
        assert told == oracle.generation(text)
    results.append(cell_name(*EVALUATION))
