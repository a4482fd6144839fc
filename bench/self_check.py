"""The generator measures a server of known delays, and its figures are held against what that server did."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.campaign import Campaign, Listener, Run
from bench.loop import run_loop
from bench.passages import Passages
from bench.quantiles import Quantiles
from bench.settings import Settings
from bench.stub import Delays, Served, Stub
from bench.target import Target
from bench.workload import Workload

TOLERANCE = 0.02
_TRIES = 3
"""A busy machine delays single events; figures that are wrong stay wrong."""

_WORKLOAD = Workload(name="self-check", num_prompts=8, concurrency=8, prompt_len=8, output_len=16)


@dataclass(frozen=True, slots=True)
class Check:
    """One figure: as measured, and as the server's own notes have it."""

    label: str
    measured: float
    truth: float

    @property
    def off(self) -> float:
        """Relative difference."""
        return abs(self.measured / self.truth - 1)


def self_check(passages: Passages, delays: Delays | None = None) -> list[Check]:
    """Return the checks of the best of up to three tries."""
    best: list[Check] = []
    for _ in range(_TRIES):
        found = _measure(passages, delays or Delays())
        if not best or worst(found) < worst(best):
            best = found
        if worst(best) <= TOLERANCE:
            break
    return best


def worst(checks: Sequence[Check]) -> float:
    """Return the largest relative difference."""
    return max(check.off for check in checks)


def as_text(checks: Sequence[Check]) -> str:
    """Return a Markdown table and the verdict."""
    rows = [f"| {each.label} | {each.measured:.2f} | {each.truth:.2f} | {each.off:.2%} |" for each in checks]
    verdict = "right" if worst(checks) <= TOLERANCE else "WRONG, or the machine is too busy"
    lines = ["| figure | measured | sent by the server | off by |", "|---|---|---|---|", *rows, "", verdict]
    return "\n".join(lines) + f" (limit {TOLERANCE:.0%})\n"


def _measure(passages: Passages, delays: Delays) -> list[Check]:
    runs: list[Run] = []
    with Stub(delays) as stub:
        settings = Settings(targets=(Target("stub", stub.base_url),), workloads=(_WORKLOAD,), seeds=(1,), num_warmups=1)
        listener = Listener(lambda *about: lambda num_done: None, runs.append)
        run_loop(Campaign(settings, passages, listener).run())
    return _compare(runs[0], stub.served[settings.num_warmups :])


def _compare(run: Run, served: Sequence[Served]) -> list[Check]:
    figures = run.figures
    gaps = [after - before for each in served for before, after in pairwise(each.sent_s)]
    wall_s = max(each.end_s for each in served) - min(each.received_s for each in served)
    num_tokens = sum(len(each.sent_s) for each in served)
    truths = (
        ("TTFT", figures.ttft, [each.sent_s[0] - each.received_s for each in served]),
        ("gap 0→1", figures.gap01, [each.sent_s[1] - each.sent_s[0] for each in served]),
        ("ITL", figures.itl, gaps),
        ("TPOT", figures.tpot, [(each.sent_s[-1] - each.sent_s[0]) / (len(each.sent_s) - 1) for each in served]),
        ("end to end", figures.e2e, [each.end_s - each.received_s for each in served]),
    )
    checks = [Check("output tokens/s", figures.output_tokens_per_s, num_tokens / wall_s)]
    for label, measured, truth in truths:
        checks += _points(label, measured, truth)
    return checks


def _points(label: str, measured: Quantiles | None, truth: Sequence[float]) -> list[Check]:
    assert measured is not None
    percentiles = statistics.quantiles((each * 1000 for each in truth), n=100, method="inclusive")
    pairs = (("p50", measured.p50, 50), ("p90", measured.p90, 90), ("p99", measured.p99, 99))
    return [Check(f"{label} {point}, ms", value, percentiles[number - 1]) for point, value, number in pairs]
