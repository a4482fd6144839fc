"""A trace is replayed with its times, its lengths and its shared prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.passages import Passages
from bench.requests import Requests
from bench.settings import Settings
from bench.trace import Row, read_trace
from bench.workload import Workload

MOONCAKE = """\
{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 1500, "input_length": 1300, "output_length": 6, "hash_ids": [1, 2, 4]}

{"timestamp": 1200, "input_length": 30, "output_length": 7, "hash_ids": [9]}
{"timestamp": 2000, "input_length": 30, "output_length": 0, "hash_ids": [9]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,48,10
2023-11-16 18:17:04.0319600,31,8"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_json_lines_are_read_in_the_order_of_time_without_requests_that_ask_for_nothing(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path / "m.jsonl", MOONCAKE))
    assert [(round(row.at_s, 6), row.prompt_len, row.output_len) for row in rows] == [
        (0.0, 1100, 5), (0.2, 30, 7), (0.5, 1300, 6),
    ]  # fmt: skip
    assert rows[0].blocks == (1, 2, 3)


def test_csv_has_times_of_day_with_seven_decimals(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path / "a.csv", AZURE))
    assert first == Row(0.0, 48, 10)
    assert (round(second.at_s, 5), second.prompt_len, second.output_len) == (0.052, 31, 8)


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "{broken", '{"timestamp": 1}', "\x00"],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(BenchError, match=r"\A--trace: [^\n]*\Z"):
        read_trace(written(tmp_path / "x", text))


def test_replayed_prompts_have_their_lengths_and_share_what_the_trace_shares(
    passages: Passages, tmp_path: Path
) -> None:
    path = written(tmp_path / "m.jsonl", MOONCAKE)
    workload = Workload(name="m", trace=str(path), trace_speed=2.0)
    asks = Requests(Settings(targets=(), workloads=(), seeds=()), passages, "m", workload, "s", 1).asks()
    prompts = [json.loads(ask.body)["prompt"] for ask in asks]
    ids = [passages._encode(prompt).ids for prompt in prompts]
    assert [len(each) for each in ids] == [1100, 30, 1300]
    assert ids[0][:1000] == ids[2][:1000]
    assert ids[0][1030:1100] != ids[2][1030:1100]
    assert [ask.due_s for ask in asks] == pytest.approx([0.0, 0.1, 0.25])
    assert [ask.output_len for ask in asks] == [5, 7, 6]


@pytest.mark.parametrize(
    ("about", "lens"),
    [({"trace_max_len": 1200}, [5, 7]), ({"duration_s": 0.4}, [5, 7]), ({"num_prompts": 1}, [5])],
)
def test_a_replay_can_be_cut(passages: Passages, tmp_path: Path, about: dict[str, float], lens: list[int]) -> None:
    path = written(tmp_path / "m.jsonl", MOONCAKE)
    workload = Workload(name="m", trace=str(path), **about)  # type: ignore[arg-type]
    asks = Requests(Settings(targets=(), workloads=(), seeds=()), passages, "m", workload, "s", 1).asks()
    assert [ask.output_len for ask in asks] == lens


def test_a_replay_of_which_nothing_is_left_is_refused(passages: Passages, tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", MOONCAKE)
    workload = Workload(name="m", trace=str(path), trace_max_len=2)
    with pytest.raises(BenchError, match="0 requests are left"):
        Requests(Settings(targets=(), workloads=(), seeds=()), passages, "m", workload, "s", 1).asks()
