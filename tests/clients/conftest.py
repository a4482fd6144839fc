"""What a run of all clients leaves behind."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator

import pytest

from tests.clients.setup import RESULTS


@pytest.fixture(scope="session")
def results() -> Iterator[list[str]]:
    """Cells that are green; kept for `scripts/write_compatibility.py`."""
    green: list[str] = []
    yield green
    found = {"date": datetime.date.today().isoformat(), "green": green}
    RESULTS.write_text(json.dumps(found), encoding="utf-8")
