"""Cores that may be used: the mask, less what the cgroup takes away."""

import os
from pathlib import Path

import pytest

from engine.cores import usable_cores


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("?", 8)],
)
def test_the_smaller_of_mask_and_quota_counts(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == expected


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "nothing") == len(os.sched_getaffinity(0))
