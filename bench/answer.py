"""A request's answer, read from its recording once the run is over."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.events import LineTooLongError, events
from bench.recording import Recording

Json = dict[str, Any]

SAMPLE_CHARS = 80
"""So much of an answer's text is kept, to see what kind of thing was measured."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are those of the recording."""

    sent_s: float
    end_s: float
    """0: the run ended before it did."""

    lag_s: float
    """How late it was sent."""

    times: tuple[float, ...]
    """Arrivals of the events that carry output."""

    want_len: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """By the server's usage; without it, the number of events."""

    has_usage: bool
    finish_reason: str
    error: str
    """A code (see `docs/bench.md`), or empty."""

    detail: str
    path: str
    text: str

    @property
    def is_ok(self) -> bool:
        """Whether it brought output, ended, and nothing went wrong."""
        return bool(self.times and self.end_s and not self.error)

    @property
    def is_short(self) -> bool:
        """Whether it ended well but has not the length that was asked for."""
        return self.is_ok and self.output_tokens != self.want_len

    @property
    def ttft_s(self) -> float:
        """Time from sending to the first output."""
        return self.times[0] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first."""
        if self.output_tokens < 2 or len(self.times) < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1)

    def gaps_s(self) -> list[float]:
        """Times between successive events."""
        return [after - before for before, after in pairwise(self.times)]


def read_answer(recording: Recording) -> Answer:
    """Parse what was recorded."""
    reader = _Reader(recording)
    try:
        for when, data in events(recording.chunks, to_end=bool(recording.end_s)):
            reader.read(when, data)
    except LineTooLongError:
        recording.fail("too_long", "a line of the stream is longer than any event")
    if recording.end_s and not reader.is_whole:
        recording.fail("cut", "the stream ended without a finish reason")
    return reader.answer()


class _Reader:
    """Gathers an answer from its events."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._times: list[float] = []
        self._usage: Json = {}
        self._finish_reason = ""
        self._text: list[str] = []

    @property
    def is_whole(self) -> bool:
        return bool(self._finish_reason)

    def read(self, when: float, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return
        try:
            event = json.loads(data)
            self._read(when, event)
        except (ValueError, RecursionError, AttributeError, TypeError):  # no JSON, or not of the API's shape
            # a stream that broke off has its reason already, which counts
            self._recording.fail("bad_event", f"an event can't be read: {data[:80]!r}")

    def _read(self, when: float, event: Json) -> None:
        if error := event.get("error"):
            code = error.get("code") or error.get("type") if isinstance(error, dict) else ""
            self._recording.fail(f"event_{code or 'error'}"[:40], str(error))
        if usage := event.get("usage"):
            self._usage = dict(usage)
        for choice in event.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            if (text := output_of(choice)) is not None:
                self._times.append(when)
                self._text.append(text)

    def answer(self) -> Answer:
        recording, usage = self._recording, self._usage
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            sent_s=recording.sent_s,
            end_s=recording.end_s,
            lag_s=max(recording.sent_s - recording.due_s, 0.0) if recording.due_s else 0.0,
            times=tuple(self._times),
            want_len=recording.output_len,
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
            output_tokens=_count(usage.get("completion_tokens")) or len(self._times),
            has_usage="completion_tokens" in usage,
            finish_reason=self._finish_reason,
            error=recording.error,
            detail=recording.detail,
            path=recording.path,
            text="".join(self._text)[:SAMPLE_CHARS],
        )


def output_of(choice: Json) -> str | None:
    """Return the text that an event of one choice brings, None if it stands for no token.

    An event without text that ends nothing is output: a token whose text is held back. A chat's opening event, with a
    role alone, is none.
    """
    text = choice.get("text")
    if text is None:
        delta = choice.get("delta") or {}
        text = delta.get("content")
        text = text or delta.get("reasoning_content") or text
        if not text and delta.get("role"):
            return None
    if text is None or (not text and choice.get("finish_reason")):
        return None
    return str(text)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
