"""What a gateway can do now, and what stands in the way: told to probes and people."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NAMED = 64
"""Workers named in an answer; the metrics count them all."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that is amiss: a code for machines, a sentence for people, the worker it is about if there is one."""

    code: str
    message: str
    worker: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it for a body."""
        about = {"worker": self.worker} if self.worker else {}
        return {"code": self.code, "message": self.message, **about}


@dataclass(frozen=True, slots=True)
class Health:
    """``status`` is "ok", "degraded" (only the fallback is left) or "unavailable" (no path).

    ``connected``: the bus has a server. ``draining``: nothing new is taken.
    """

    status: str = "unavailable"
    paths: tuple[str, ...] = ()
    num_prefill: int = 0
    num_decode: int = 0
    connected: bool = True
    draining: bool = False
    reasons: tuple[Reason, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether a new request can be taken and has some path."""
        return self.connected and not self.draining and bool(self.paths)

    def reasons_json(self) -> list[dict[str, str]]:
        """Return them for a body."""
        return [reason.to_json() for reason in self.reasons]
