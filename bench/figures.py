"""A run's figures, from its answers; `docs/bench.md` defines each."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bench.answer import Answer
from bench.quantiles import Quantiles, quantile, quantiles_ms

_TAIL = 0.99
"""A request keeps the limit for gaps if so large a share of its gaps does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good request keeps; 0: no limit."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0

    def kept_by(self, answer: Answer) -> bool:
        """Whether this answer is whole, has its full length and keeps both limits."""
        if not answer.is_ok or answer.is_short:
            return False
        if self.ttft_ms and answer.ttft_s * 1000 > self.ttft_ms:
            return False
        gaps = sorted(answer.gaps_s())
        return not (self.itl_ms and gaps and quantile(gaps, _TAIL) * 1000 > self.itl_ms)


@dataclass(frozen=True, slots=True)
class Sent:
    """The answers of one run."""

    answers: tuple[Answer, ...]
    start_s: float
    end_s: float

    generator_cpu_s: float = 0.0
    """CPU time of this process meanwhile."""

    longs: tuple[Answer, ...] = ()
    """The long prompts among steady streams."""

    is_window: bool = False
    """Only what arrived from `start_s` to `end_s` counts; else all answers are whole, and all counts."""

    num_dry: int = 0
    """Steady streams that had sent their last request before the window ended."""

    @property
    def all_answers(self) -> tuple[Answer, ...]:
        """Every request of the run."""
        return self.answers + self.longs


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts are of requests or tokens; a time that nothing was measured for is None."""

    num_requests: int
    num_ok: int
    errors: dict[str, int]
    num_unfinished: int
    """Steady streams, and long prompts, that were still under way when the window ended."""

    num_longs: int
    num_longs_started: int
    num_longs_done: int
    """Long prompts among steady streams: sent, with a first token, answered."""

    num_dry: int
    """Steady streams without requests before the window ended."""

    num_short: int
    num_without_usage: int
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_per_event: float
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    requests_per_s: float
    goodput_per_s: float | None
    goodput_share: float | None
    ttft: Quantiles | None
    gap01: Quantiles | None
    itl: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    send_lag: Quantiles | None
    generator_share: float
    """Of one core, taken by the load generator itself."""

    paths: dict[str, int]


def figures_of(sent: Sent, limits: Limits) -> Figures:
    """Compute the figures of one run."""
    wall_s = max(sent.end_s - sent.start_s, 1e-9)
    every = sent.all_answers
    ok = [answer for answer in every if answer.is_ok]
    whole = [] if sent.is_window else ok  # a window sees parts of answers, and prompts of two kinds
    timed = sent.longs if sent.is_window else ok
    output = _arrived(sent) if sent.is_window else sum(answer.output_tokens for answer in ok)
    prompt = sum(answer.prompt_tokens for answer in ok)
    num_good = sum(limits.kept_by(answer) for answer in every)
    num_events = sum(len(answer.times) for answer in ok)
    return Figures(
        num_requests=len(every),
        num_ok=len(ok),
        errors=dict(sorted(Counter(answer.error for answer in every if answer.error).items())),
        num_unfinished=sum(not answer.end_s and not answer.error for answer in every),
        num_longs=len(sent.longs),
        num_longs_started=sum(bool(answer.times) for answer in sent.longs),
        num_longs_done=sum(answer.is_ok for answer in sent.longs),
        num_dry=sent.num_dry,
        num_short=sum(answer.is_short for answer in every),
        num_without_usage=sum(not answer.has_usage for answer in ok),
        wall_s=wall_s,
        prompt_tokens=prompt,
        cached_tokens=sum(answer.cached_tokens for answer in ok),
        output_tokens=output,
        tokens_per_event=sum(answer.output_tokens for answer in ok) / num_events if num_events else 0.0,
        output_tokens_per_s=output / wall_s,
        total_tokens_per_s=None if sent.is_window else (output + prompt) / wall_s,
        requests_per_s=len(ok) / wall_s,
        goodput_per_s=None if sent.is_window else num_good / wall_s,
        goodput_share=None if sent.is_window or not every else num_good / len(every),
        ttft=quantiles_ms([answer.ttft_s for answer in timed if answer.times]),
        gap01=quantiles_ms([answer.times[1] - answer.times[0] for answer in whole if len(answer.times) > 1]),
        itl=quantiles_ms(gaps_in_window(sent) if sent.is_window else [gap for each in ok for gap in each.gaps_s()]),
        tpot=quantiles_ms([answer.tpot_s for answer in whole if answer.tpot_s is not None]),
        e2e=quantiles_ms([answer.end_s - answer.sent_s for answer in whole]),
        send_lag=quantiles_ms([answer.lag_s for answer in every]),
        generator_share=sent.generator_cpu_s / wall_s,
        paths=dict(sorted(Counter(answer.path for answer in every if answer.path).items())),
    )


def gaps_in_window(sent: Sent) -> list[float]:
    """Return the gaps of the steady streams that ended in the window.

    A stream that is silent as the window ends has one more, of at least the time since its last event.
    """
    gaps = []
    for answer in sent.answers:
        pairs = pairwise(answer.times)
        gaps += [after - before for before, after in pairs if sent.start_s <= after <= sent.end_s]
        if answer.times and not answer.end_s and not answer.finish_reason and answer.times[-1] < sent.end_s:
            gaps.append(sent.end_s - max(answer.times[-1], sent.start_s))
    return gaps


def _arrived(sent: Sent) -> int:
    return sum(sent.start_s <= when <= sent.end_s for answer in sent.answers for when in answer.times)
