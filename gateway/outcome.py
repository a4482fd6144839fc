"""How a request ended, and who wants to hear of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.candidate import Route
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

    ``path`` is that of the first token, ``last_route`` that of the last attempt. ``spent_s`` has the
    seconds of each phase that was entered, attempts added up. Wasted tokens were made after a choice's
    end.
    """

    request_id: str
    label: str
    kind: str
    phase: str
    code: str
    message: str
    path: str
    last_route: Route | None
    num_attempts: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_wasted_tokens: int
    spent_s: dict[str, float] = field(default_factory=dict)

    def log(self) -> None:
        """One line, with the workers and the phases' times; the access log has the HTTP side of it."""
        route = self.last_route
        log.info(
            "request_ended",
            request_id=self.request_id,
            label=self.label[:MAX_LABEL_LEN],
            outcome=self.kind,
            phase=self.phase,
            code=self.code,
            message=self.message,
            path=self.path,
            last_path=route.path if route is not None else "",
            prefill=route.prefill.id if route is not None else "",
            decode=route.decode.id if route is not None else "",
            num_attempts=self.num_attempts,
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

    def ended(self, outcome: Outcome) -> None:
        """A request has its outcome. Once per request."""
