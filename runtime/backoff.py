"""When a process that ended unasked is started again, and how its end is told."""

import signal


class Backoff:
    """How long to wait before the next start: doubling, and short again after a healthy while."""

    FIRST_SECONDS = 0.5
    LONGEST_SECONDS = 30.0
    HEALTHY_SECONDS = 60.0
    SETTLED_SECONDS = 2.0
    """A child that ran for this long and left in order was sent away from outside: no failure to wait for."""

    def __init__(self) -> None:
        self._next = self.FIRST_SECONDS

    def after(self, uptime_seconds: float, code: int = 1) -> float:
        """Return the seconds to wait after a run of this length and exit code."""
        if code == 0 and uptime_seconds >= self.SETTLED_SECONDS:
            return 0.0
        if uptime_seconds >= self.HEALTHY_SECONDS:
            self._next = self.FIRST_SECONDS
        delay, self._next = self._next, min(2 * self._next, self.LONGEST_SECONDS)
        return delay


def how_it_ended(code: int) -> str:
    """Put an exit code in words."""
    if code >= 0:
        return f"ended unasked with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"
