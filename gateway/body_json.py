"""JSON of bodies. One of many values is read aside, in steps: reading it at once would hold up all streams."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from json import scanner
from typing import Any

from pydantic_core import from_json

from gateway.errors import GatewayError

MAX_AT_ONCE = 1 << 16
"""Values; so many take up to 20 ms, the longest texts 3 ms a megabyte."""

MAX_ASIDE = 16
"""Bodies that are read aside or wait for it. Each takes seconds at the worst, and they take turns."""

MAX_DEPTH = 201
"""Lists and objects within each other, as many as are read at once."""

MAX_OBJECTS = 1 << 17
"""Of one body; the largest set of tools that may be sent has a fraction of them."""

_MARKS = b",[{"


class _Decoder(json.JSONDecoder):
    """Reads one text by the library's Python code, ten times slower: compiled code lets no other thread run."""

    def __init__(self) -> None:
        super().__init__(object_hook=self._counted, parse_constant=_refuse)
        make: Callable[[json.JSONDecoder], Any] = scanner.py_make_scanner  # type: ignore[attr-defined]
        self.scan_once = make(self)
        self._num_objects = 0

    def _counted(self, found: dict[str, Any]) -> dict[str, Any]:
        self._num_objects += 1
        if self._num_objects > MAX_OBJECTS:
            raise ValueError(f"more than {MAX_OBJECTS} objects")
        return found


class BodyReader:
    """Reads bodies of one process."""

    def __init__(self) -> None:
        """Its thread starts with the first large body."""
        self._thread = ThreadPoolExecutor(1, "large-body")
        self._num_aside = 0

    async def read(self, raw: bytes) -> object:
        """Return the value. Raises ``ValueError`` if it is none, ``GatewayError`` (429) if too many are read aside."""
        if not has_many(raw):
            return from_json(raw, allow_inf_nan=False)
        if self._num_aside >= MAX_ASIDE:
            text = "Too many large bodies came at once; try again later"
            raise GatewayError(429, text, type="rate_limit_error", code="queue_full", retry_after_s=1)
        self._num_aside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.in_steps, raw)
        finally:
            self._num_aside -= 1

    def in_steps(self, raw: bytes) -> object:
        """Return the same value, giving way to other threads all the while. Raises ``ValueError``."""
        try:
            value: object = _Decoder().decode(raw.decode())
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        _check(value)
        return value


def has_many(raw: bytes) -> bool:
    """Whether a body may have more values than are read at once; marks in texts count too."""
    if len(raw) <= MAX_AT_ONCE:
        return False
    return len(raw) - len(raw.translate(None, _MARKS)) > MAX_AT_ONCE


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _check(value: object) -> None:
    """Raise ``ValueError`` for half a character in a text, and for what is too deep: the library takes both."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for each in level:
            if type(each) is str:
                each.encode()
            elif type(each) is dict:
                inner += each
                inner += each.values()
            elif type(each) is list:
                inner += each
        if not inner:
            return
        level = inner
    raise ValueError("nested too deeply")
