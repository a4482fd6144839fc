"""`kvferry bench`: the load generator of the room `bench`, with this command line's manners."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvferry.errors import StartError, UsageError
from kvferry.flags import new_parser, parse

_ABOUT = (
    "Measure one or several OpenAI-compatible servers under load: times to first token, gaps, throughput. "
    "The key for servers that want one: KVFERRY_BENCH_API_KEY."
)


def run_bench(argv: Sequence[str]) -> int:
    """Measure and report; return 0 if every run had answers (self-check: if it is right), else 1."""
    try:
        return _run(argv)
    except ModuleNotFoundError as error:
        raise StartError(f"{error.name} is not installed (pip install 'kvferry[bench]')") from error


def _run(argv: Sequence[str]) -> int:
    from bench.errors import BenchError
    from bench.flags import add_flags, settings_from
    from bench.main import check_itself, run

    parser = new_parser("bench", _ABOUT)
    add_flags(parser)
    flags = parse(parser, argv)
    try:
        settings = settings_from(flags, os.environ)
        return check_itself(settings, default_tokenizer) if flags.self_check else run(settings, default_tokenizer)
    except BenchError as error:
        raise UsageError(str(error)) from error


def default_tokenizer() -> Path:
    """Return the default model's folder. Raises `ModelError`."""
    from kvferry.model_store import ensure_model

    return ensure_model(None, _say)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
