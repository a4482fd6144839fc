"""A benchmark of several servers: rounds, order, warm-up, and what its reports say."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.campaign import Campaign, Run
from bench.errors import BenchError
from bench.figures import Limits
from bench.loop import run_loop
from bench.passages import Passages
from bench.plots import write_plots
from bench.progress import Progress
from bench.report import report
from bench.results import results, write_results
from bench.settings import CHAT_ENDPOINT, Settings
from bench.stub import Delays, Served, Stub
from bench.summary import summarize
from bench.target import Target
from bench.workload import Workload

QUICK = Delays(ttft_s=0.02, gap01_s=0.005, gap_s=0.005, slow_gap_s=0.005)
SLOW = Delays(ttft_s=0.06, gap01_s=0.015, gap_s=0.015, slow_gap_s=0.015)
SMALL = Workload(name="small", num_prompts=4, concurrency=2, prompt_len=12, output_len=6)
STEADY = Workload(
    name="flow", prompt_len=8, output_len=500, num_streams=2, duration_s=0.2,
    long_prompt_len=40, long_output_len=2, long_every_s=0.1,
)  # fmt: skip


class Refusing(Stub):
    """Has no room for anyone."""

    async def answer(self, served: Served, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def settings_of(*stubs: Stub, seeds: tuple[int, ...] = (1,), **about: object) -> Settings:
    targets = tuple(Target(f"s{number}", stub.base_url) for number, stub in enumerate(stubs))
    values: dict[str, object] = {"workloads": (SMALL,), "num_warmups": 0, **about}
    return Settings(targets=targets, seeds=seeds, **values)  # type: ignore[arg-type]


def runs_of(settings: Settings, passages: Passages) -> list[Run]:
    progress = Progress(io.StringIO(), len(settings.seeds))
    run_loop(Campaign(settings, passages, progress.listener()).run())
    return progress.runs


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.campaign.SETTLE_S", 0.0)


def test_servers_are_measured_in_turn_and_compared_round_by_round(passages: Passages) -> None:
    with Stub(QUICK) as quick, Stub(SLOW) as slow:
        settings = settings_of(quick, slow, seeds=(1, 2, 3))
        runs = runs_of(settings, passages)
    assert [(run.target.name, run.seed) for run in runs] == [
        ("s0", 1), ("s1", 1), ("s1", 2), ("s0", 2), ("s0", 3), ("s1", 3),
    ]  # fmt: skip
    first, second = summarize(runs)
    assert first.ratios == {}
    for label, ratio in (("TTFT p50, ms", 3.0), ("ITL p50, ms", 3.0), ("output tokens/s", 1 / 3)):
        spread = second.ratios[label]
        assert spread.median == pytest.approx(ratio, rel=0.4)
        assert spread.least <= spread.median <= spread.most
    text = report(runs, settings)
    assert "### small: 4 requests, 2 at a time, 12 tokens in, 6 out" in text
    assert "| ratio to s0 | s1 |" in text


def test_every_request_has_a_prompt_of_its_own_in_exactly_the_asked_length(passages: Passages) -> None:
    with Stub(QUICK) as stub, Stub(QUICK) as other:
        runs_of(settings_of(stub, other, seeds=(1, 2)), passages)
        prompts = [str(each.body["prompt"]) for each in stub.served + other.served]
    assert {passages.count(prompt) for prompt in prompts} == {12}
    assert len(set(prompts)) == 16


def test_warm_up_is_sent_and_not_counted(passages: Passages) -> None:
    with Stub(QUICK) as stub:
        (run,) = runs_of(settings_of(stub, num_warmups=3), passages)
    assert len(stub.served) == 3 + 4
    assert run.figures.num_requests == 4


def test_a_shared_prefix_is_primed_first_and_stands_in_front_of_all(passages: Passages) -> None:
    workload = Workload(name="e", num_prompts=3, concurrency=1, prompt_len=8, output_len=2, shared_prefix_len=50)
    with Stub(QUICK) as stub:
        (run,) = runs_of(settings_of(stub, workloads=(workload,)), passages)
    ids = [passages._encode(each.body["prompt"]).ids for each in stub.served]
    assert {len(each) for each in ids} == {58}
    assert len({tuple(each[:50]) for each in ids}) == 1
    assert run.figures.num_requests == 3


def test_a_failed_warm_up_ends_it_with_the_servers_words(passages: Passages) -> None:
    with Refusing(QUICK) as stub, pytest.raises(BenchError, match="s0: the warm-up failed: http_429"):
        runs_of(settings_of(stub, num_warmups=1), passages)


def test_a_server_that_is_not_there_ends_it_in_one_line(passages: Passages) -> None:
    with Stub(QUICK) as stub:
        settings = settings_of(stub)
    with pytest.raises(BenchError, match="/v1/models doesn't answer"):
        runs_of(settings, passages)


def test_chats_are_measured_too(passages: Passages) -> None:
    with Stub(QUICK) as stub:
        (run,) = runs_of(settings_of(stub, endpoint=CHAT_ENDPOINT, extra_body={"top_k": 1}), passages)
    assert run.figures.num_ok == 4
    assert stub.served[0].body["messages"][0]["role"] == "user"
    assert stub.served[0].body["top_k"] == 1


def test_reports_hide_no_failure(passages: Passages) -> None:
    with Refusing(QUICK) as stub:
        settings = settings_of(stub, limits=Limits(ttft_ms=100))
        text = report(runs_of(settings, passages), settings)
    assert "| 4 | 0 |" in text
    assert "- s0: failed requests: http_429 4 (of 4)" in text
    assert "0 (0 to 0), 0% or more" in text


def test_a_reader_is_told_when_prompts_have_another_length_than_meant(passages: Passages) -> None:
    workload = Workload(name="x", num_prompts=1, concurrency=1, prompt_len=100, output_len=2)
    with Stub(QUICK) as stub:
        settings = settings_of(stub, workloads=(workload,))
        text = report(runs_of(settings, passages), settings)
    assert "it counts 1 tokens a prompt where 100 were meant" in text


def test_a_reader_is_told_of_events_with_several_tokens_and_of_streams_that_ran_dry(passages: Passages) -> None:
    with Stub(QUICK) as stub:
        settings = settings_of(stub)
        (run,) = runs_of(settings, passages)
    figures = replace(run.figures, tokens_per_event=1.8, num_dry=2, prompt_tokens=0)
    text = report([replace(run, figures=figures)], settings)
    assert "its events carry up to 1.80 tokens" in text
    assert "2 streams had no requests left" in text


def test_the_json_file_has_every_run_and_request_with_settings_but_no_key(passages: Passages, tmp_path: Path) -> None:
    with Stub(QUICK) as stub, Stub(QUICK) as other:
        burst = Workload(name="burst", num_prompts=2, rate_per_s=float("inf"), prompt_len=4, output_len=2)
        settings = settings_of(stub, other, seeds=(1, 2), workloads=(SMALL, burst), api_key="sk-secret")
        runs = runs_of(settings, passages)
    path = tmp_path / "out.json"
    write_results(path, results(runs, settings, {"commit": "abc"}, "now"))
    text = path.read_text()
    assert "sk-secret" not in text
    assert str(stub.served[0].body["prompt"]) not in text
    found = json.loads(text, parse_constant=pytest.fail)
    assert (len(found["runs"]), len(found["summary"])) == (8, 4)
    assert found["runs"][0]["figures"]["output_tokens"] == 24
    assert len(found["runs"][0]["requests"]) == 4
    assert found["settings"]["workloads"][1]["rate_per_s"] == "inf"


def test_plots_are_made_of_every_workload(passages: Passages, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with Stub(QUICK) as stub, Stub(QUICK) as other:
        runs = runs_of(settings_of(stub, other, workloads=(SMALL, STEADY)), passages)
    files = write_plots(tmp_path / "plots", runs)
    assert [file.name for file in files] == ["small.png", "flow.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


class Terminal(io.StringIO):
    """Looks like one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_a_line_a_run(passages: Passages) -> None:
    shown = {}
    with Stub(QUICK) as stub:
        for stream in (io.StringIO(), Terminal()):
            progress = Progress(stream, 1)
            run_loop(Campaign(settings_of(stub), passages, progress.listener()).run())
            shown[stream.isatty()] = stream.getvalue()
    assert shown[False].count("\n") == 1
    assert "small s0 seed 1:" in shown[False]
    assert "\x1b" not in shown[False]
    assert "[....." in shown[True]
    assert "small s0 1/1" in shown[True]
