"""Figures measured over real sockets are right within two in a hundred."""

from __future__ import annotations

import pytest

from bench.passages import Passages
from bench.self_check import TOLERANCE, Check, as_text, self_check, worst


@pytest.mark.quiet
def test_the_generators_figures_are_those_of_a_server_that_notes_what_it_sends(passages: Passages) -> None:
    checks = self_check(passages)
    assert len(checks) == 16
    steady = [check for check in checks if "p50" in check.label or "tokens/s" in check.label]
    assert worst(steady) <= TOLERANCE, as_text(checks)
    # one event that a busy machine delays is a whole p99; that percentiles are exact is shown by `test_figures.py`
    assert worst(checks) <= 10 * TOLERANCE, as_text(checks)


def test_a_figure_that_is_off_is_called_wrong() -> None:
    assert "WRONG" in as_text([Check("TTFT p50, ms", 103.0, 100.0)])
    assert "WRONG" not in as_text([Check("TTFT p50, ms", 99.0, 100.0)])
