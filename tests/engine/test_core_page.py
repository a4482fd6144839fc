"""Workers of one host share its cores by who has work; nobody who is gone or stuck keeps one from the others."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import core_page
from engine.core_page import CorePage
from engine.prompt_time import QUEUE

NUM_CORES = 8
OTHER = """
import sys
from pathlib import Path
from engine.core_page import CorePage
page = CorePage(Path(sys.argv[1]), 8, prefill=sys.argv[2] == "prefill")
print(page.begin(), flush=True)
sys.stdin.readline()
page.end()
page.rest()
print("rests", flush=True)
sys.stdin.readline()
"""


class Other:
    """A worker in a process of its own, in the middle of a step."""

    def __init__(self, path: Path, kind: str = "decode") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        )
        self.num_threads = int(self.said())

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Clock:
    """Stands for the clock and for sleeping: whoever sleeps lets that much time pass."""

    def __init__(self) -> None:
        self.now = 10**12
        self.slept = 0.0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(core_page.time, "monotonic_ns", made.monotonic_ns)
    monkeypatch.setattr(core_page.time, "sleep", made.sleep)
    return made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[CorePage]:
    made = CorePage(tmp_path / "cores", NUM_CORES)
    yield made
    made.close()


@pytest.fixture
def prefill(tmp_path: Path, page: CorePage) -> Iterator[CorePage]:
    """A prefill worker's place on the same page."""
    made = CorePage(tmp_path / "cores", NUM_CORES, prefill=True)
    if made._slot == page._slot:
        made._slot += 1  # locks are a process's: two pages of one process would have the same slot
    yield made
    made.close()


def compute(page: CorePage, clock: Clock, nanoseconds: int) -> None:
    """The rest of a step that has begun."""
    clock.now += nanoseconds
    page.layers_done()
    page.end()


def begin(page: CorePage) -> int:
    """Begin a step once it may."""
    while seconds := page.pause():
        core_page.time.sleep(seconds)
    return page.begin()


def claimed(page: CorePage) -> int:
    """What a kernel reads of the page while it runs."""
    claims = page.claims
    words = (ctypes.c_int64 * (claims.count * claims.stride - claims.stride + 1)).from_address(claims.address)
    return sum(words[:: claims.stride])


def test_who_is_alone_has_all_cores(page: CorePage) -> None:
    assert page.begin() == NUM_CORES
    page.rest()
    assert page.begin() == NUM_CORES


def test_two_that_have_work_share_until_one_rests(page: CorePage, tmp_path: Path) -> None:
    other = Other(tmp_path / "cores")
    try:
        assert other.num_threads == NUM_CORES
        assert page.begin() == NUM_CORES // 2
        page.end()
        other.go_on()
        assert other.said() == "rests\n"
        assert page.begin() == NUM_CORES
    finally:
        other.end()


def test_prefill_has_all_cores_but_those_that_a_decode_step_claims(page: CorePage, tmp_path: Path) -> None:
    other = Other(tmp_path / "cores", "prefill")
    try:
        assert other.num_threads == NUM_CORES
        assert claimed(page) == 0
        assert page.begin() == NUM_CORES // 2
        assert claimed(page) == NUM_CORES // 2
        page.end()
        assert claimed(page) == 0
    finally:
        other.end()


def test_a_decode_step_beside_prefill_begins_when_its_streams_gap_is_due(
    clock: Clock, page: CorePage, prefill: CorePage
) -> None:
    begin(page)
    compute(page, clock, 15_000_000)
    prefill.begin()
    begin(page)
    assert clock.slept == pytest.approx(0.035, abs=0.001)
    page.end()  # nothing was computed: the streams have waited long enough
    begin(page)
    assert clock.slept == pytest.approx(0.035, abs=0.001)
    compute(page, clock, 200_000_000)
    clock.slept = 0.0
    prefill.layers_done()
    begin(page)
    assert clock.slept == pytest.approx(0.1, abs=0.001)  # prefill isn't starved by long steps
    page.end()
    clock.slept = 0.0
    prefill.rest()
    begin(page)
    assert clock.slept == 0.0


