"""Values of flags, read from text; what can't be is an `argparse` error of one line."""

import argparse
import json
from collections.abc import Callable
from typing import Any

MAX_VALUE = 86_400_000.0
"""A day in milliseconds."""

_MAX_DIGITS = 20


def count(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > _MAX_DIGITS or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most}")
        return int(text)

    return parse


def number(text: str) -> float:
    """Read any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number") from None


def positive(text: str) -> float:
    """Read a number above 0, seconds or milliseconds."""
    value = number(text)
    if not 0 < value <= MAX_VALUE:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not above 0 and at most {MAX_VALUE:.0f}")
    return value


def rate(text: str) -> float:
    """Read a number above 0, or ``inf``."""
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not above 0")
    return value


def seed_list(text: str) -> tuple[int, ...]:
    """Read whole numbers with commas, all different."""
    seeds = tuple(count(0, 2**63)(word) for word in text.split(","))
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError("a seed that is used twice measures the prefix cache")
    return seeds


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("is no JSON") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("is no JSON object")
    return value
