"""An event loop whose time passes only when nothing is left to do: hours of timeouts in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any


class _Selector(selectors.EpollSelector):
    """Never sleeps: where a real one would wait, the clock jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Sequence[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("nothing will ever happen again: every task waits for another")
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` is virtual seconds since the loop was made. What is meant for a thread is done at once. No sockets."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run a test on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
