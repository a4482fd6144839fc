"""What `up` shows: its own lines and its children's, each after the name of who speaks."""

import queue
import threading
from collections.abc import Callable
from typing import BinaryIO

MAX_WAITING_LINES = 10_000
"""Lines kept for a terminal that doesn't take them; more are dropped and counted."""

_FLUSH_SECONDS = 2.0

OnBroken = Callable[[], object]


class Output:
    """Writes lines from a thread of its own: a stopped terminal must not stop the children."""

    def __init__(self, stream: BinaryIO, width: int) -> None:
        """Write to `stream`; names are padded to `width` characters."""
        self._stream = stream
        self._width = width
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING_LINES)
        self._num_dropped = 0
        self.on_broken: OnBroken = lambda: None
        """Called, from the writing thread, when nobody reads any more (`kvferry up | head`)."""

        self.broken = threading.Event()
        self._thread = threading.Thread(target=self._write, name="output", daemon=True)
        self._thread.start()

    def emit(self, name: str, line: bytes) -> None:
        """Show one line of a child."""
        self._put(f"{name:<{self._width}} | ".encode() + line)

    def say(self, line: str) -> None:
        """Show one line of our own."""
        self.emit("up", line.encode(errors="replace"))

    def bare(self, line: str) -> None:
        """Show a line without a name, to be copied."""
        self._put(line.encode(errors="replace"))

    def close(self) -> None:
        """Write what waits, if it is taken within a moment."""
        self._put(None)
        self._thread.join(_FLUSH_SECONDS)

    def _put(self, line: bytes | None) -> None:
        try:
            if self._num_dropped:
                note = f"up: {self._num_dropped} lines were dropped, since nobody took them"
                self._lines.put_nowait(note.encode())
                self._num_dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._num_dropped += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + b"\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the reader is gone
                self.broken.set()
                self.on_broken()
                return
