"""The flags of a benchmark, and what they ask for."""

import argparse
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.arrivals import MAX_ARRIVALS
from bench.errors import BenchError
from bench.figures import Limits
from bench.settings import ENDPOINTS, KEY_VARIABLE, Settings
from bench.target import parse_targets
from bench.values import count, json_object, positive, rate, seed_list
from bench.workload import CONSTANT, NAMED, POISSON, Workload

DEFAULT_URL = "http://127.0.0.1:8000"
NUM_FRESH_SEEDS = 3
_SEED_RANGE = 1_000_000
MAX_LEN = 1_000_000
MAX_CONCURRENCY = 10_000
_CUSTOM = Workload(name="custom", num_prompts=64, concurrency=16)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags; each has a default of its own, whatever the parser's is."""
    _add_servers(parser.add_argument_group("servers and prompts"))
    _add_load(parser.add_argument_group("load (over a named workload, what is given replaces its figure)"))
    _add_measuring(parser.add_argument_group("measuring and reports"))


def _add_servers(group: Any) -> None:
    group.add_argument(
        "--base-url",
        action="append",
        default=None,
        metavar="[NAME=]URL",
        help=f"a server; several are measured in turn and compared with the first [default {DEFAULT_URL}]",
    )
    group.add_argument("--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0], help=f"[default {ENDPOINTS[0]}]")
    group.add_argument("--model", default="", help="name to ask for [default: the first that the server lists]")
    group.add_argument(
        "--tokenizer",
        type=Path,
        default=None,
        metavar="PATH",
        help="tokenizer.json, or a folder with one, to cut prompts by [default: the bundled model's]",
    )
    group.add_argument(
        "--dataset",
        type=Path,
        default=None,
        metavar="FILE",
        help="text to cut prompts from [default: the reference texts inside CPython]",
    )
    group.add_argument("--extra-body", type=json_object, default=None, metavar="JSON", help="added to each request")


def _add_load(group: Any) -> None:
    group.add_argument(
        "--workload",
        action="append",
        default=None,
        metavar="NAMES",
        help=f"named workloads, with commas ({','.join(NAMED)}; see docs/bench.md)",
    )
    group.add_argument("--num-prompts", type=count(1, MAX_ARRIVALS), default=None, help="[default 64]")
    group.add_argument(
        "--concurrency",
        type=count(1, MAX_CONCURRENCY),
        default=None,
        help="closed loop: requests under way at any time [default 16]",
    )
    group.add_argument(
        "--request-rate",
        type=rate,
        default=None,
        metavar="PER_SECOND",
        help="open loop: requests arrive at this rate whether or not others are done; inf: all at once",
    )
    group.add_argument("--arrival", choices=(POISSON, CONSTANT), default=None, help=f"open loop [default {POISSON}]")
    group.add_argument("--duration", type=positive, default=None, help="seconds: open loop and steady streams")
    group.add_argument("--prompt-len", type=count(1, MAX_LEN), default=None, help="tokens [default 256]")
    group.add_argument("--output-len", type=count(1, MAX_LEN), default=None, help="tokens [default 128]")
    group.add_argument(
        "--shared-prefix-len",
        type=count(0, MAX_LEN),
        default=None,
        help="tokens that stand in front of every prompt, the same for all [default 0]",
    )
    group.add_argument("--trace", type=Path, default=None, metavar="FILE", help="replay a trace (see docs/bench.md)")
    group.add_argument("--trace-speed", type=positive, default=None, help="times as fast [default 1]")
    group.add_argument(
        "--trace-max-len", type=count(2, MAX_LEN), default=None, help="leave out requests with more tokens, in and out"
    )
    group.add_argument("--long-every", type=positive, default=None, help="seconds between the long prompts of f")


def _add_measuring(group: Any) -> None:
    group.add_argument(
        "--seeds",
        type=seed_list,
        default=(),
        metavar="N,N,...",
        help=f"one round each; a server may have the prompts of a used seed in its cache [default: {NUM_FRESH_SEEDS} "
        "fresh ones]",
    )
    group.add_argument("--num-warmups", type=count(0, 1000), default=4, help="requests before, not counted")
    group.add_argument("--ttft-limit-ms", type=positive, default=0.0, help="goodput: limit of the time to first token")
    group.add_argument("--itl-limit-ms", type=positive, default=0.0, help="goodput: limit of a request's p99 gap")
    group.add_argument("--request-timeout", type=positive, default=600.0, help="seconds [default 600]")
    group.add_argument("--json", type=Path, default=None, metavar="FILE", help="write every run with its settings")
    group.add_argument("--plot", type=Path, default=None, metavar="FOLDER", help="write a PNG a workload")
    group.add_argument(
        "--self-check",
        action="store_true",
        default=False,
        help="measure a built-in server of known delays instead, and compare",
    )


def settings_from(flags: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Return what the flags ask for. Raises `BenchError` with one line."""
    return Settings(
        targets=parse_targets(flags.base_url or [DEFAULT_URL]),
        workloads=_workloads(flags),
        seeds=flags.seeds or fresh_seeds(),
        endpoint=flags.endpoint,
        model=flags.model,
        tokenizer=flags.tokenizer,
        dataset=flags.dataset,
        num_warmups=flags.num_warmups,
        limits=Limits(flags.ttft_limit_ms, flags.itl_limit_ms),
        request_timeout_s=flags.request_timeout,
        extra_body=flags.extra_body or {},
        json_path=flags.json,
        plot_folder=flags.plot,
        api_key=environ.get(KEY_VARIABLE, ""),
    )


def fresh_seeds() -> tuple[int, ...]:
    """Return seeds that no earlier benchmark had, or hardly: no server has their prompts in its cache."""
    first = time.time_ns() // 1_000_000 % _SEED_RANGE
    return tuple(first + number for number in range(NUM_FRESH_SEEDS))


def _workloads(flags: argparse.Namespace) -> tuple[Workload, ...]:
    names = [name for word in flags.workload or () for name in word.split(",") if name]
    if unknown := [name for name in names if name not in NAMED]:
        raise BenchError(f"--workload: there is no {unknown[0]!r:.40}; there are {', '.join(NAMED)}")
    if doubled := {name for name in names if names.count(name) > 1}:
        raise BenchError(f"--workload: {doubled.pop()} is there twice; --seeds says how many rounds there are")
    if flags.trace:
        return (_replayed(flags),)
    for name in ("trace_speed", "trace_max_len"):
        _refuse(flags, name, "goes with --trace")
    return tuple(_changed(NAMED[name], flags) for name in names) or (_changed(_CUSTOM, flags),)


def _replayed(flags: argparse.Namespace) -> Workload:
    names = "workload concurrency request_rate arrival prompt_len output_len shared_prefix_len long_every"
    for name in names.split():
        _refuse(flags, name, "doesn't go with --trace")
    return Workload(
        name=flags.trace.stem,
        trace=str(flags.trace),
        trace_speed=flags.trace_speed or 1.0,
        trace_max_len=flags.trace_max_len or 0,
        num_prompts=flags.num_prompts or 0,
        duration_s=flags.duration or 0.0,
    )


def _refuse(flags: argparse.Namespace, name: str, why: str) -> None:
    if getattr(flags, name) is not None:
        raise BenchError(f"--{name.replace('_', '-')} {why}")


def _changed(workload: Workload, flags: argparse.Namespace) -> Workload:
    if workload.kind == "steady":
        return _changed_steady(workload, flags)
    _refuse(flags, "long_every", "goes with --workload f")
    lens = {name: getattr(flags, name) for name in ("prompt_len", "output_len", "shared_prefix_len", "num_prompts")}
    workload = replace(workload, **{name: value for name, value in lens.items() if value is not None})
    if flags.request_rate is None:
        if flags.duration is not None or flags.arrival is not None:
            raise BenchError("--duration and --arrival need --request-rate, or --workload f")
        return replace(workload, concurrency=flags.concurrency or workload.concurrency)
    return _opened(workload, flags)


def _opened(workload: Workload, flags: argparse.Namespace) -> Workload:
    if flags.concurrency is not None:
        raise BenchError("--concurrency is a closed loop, --request-rate an open one; give one of them")
    if flags.duration is not None and flags.num_prompts is None:
        if math.isinf(flags.request_rate):
            raise BenchError("--request-rate inf needs --num-prompts, not --duration")
        workload = replace(workload, num_prompts=0)
    return replace(
        workload,
        concurrency=0,
        rate_per_s=flags.request_rate,
        arrival=flags.arrival or POISSON,
        duration_s=flags.duration or 0.0,
    )


def _changed_steady(workload: Workload, flags: argparse.Namespace) -> Workload:
    for name in ("num_prompts", "request_rate", "arrival", "shared_prefix_len"):
        _refuse(flags, name, f"doesn't go with the steady streams of {workload.name}")
    return replace(
        workload,
        prompt_len=flags.prompt_len or workload.prompt_len,
        output_len=flags.output_len or workload.output_len,
        num_streams=flags.concurrency or workload.num_streams,
        duration_s=flags.duration or workload.duration_s,
        long_every_s=(flags.long_every or workload.long_every_s) if workload.long_every_s else 0.0,
    )
