"""Traces of real services: when requests came, how long they were, and which shared a prefix."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from bench.errors import BenchError

BLOCK_LEN = 512
"""Tokens that one of a row's block ids stands for (the format of Mooncake's traces)."""

MAX_TRACE_ROWS = 1_000_000
MAX_ROW_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One request."""

    at_s: float
    """After the first row."""

    prompt_len: int
    output_len: int
    blocks: tuple[int, ...] = ()
    """Equal leading ids mean an equal beginning of the prompt."""


@lru_cache(maxsize=4)
def read_trace(path: Path) -> tuple[Row, ...]:
    """Read a trace, rows by time.

    Two formats: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and perhaps ``hash_ids``
    (Mooncake); CSV with the columns ``TIMESTAMP`` (a date and time), ``ContextTokens`` and ``GeneratedTokens`` (Azure).
    Rows without output are left out. Raises `BenchError`.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = sorted(_rows(file, path), key=lambda row: row.at_s)
    except OSError as error:
        raise BenchError(f"--trace: {path} can't be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"--trace: {path} is no text") from error
    if not rows:
        raise BenchError(f"--trace: {path} has no requests")
    first_s = rows[0].at_s
    return tuple(Row(row.at_s - first_s, row.prompt_len, row.output_len, row.blocks) for row in rows)


def _rows(file: TextIO, path: Path) -> Iterator[Row]:
    is_json = file.read(1) == "{"
    file.seek(0)
    found: Iterable[Any] = _json_rows(file) if is_json else csv.DictReader(_lines(file))
    parse = _mooncake if is_json else _azure
    number = 0
    try:
        for number, row in enumerate(found, 1):
            if number > MAX_TRACE_ROWS:
                raise BenchError(f"--trace: {path} has more than {MAX_TRACE_ROWS} rows")
            parsed = parse(row)
            if parsed.output_len > 0 and parsed.prompt_len > 0:
                yield parsed
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise BenchError(f"--trace: {path} is of no known format (request {number or 1}: {error!s:.80})") from error


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MAX_ROW_CHARS):
        yield line


def _json_rows(file: TextIO) -> Iterator[Any]:
    return (json.loads(line) for line in _lines(file) if line.strip())


def _mooncake(row: dict[str, Any]) -> Row:
    blocks = tuple(int(each) for each in row.get("hash_ids") or ())
    return Row(float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"]), blocks)


def _azure(row: dict[str, str]) -> Row:
    when, _, fraction = row["TIMESTAMP"].partition(".")
    at_s = datetime.fromisoformat(f"{when}+00:00").timestamp() + float(f"0.{fraction or 0}")
    return Row(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
