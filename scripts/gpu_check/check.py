"""What is checked, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_check.bench import Bench


class NotRun(Exception):  # noqa: N818 - it is no error: this machine lacks something
    """The machine lacks what a check needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a value may be at most, or at least.

    ``unit`` is written behind a number, "%" stands for a share of 1. ``is_timed``: the value is one of time, and means
    nothing where everything is tiny.
    """

    limit: float
    unit: str = ""
    at_least: bool = False
    is_timed: bool = False

    def allows(self, value: float) -> bool:
        """Whether a value keeps it; what isn't a number doesn't."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        """As the table has it."""
        return f"{'at least' if self.at_least else 'at most'} {written(self.limit, self.unit)}"


@dataclass(frozen=True, slots=True)
class Found:
    """``figure``: in words. ``value``: what a bound is for, if there is one; ``of``: what it is a share or part of."""

    figure: str
    value: float | None = None
    unit: str = ""
    of: str = ""

    @property
    def result(self) -> str:
        """The value in words, "" if there is none."""
        return "" if self.value is None else f"{written(self.value, self.unit)} {self.of}".rstrip()


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. ``run`` raises NotRun where the machine lacks what it needs."""

    what: str
    run: Callable[[Bench], Found]
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Checks that belong together; after ``budget_s`` seconds no more of them are begun."""

    name: str
    budget_s: float
    checks: Sequence[Check]


def written(value: float, unit: str) -> str:
    """A number with its unit, to three digits."""
    if unit == "%":
        return f"{value * 100:.0f} %"
    return f"{value:.3g} {unit}".rstrip()
