"""Figures of known answers are exactly what their definitions say."""

from __future__ import annotations

import statistics

import pytest

from bench.answer import Answer
from bench.figures import Limits, Sent, figures_of
from bench.quantiles import quantiles_ms


def answer(sent_s: float, *times: float, end_s: float | None = None, error: str = "", want_len: int = 0) -> Answer:
    return Answer(
        sent_s=sent_s,
        end_s=(times[-1] if times else sent_s) if end_s is None else end_s,
        lag_s=0.0,
        times=times,
        want_len=want_len or len(times),
        prompt_tokens=10,
        cached_tokens=4,
        output_tokens=len(times),
        has_usage=True,
        finish_reason="length" if end_s is None else "",
        error=error,
        detail="",
        path="split",
        text="",
    )


FIRST = answer(0.0, 1.0, 1.5, 1.6, 1.7)
SECOND = answer(0.0, 2.0, 2.1, 2.2, 3.2)
BROKEN = answer(0.0, 0.5, error="http_503")
SENT = Sent((FIRST, SECOND, BROKEN), 0.0, 4.0)


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_percentiles_are_those_of_the_standard_library(count: int) -> None:
    times = [((i * 37) % count) ** 2 / 1000 for i in range(count)]
    cuts = statistics.quantiles((each * 1000 for each in times), n=100, method="inclusive")
    found = quantiles_ms(times)
    assert found is not None
    assert (found.p50, found.p90, found.p99) == pytest.approx((cuts[49], cuts[89], cuts[98]))
    assert (found.count, found.max) == (count, max(times) * 1000)


def test_one_time_is_all_its_percentiles_and_none_has_none() -> None:
    found = quantiles_ms([0.25])
    assert found is not None
    assert {found.mean, found.p50, found.p90, found.p99, found.max} == {250.0}
    assert quantiles_ms([]) is None


def test_figures_of_whole_requests() -> None:
    found = figures_of(SENT, Limits())
    assert found.ttft is not None
    assert found.ttft.p50 == pytest.approx(1500)
    assert found.gap01 is not None
    assert found.gap01.p50 == pytest.approx(300)
    assert found.itl is not None
    assert [found.itl.count, found.itl.max] == pytest.approx([6, 1000])
    assert found.tpot is not None
    assert [found.tpot.p50, found.tpot.count] == pytest.approx([(700 / 3 + 1200 / 3) / 2, 2])
    assert found.e2e is not None
    assert found.e2e.max == pytest.approx(3200)
    assert (found.output_tokens_per_s, found.total_tokens_per_s, found.requests_per_s) == (2.0, 7.0, 0.5)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (20, 8, 8)


def test_a_failed_request_is_counted_by_its_code_and_in_no_time() -> None:
    found = figures_of(SENT, Limits())
    assert (found.num_requests, found.num_ok, found.errors) == (3, 2, {"http_503": 1})
    assert found.paths == {"split": 3}


def test_a_short_answer_is_counted_apart() -> None:
    sent = Sent((FIRST, answer(0.0, 1.0, 2.0, want_len=5)), 0.0, 2.0)
    found = figures_of(sent, Limits(ttft_ms=5000))
    assert (found.num_ok, found.num_short, found.goodput_share) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (Limits(), 2 / 3),
        (Limits(ttft_ms=1000), 1 / 3),
        (Limits(ttft_ms=999), 0),
        (Limits(itl_ms=500), 1 / 3),
        (Limits(itl_ms=490), 0),
        (Limits(ttft_ms=5000, itl_ms=1000), 2 / 3),
    ],
)
def test_a_good_request_keeps_both_limits_in_99_of_100_gaps(limits: Limits, share: float) -> None:
    found = figures_of(SENT, limits)
    assert found.goodput_share == pytest.approx(share)
    assert found.goodput_per_s == pytest.approx(share * 3 / 4)


def test_one_slow_gap_in_two_hundred_does_not_make_a_request_bad() -> None:
    times = [1 + i / 100 for i in range(200)]
    slow = answer(0.0, *times, times[-1] + 3)
    assert Limits(itl_ms=20).kept_by(slow)
    assert not Limits(itl_ms=20).kept_by(answer(0.0, *times, times[-1] + 3, times[-1] + 6, times[-1] + 9))


def test_of_steady_streams_only_what_arrives_in_the_window_counts() -> None:
    flowing = answer(0.0, 9.0, 9.9, 10.2, 10.4, 11.0, 12.5, end_s=0.0)
    silent = answer(0.0, 9.5, 10.5, end_s=0.0)
    between = answer(0.0, 10.0, 10.1)
    long = answer(10.0, 11.5, 11.6)
    found = figures_of(Sent((flowing, silent, between), 10.0, 12.0, longs=(long,), is_window=True), Limits(ttft_ms=1))
    assert found.output_tokens_per_s == pytest.approx((3 + 1 + 2) / 2)
    assert found.itl is not None
    # 0.3 ends in the window and counts whole; each silent stream has a gap up to the window's end
    gaps = [0.3, 0.2, 0.6, 1.0, 1.5, 0.1]
    assert [found.itl.count, found.itl.mean] == pytest.approx([len(gaps), sum(gaps) / len(gaps) * 1000])
    assert found.ttft is not None
    assert [found.ttft.count, found.ttft.p50] == pytest.approx([1, 1500])
    assert (found.num_longs, found.num_longs_started, found.num_longs_done) == (1, 1, 1)
    assert (found.num_unfinished, found.total_tokens_per_s, found.goodput_per_s) == (2, None, None)
    assert (found.gap01, found.tpot, found.e2e) == (None, None, None)


def test_a_steady_stream_that_broke_is_not_silent_from_then_on() -> None:
    broken = answer(0.0, 10.5, 10.7, end_s=10.8, error="broken")
    found = figures_of(Sent((broken,), 10.0, 20.0, is_window=True), Limits())
    assert found.itl is not None
    assert [found.itl.count, found.itl.max] == pytest.approx([1, 200])
    assert found.errors == {"broken": 1}
