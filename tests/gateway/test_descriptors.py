"""A gateway has as many file descriptors as its connections need, or says that it hasn't."""

import resource

import pytest

from gateway import descriptors
from gateway.descriptors import OWN, make_room
from runtime.logs import get_logger

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "new_soft", "warns"),
    [
        (1024, 4096, 2000 + OWN, False),
        (1024, UNLIMITED, 2000 + OWN, False),
        (1024, 2000, 2000, True),
        (4096, 4096, None, False),
        (UNLIMITED, UNLIMITED, None, False),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed_and_possible(
    soft: int, hard: int, new_soft: int | None, warns: bool,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(descriptors, "log", get_logger("gateway.descriptors"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    make_room(2000)
    assert given == ([] if new_soft is None else [(new_soft, hard)])
    assert [record.getMessage() for record in caplog.records] == (["few_descriptors"] if warns else [])
