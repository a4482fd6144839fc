"""The JSON file: every run, each of its requests, and what was asked for where."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.answer import Answer
from bench.campaign import Run
from bench.errors import BenchError
from bench.settings import Settings
from bench.summary import Row, summarize

FORMAT = 1
"""Rises when a field changes its meaning."""

Json = dict[str, Any]


def results(runs: Sequence[Run], settings: Settings, machine: Json, started_at: str) -> Json:
    """Return everything as plain JSON; keys and prompts are not in it."""
    return {
        "format": FORMAT,
        "started_at": started_at,
        "machine": machine,
        "settings": _settings(settings),
        "runs": [_run(run) for run in runs],
        "summary": [_row(row) for row in summarize(runs)],
    }


def write_results(path: Path, found: Json) -> None:
    """Write the file whole or not at all. Raises `BenchError`."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(json.dumps(_finite(found), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BenchError(f"--json: {path} can't be written ({error.strerror})") from error


def _settings(settings: Settings) -> Json:
    return {
        "targets": {target.name: target.base_url for target in settings.targets},
        "workloads": [asdict(workload) for workload in settings.workloads],
        "seeds": list(settings.seeds),
        "endpoint": settings.endpoint,
        "model": settings.model,
        "tokenizer": str(settings.tokenizer or ""),
        "dataset": str(settings.dataset or ""),
        "num_warmups": settings.num_warmups,
        "ttft_limit_ms": settings.limits.ttft_ms,
        "itl_limit_ms": settings.limits.itl_ms,
        "request_timeout_s": settings.request_timeout_s,
        "extra_body": settings.extra_body,
    }


def _run(run: Run) -> Json:
    start_s = run.sent.start_s
    answers = [(answer, "request") for answer in run.sent.answers] + [(answer, "long") for answer in run.sent.longs]
    return {
        "workload": run.workload.name,
        "target": run.target.name,
        "model": run.model,
        "seed": run.seed,
        "place": run.place,
        "figures": asdict(run.figures),
        "sample": next((answer.text for answer in run.sent.all_answers if answer.is_ok), ""),
        "requests": [{"kind": kind, **_answer(answer, start_s)} for answer, kind in answers],
    }


def _answer(answer: Answer, start_s: float) -> Json:
    tpot_s = answer.tpot_s
    return {
        "sent_s": round(answer.sent_s - start_s, 6),
        "ttft_ms": round(answer.ttft_s * 1000, 3) if answer.times else None,
        "tpot_ms": None if tpot_s is None else round(tpot_s * 1000, 3),
        "e2e_ms": round((answer.end_s - answer.sent_s) * 1000, 3) if answer.end_s else None,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        "detail": answer.detail,
    }


def _row(row: Row) -> Json:
    return {
        "workload": row.workload.name,
        "target": row.target.name,
        "rounds": len(row.figures),
        "spreads": {label: asdict(spread) for label, spread in row.spreads.items()},
        "ratios": {label: asdict(ratio) for label, ratio in row.ratios.items()},
    }


def _finite(value: Any) -> Any:
    """Return the value with numbers that JSON doesn't have as words (a rate of ``inf``)."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
