"""How long a stream may be quiet, and how long a write may take: one timer for both, however many writes there are."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class WriteWatch:
    """Told of every write; its timer looks seldom, and then only whether the latest is too long ago."""

    def __init__(self, quiet_s: float, write_s: float, on_quiet: Callable[[], None]) -> None:
        """Call ``on_quiet`` whenever nothing was written for ``quiet_s``; a write may take ``write_s``."""
        self._loop = asyncio.get_running_loop()
        self._quiet_s = quiet_s
        self._write_s = write_s
        self._on_quiet = on_quiet
        self._since = self._loop.time()
        self._sending = True

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Watch this block, which begins with a write. Raises ``TimeoutError`` when a write takes too long."""
        async with asyncio.timeout(None) as end:
            self._end = end
            self._look_again(self._loop.time())
            try:
                yield
            finally:
                self._timer.cancel()

    def sends(self) -> None:
        """A write begins."""
        self._sending, self._since = True, self._loop.time()

    def sent(self) -> None:
        """The write was taken."""
        self._sending = False

    def _due(self) -> float:
        return self._since + (self._write_s if self._sending else self._quiet_s)

    def _look(self) -> None:
        now = self._loop.time()
        if self._due() <= now and self._sending:
            self._end.reschedule(now)
            return
        if self._due() <= now:
            self._since = now
            self._on_quiet()
        self._look_again(now)

    def _look_again(self, now: float) -> None:
        """When it may be due at the earliest: what is awaited can change until then."""
        soonest = now + min(self._quiet_s, self._write_s)
        self._timer = self._loop.call_at(min(self._due(), soonest), self._look)
