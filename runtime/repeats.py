"""Control messages are repeated until they are answered: 50 ms, doubling to 1 s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass

FIRST_REPEAT_S = 0.05
LONGEST_REPEAT_S = 1.0


@dataclass(slots=True)
class _Repeat:
    send: Callable[[], None]
    deadline: float
    on_deadline: Callable[[], None]
    pause: float
    timer: asyncio.TimerHandle


class Repeats:
    """Sends each started message now and again until it is stopped or its deadline passes."""

    def __init__(self) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._open: dict[Hashable, _Repeat] = {}

    def start(
        self,
        key: Hashable,
        send: Callable[[], None],
        within_s: float,
        on_deadline: Callable[[], None],
    ) -> None:
        """Send now; call ``on_deadline`` once if nobody stops ``key`` within ``within_s`` seconds.

        A key that is open already is replaced.
        """
        self.stop(key)
        timer = self._loop.call_later(FIRST_REPEAT_S, self._again, key)
        deadline = self._loop.time() + within_s
        self._open[key] = _Repeat(send, deadline, on_deadline, FIRST_REPEAT_S, timer)
        send()

    def stop(self, key: Hashable) -> bool:
        """The answer came, or it isn't wanted any more. False if the key wasn't open."""
        repeat = self._open.pop(key, None)
        if repeat is not None:
            repeat.timer.cancel()
        return repeat is not None

    def close(self) -> None:
        """Stop all of them."""
        for key in list(self._open):
            self.stop(key)

    def _again(self, key: Hashable) -> None:
        repeat = self._open[key]
        left = repeat.deadline - self._loop.time()
        if left <= 0:
            del self._open[key]
            repeat.on_deadline()
            return
        repeat.pause = min(repeat.pause * 2, LONGEST_REPEAT_S)
        repeat.timer = self._loop.call_later(min(repeat.pause, max(left, 0.001)), self._again, key)
        repeat.send()
