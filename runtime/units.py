"""Parsers of setting values. Each raises ValueError with words that go on after the value."""

import math
import re
from collections.abc import Callable, Mapping

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

# One letter as vLLM reads it: small is decimal, capital is binary.
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    **{unit: 10**power for unit, power in (("k", 3), ("m", 6), ("g", 9), ("t", 12))},
    **{unit: 1 << power for unit, power in (("K", 10), ("M", 20), ("G", 30), ("T", 40))},
    **{unit: 10**power for unit, power in (("kB", 3), ("KB", 3), ("MB", 6), ("GB", 9), ("TB", 12))},
    **{unit: 1 << power for unit, power in (("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40))},
}
_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def text(value: str) -> str:
    """Take any text without control characters."""
    if not value.isprintable():
        raise ValueError("has characters that can't be printed")
    return value.strip()


def texts(value: str) -> tuple[str, ...]:
    """Read a comma-separated list."""
    return tuple(part for part in (text(part) for part in value.split(",")) if part)


def one_of(*words: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return a parser that takes these words only; an alias stands for one of them."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        word = (aliases or {}).get(word, word)
        if word not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return word

    return parse


def integer(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`; 2k is 2,000 and 2K is 2,048."""

    def parse(value: str) -> int:
        sign = -1 if value.strip().startswith("-") else 1
        number = sign * _scaled(value.strip().removeprefix("-"), _COUNT_UNITS, "a whole number")
        if number != int(number):
            raise ValueError("is not a whole number")
        return int(_within(number, low, high))

    return parse


def integer_or(word: str, low: int, high: int, *, alias: str) -> Callable[[str], int | str]:
    """Return a parser of whole numbers as `integer` reads them, or of one word, which `alias` also means."""
    number = integer(low, high)

    def parse(value: str) -> int | str:
        return word if value.strip().lower() in (word, alias) else number(value)

    return parse


def integers(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of comma-separated whole numbers."""
    number = integer(low, high)
    return lambda value: tuple(number(part) for part in texts(value))


def fraction(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers above `low` and up to `high`."""

    def parse(value: str) -> float:
        number = float(_scaled(value, {"": 1}, "a number"))
        if not low < number <= high:
            raise ValueError(f"is not above {low:g} and at most {high:g}")
        return number

    return parse


def num_bytes(value: str) -> int:
    """Read a size: plain bytes, 2GiB, 24GB; one letter as vLLM reads it (g decimal, G binary)."""
    number = _scaled(value, _SIZE_UNITS, "a size such as 2GiB, 24GB or plain bytes")
    if number < 1:
        raise ValueError("is not above 0")
    return int(number)


def milliseconds(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of a number of milliseconds between low and high."""

    def parse(value: str) -> float:
        return _within(_scaled(value, {"": 1}, "a number of milliseconds"), low, high)

    return parse


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of durations in seconds: 30, 0.5, 500ms, 2m."""

    def parse(value: str) -> float:
        number = float(_scaled(value, _TIME_UNITS, "a duration such as 30, 500ms or 2m"))
        return float(_within(number, low, high))

    return parse


def _scaled(value: str, units: Mapping[str, float], kind: str) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None or match[2] not in units or len(match[1]) > 20:
        raise ValueError(f"is not {kind}")
    number: float = float(match[1]) if "." in match[1] else int(match[1])
    return number * units[match[2]]


def _within(number: float, low: float, high: float) -> float:
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError(f"is not between {low:g} and {high:g}")
    return number
