"""The table of what was found, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_check.check import Check, Found

MET, MISSED, FAILED, NOT_RUN, LEFT_OUT = "met", "**missed**", "**failed**", "not run", "**left out**"
BAD = (MISSED, FAILED, LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Line:
    """One check's outcome: ``verdict`` is one of those above, or "" where nothing is asked; ``why`` is about it."""

    section: str
    check: Check
    verdict: str
    found: Found | None = None
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the whole isn't right with it."""
        return self.verdict in BAD

    def __str__(self) -> str:
        """One row."""
        figure, result = (self.found.figure, self.found.result) if self.found else ("", "")
        verdict = f"{self.verdict}: {self.why}" if self.why else self.verdict
        cells = (self.section, self.check.what, figure, result, str(self.check.bound or ""), verdict)
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def judged(section: str, check: Check, found: Found, *, is_tiny: bool) -> Line:
    """Compare with the bound, if there is one; times aren't judged where everything ``is_tiny``."""
    if check.bound is None or found.value is None or (is_tiny and check.bound.is_timed):
        return Line(section, check, "", found)
    return Line(section, check, MET if check.bound.allows(found.value) else MISSED, found)


def table(facts: Sequence[tuple[str, str]], lines: Sequence[Line]) -> str:
    """What was measured where, then a row for each check."""
    rows = ["| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts), ""]
    rows += ["| | check | figure | result | bound | |", "|---|---|---|---|---|---|", *map(str, lines)]
    return "\n".join(rows) + "\n"
