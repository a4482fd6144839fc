"""Tokens that didn't arrive while later ones did: asked for again after a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.messages import Key
    from runtime.repeats import Repeats

NO_LIMIT_S = 86_400.0
"""The phase's deadline ends a gap that nobody can fill; this one is never reached."""


class Gaps:
    """Open gaps by (request, choice)."""

    def __init__(self, repeats: Repeats, gap_s: float) -> None:
        """A gap is given ``gap_s`` to close by itself. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._repeats = repeats
        self._gap_s = gap_s
        self._open: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Gaps that are open."""
        return len(self._open)

    def open(self, key: Key, ask: Callable[[], None]) -> None:
        """Call ``ask`` now and again once the gap is old enough; nothing if it's known already."""
        if key not in self._open:
            self._open[key] = self._loop.call_later(self._gap_s, self._begin, key, ask)

    def close(self, key: Key) -> None:
        """The gap is filled, or nobody waits any more. Idempotent."""
        timer = self._open.pop(key, None)
        if timer is not None:
            timer.cancel()
            self._repeats.stop(("gap", *key))

    def _begin(self, key: Key, ask: Callable[[], None]) -> None:
        self._repeats.start(("gap", *key), ask, NO_LIMIT_S, lambda: None)
