"""Which web pages may ask from a browser, as flags say it: lists with commas or in JSON."""

import json
import re
from collections.abc import Callable

from runtime import units

ANY = "*"

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
_TOKEN = re.compile(r"[\w-]+", re.ASCII)


def origins(value: str) -> tuple[str, ...]:
    """Read origins as browsers write them: scheme, host, and the port if it isn't the scheme's own."""
    return _each(value, str.lower, _ORIGIN, "is no origin such as https://app.example:8443, without a path, or *")


def methods(value: str) -> tuple[str, ...]:
    """Read HTTP methods."""
    return _each(value, str.upper, _TOKEN, "is no list of methods such as GET,POST, or *")


def headers(value: str) -> tuple[str, ...]:
    """Read names of headers."""
    return _each(value, str.lower, _TOKEN, "is no list of headers such as authorization,content-type, or *")


def _each(value: str, spelled: Callable[[str], str], form: re.Pattern[str], fault: str) -> tuple[str, ...]:
    parts = tuple(spelled(part.strip()) for part in _listed(value))
    if not all(part == ANY or form.fullmatch(part) for part in parts):
        raise ValueError(fault)
    return parts


def _listed(value: str) -> tuple[str, ...]:
    """Split it. A flag that was repeated has its lists side by side."""
    if not value.lstrip().startswith("["):
        return units.texts(value)
    try:
        lists = json.loads(f"[{value}]")
    except ValueError:
        lists = [None]
    if not all(isinstance(each, list) and all(isinstance(part, str) for part in each) for each in lists):
        raise ValueError("is neither a list with commas nor a JSON list of texts")
    return tuple(part for each in lists for part in each)
