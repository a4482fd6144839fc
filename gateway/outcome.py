"""How a request ended, and who wants to hear of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.generation import Journey
from runtime.logs import get_logger

FINISHED = "finished"
REFUSED = "refused"
CANCELLED = "cancelled"
DEADLINE = "deadline"
FAILED = "failed"
MAX_LABEL_LEN = 128
"""Of a client's label in the log."""

log = get_logger("gateway.outcome")

OUTCOMES = (FINISHED, REFUSED, CANCELLED, DEADLINE, FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one outcome of a request. ``phase`` is where it ended, ``code`` "" unless something went wrong.

    ``path`` is that of the first token. ``spent_s`` has the seconds of each phase that was entered,
    attempts added up. Wasted tokens were made after a choice's end.
    """

    journey: Journey
    label: str
    kind: str
    phase: str
    code: str
    message: str
    path: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_wasted_tokens: int
    spent_s: dict[str, float] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        """The dispatcher's name of it."""
        return self.journey.request_id

    @property
    def num_attempts(self) -> int:
        """Tries; none if it was never sent."""
        return len(self.journey.tries)

    def log(self) -> None:
        """One line, with the workers and the phases' times; the access log has the HTTP side of it."""
        log.info(
            "request_ended",
            request_id=self.request_id,
            label=self.label[:MAX_LABEL_LEN],
            outcome=self.kind,
            phase=self.phase,
            code=self.code,
            message=self.message,
            path=self.path,
            num_attempts=self.num_attempts,
            attempts=self.journey.told(),
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_wasted_tokens=self.num_wasted_tokens,
            **{f"{phase}_ms": round(spent * 1000, 1) for phase, spent in self.spent_s.items()},
        )


class DispatchMetrics:
    """Hooks for counters; these do nothing, a subclass counts."""

    def routed(self, path: str) -> None:
        """An attempt was sent to workers by this path."""

    def refused(self, role: str, code: str) -> None:
        """A worker refused an attempt; the request goes on elsewhere or waits."""

    def moved(self, phase: str, code: str) -> None:
        """An attempt failed in ``phase``; the request is tried again."""

    def resent(self) -> None:
        """Tokens were missing and are asked for again."""

    def kept_out(self, role: str, code: str, *, first: bool) -> None:
        """A worker that failed gets no work for a while; not ``first`` when its probe failed."""

    def let_back(self, role: str) -> None:
        """A worker that was kept out is back, or gone."""

    def ended(self, outcome: Outcome) -> None:
        """A request has its outcome. Once per request."""