def test_a_queue_of_prompts_has_more_time_than_a_streams_gap_leaves(
    clock: Clock, page: CorePage, prefill: CorePage
) -> None:
    page.begin()
    compute(page, clock, 30_000_000)
    prefill.begin(QUEUE)
    begin(page)
    assert clock.slept == pytest.approx(0.09, abs=0.001)
    compute(page, clock, 30_000_000)
    clock.slept = 0.0
    prefill.begin(1)
    begin(page)
    assert clock.slept == pytest.approx(0.02, abs=0.001)


def test_beside_prefill_all_cores_are_claimed_where_they_all_help(
    clock: Clock, page: CorePage, prefill: CorePage
) -> None:
    prefill.begin(1)
    threads = []
    for _ in range(10):
        threads.append(begin(page))
        assert prefill.num_claimed() == claimed(prefill) == threads[-1]
        clock.now += 160_000_000 // threads[-1]
        page.layers_done()
        prefill.layers_done()
        page.end()
    assert threads == [NUM_CORES // 2] * 3 + [NUM_CORES] * 7
    prefill.rest()
    assert page.begin() == NUM_CORES


def test_a_first_step_does_not_wait(clock: Clock, page: CorePage, prefill: CorePage) -> None:
    prefill.begin()
    begin(page)
    assert clock.slept == 0.0


def test_after_a_rest_no_stream_waits(clock: Clock, page: CorePage, prefill: CorePage) -> None:
    begin(page)
    page.layers_done()
    page.end()
    page.rest()
    prefill.begin()
    begin(page)
    assert clock.slept == 0.0


def test_signs_of_work_from_before_the_machine_started_count_nothing(
    clock: Clock, page: CorePage, prefill: CorePage
) -> None:
    clock.now *= 2
    page.begin()
    clock.now //= 2
    assert prefill.begin() == NUM_CORES
    assert prefill.layers_done() == claimed(prefill) == 0


def test_a_claim_of_one_that_was_killed_in_a_step_is_struck_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(tmp_path / "cores")
    prefill = CorePage(tmp_path / "cores", NUM_CORES, prefill=True)
    other.end()
    prefill.begin()
    assert prefill.layers_done() == claimed(prefill) == NUM_CORES
    now = core_page.time.monotonic_ns()
    monkeypatch.setattr("time.monotonic_ns", lambda: now + core_page.STALE_NS + 1)
    assert prefill.layers_done() == claimed(prefill) == 0
    prefill.close()


def test_who_was_killed_or_is_stuck_in_a_step_keeps_no_core(
    page: CorePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(tmp_path / "cores")
    other.end()
    assert page.begin() == NUM_CORES // 2  # for as long as a step may take
    page.end()
    now = core_page.time.monotonic_ns()
    monkeypatch.setattr("time.monotonic_ns", lambda: now + core_page.STALE_NS + 1)
    assert page.begin() == NUM_CORES


def test_the_slot_of_one_that_was_killed_is_taken_again(
    page: CorePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_page, "NUM_SLOTS", 2)
    Other(tmp_path / "cores").end()
    other = Other(tmp_path / "cores")
    other.end()
    assert other.num_threads == NUM_CORES


def test_nobody_has_less_than_one_thread(page: CorePage, tmp_path: Path) -> None:
    others = [Other(tmp_path / "cores") for _ in range(3)]
    try:
        assert CorePage(tmp_path / "cores", 2).begin() == 1
    finally:
        for other in others:
            other.end()


def test_a_page_without_a_slot_left_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_page, "NUM_SLOTS", 0)
    monkeypatch.setattr(core_page.mmap, "mmap", lambda *argv: pytest.fail("nothing to map"))
    with pytest.raises(OSError, match="share the page already"):
        CorePage(tmp_path / "cores", 2)
