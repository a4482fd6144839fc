"""Flags ask for servers, workloads and rounds; what can't be is refused in one line."""

from __future__ import annotations

import math

import pytest

from bench.flags import add_flags, settings_from
from bench.settings import Settings
from bench.target import Target
from bench.workload import NAMED, Workload
from kvferry.bench import run_bench
from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse


def settings_of(*argv: str, key: str = "") -> Settings:
    parser = new_parser("bench", "")
    add_flags(parser)
    return settings_from(parse(parser, argv), {"KVFERRY_BENCH_API_KEY": key})


def workload_of(*argv: str) -> Workload:
    (found,) = settings_of(*argv).workloads
    return found


def test_without_flags_one_local_server_is_measured_in_three_rounds_of_fresh_seeds() -> None:
    settings = settings_of()
    assert settings.targets == (Target("127.0.0.1:8000", "http://127.0.0.1:8000"),)
    assert settings.workloads == (Workload(name="custom", num_prompts=64, concurrency=16),)
    assert len(set(settings.seeds)) == 3


def test_servers_have_labels_and_take_the_address_that_openais_client_takes() -> None:
    settings = settings_of("--base-url", "split=http://h:1/v1/", "--base-url", "https://x.y/deep/")
    assert settings.targets == (Target("split", "http://h:1"), Target("x.y", "https://x.y/deep"))


def test_each_round_begins_with_the_next_server() -> None:
    settings = settings_of("--base-url=a=http://h:1", "--base-url=b=http://h:2", "--base-url=c=http://h:3")
    orders = ["".join(target.name for target in settings.in_turn(number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_named_workloads_have_the_published_shapes() -> None:
    assert settings_of("--workload", "a,b", "--workload", "f").workloads == (NAMED["a"], NAMED["b"], NAMED["f"])
    shapes = [(w.num_prompts, w.concurrency, w.prompt_len, w.output_len, w.shared_prefix_len) for w in NAMED.values()]
    assert shapes[:5] == [
        (16, 1, 128, 128, 0), (64, 16, 256, 128, 0), (96, 32, 512, 64, 0), (48, 16, 64, 256, 0), (64, 16, 32, 32, 1024),
    ]  # fmt: skip
    steady = NAMED["f"]
    assert (steady.num_streams, steady.duration_s, steady.long_prompt_len, steady.long_every_s) == (8, 60, 2000, 4)
    assert (steady.num_longs, NAMED["f0"].num_longs) == (15, 0)


def test_what_is_given_replaces_a_named_workloads_figure() -> None:
    found = workload_of("--workload", "b", "--num-prompts", "8", "--output_len", "4", "--concurrency", "2")
    assert (found.num_prompts, found.output_len, found.concurrency, found.prompt_len) == (8, 4, 2, 256)
    steady = workload_of("--workload=f", "--duration=9", "--long-every=2", "--concurrency=3")
    assert (steady.num_streams, steady.duration_s, steady.num_longs) == (3, 9, 5)


def test_a_rate_makes_the_loop_open() -> None:
    found = workload_of("--request-rate=5", "--duration=10", "--arrival=constant")
    assert (found.kind, found.rate_per_s, found.num_prompts, found.concurrency) == ("open", 5.0, 0, 0)
    assert workload_of("--request-rate=inf").rate_per_s == math.inf
    assert workload_of("--request-rate=5", "--duration=10", "--num-prompts=3").num_prompts == 3


def test_a_trace_is_an_open_loop_of_its_own() -> None:
    found = workload_of("--trace", "x/chat.jsonl", "--trace-speed", "4", "--trace-max-len", "900", "--duration", "60")
    assert found == Workload(name="chat", trace="x/chat.jsonl", trace_speed=4.0, trace_max_len=900, duration_s=60.0)
    assert found.title() == "a trace at 4 times its speed, its first 60 s, none longer than 900 tokens"


def test_the_key_comes_from_the_environment_and_is_not_shown() -> None:
    settings = settings_of(key="sk-secret")
    assert settings.api_key == "sk-secret"
    assert "sk-secret" not in repr(settings)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--workload", "z"], "--workload: there is no 'z'; there are a, b, c, d, e, f0, f"),
        (["--workload", "a,b", "--workload", "b"], "--workload: b is there twice"),
        (["--base-url", "ftp://h"], "is no http"),
        (["--base-url", "http://u:p@h"], "no credentials in URLs"),
        (["--base-url", "http://h/?x=1"], "more than a path"),
        (["--base-url", "http://h", "--base-url", "http://h/"], "two servers are called 'h'"),
        (["--duration", "3"], "need --request-rate"),
        (["--long-every", "3"], "goes with --workload f"),
        (["--request-rate", "2", "--concurrency", "3"], "give one of them"),
        (["--request-rate", "inf", "--duration", "3"], "needs --num-prompts"),
        (["--workload", "f", "--request-rate", "2"], "doesn't go with the steady streams of f"),
        (["--trace", "x", "--workload", "a"], "--workload doesn't go with --trace"),
        (["--trace-speed", "2"], "goes with --trace"),
        (["--num-prompts", "0"], "no whole number from 1"),
        (["--request-rate", "nan"], "not above 0"),
        (["--seeds", "1,1"], "used twice"),
        (["--seeds", "1,x"], "no whole number"),
        (["--extra-body", "[1]"], "no JSON object"),
        (["--json", "/nowhere/x.json"], "is no folder"),
        (["--json", "/"], "is a folder"),
        (["--request-rat", "3"], "did you mean --request-rate"),
        (["--tokenizer", "/nowhere"], "is no file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(argv: list[str], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_bench(argv)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
