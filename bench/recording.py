"""What is noted of a request while the run goes on: bytes and times, nothing parsed."""

import asyncio
from dataclasses import dataclass, field

FLOWING_CHUNKS = 3
"""A stream that has brought so many pieces is past its start."""


@dataclass(slots=True)
class Recording:
    """One request. Times are `time.perf_counter` seconds, which one machine's processes share on Linux."""

    output_len: int
    due_s: float = 0.0
    """When it should have been sent; 0: at once."""

    sent_s: float = 0.0
    end_s: float = 0.0
    """0: it was still under way when the run ended."""

    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""
    detail: str = ""
    path: str = ""
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, now: float, data: bytes) -> None:
        """Note what arrived."""
        self.chunks.append((now, data))
        if len(self.chunks) == FLOWING_CHUNKS:
            self.flowing.set()

    def fail(self, code: str, detail: str) -> None:
        """Note what went wrong; the first reason counts."""
        if not self.error:
            self.error, self.detail = code, " ".join(detail.split())[:200]
