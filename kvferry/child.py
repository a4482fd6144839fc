"""One run of a child process: started tied to us, its output read line by line, its end awaited."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

MAX_LINE_BYTES = 16 << 10
"""A longer line is passed on in pieces of this length, so that no child can fill our memory."""

_READ_BYTES = 1 << 16

OnLine = Callable[[bytes], None]


class Child:
    """A running process and, sooner or later, its exit code.

    It stays in our session but leads a process group, so that a terminal's Ctrl-C reaches only us.
    Must be made in the main thread: a tied child ends with the thread that started it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_line: OnLine) -> None:
        """Start `command`; stdout and stderr come to `on_line`. Raises OSError if it can't."""
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        self._partial = b""
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._output, theirs = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                process_group=0,
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._output, self._read)
        self._loop.add_reader(self._pidfd, self._reap)

    async def ended(self) -> int:
        """Wait for its end; return the exit code (negative: the signal that ended it)."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to end."""
        if not self._ended.done():
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and what it started in its group, at once."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> bool:
        """Pass on what can be read now; return whether there may be more."""
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output)
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        while len(self._partial) > MAX_LINE_BYTES:
            self._on_line(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return True

    def _pass_on(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), MAX_LINE_BYTES):
            self._on_line(line[start : start + MAX_LINE_BYTES])

    def _reap(self) -> None:
        """Take its exit code; what it left running in its group ends too."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        code = self._process.wait()
        while self._read():
            pass
        self._loop.remove_reader(self._output)
        os.close(self._output)
        if self._partial:
            self._pass_on(self._partial)
        self._ended.set_result(code)
