"""A reader that is always in one of several steps."""

from collections.abc import Callable

from gateway.tool_calls.held import Held
from gateway.tool_calls.json_scan import SPACE
from gateway.tool_calls.segments import Segment, joined

Step = Callable[[], bool]
"""Reads on at ``_start``, where there is text. False if it takes more text to go on."""


class SteppedReader:
    """``push`` for readers made of steps.

    Text that was pushed is told, held in ``_held``, or not read yet: that is ``_text`` from ``_start``
    on, and no more of it is left between two pushes than a marker is long.
    """

    def __init__(self, first: Step) -> None:
        self._step = first
        self._text = ""
        self._start = 0
        self._held = Held()
        self._told: list[Segment] = []

    def push(self, text: str) -> list[Segment]:
        """Segments that no later text can change."""
        self._text = self._text[self._start :] + text
        self._start = 0
        while self._start < len(self._text) and self._step():
            pass
        return self._take_told()

    def _take_told(self) -> list[Segment]:
        told, self._told = self._told, []
        return joined(told)

    def _take_unread(self) -> str:
        """Hand out what is held, and what isn't read."""
        text = self._held.take() + self._text[self._start :]
        self._text, self._start = "", 0
        return text

    def _hold(self, num_chars: int) -> None:
        """Hold back the next characters, or as many as there is room for."""
        self._start += self._held.add(self._text[self._start : self._start + num_chars])

    def _hold_space(self) -> bool:
        """Hold back white space; return whether anything follows."""
        self._hold(self._num_spaces())
        return self._start < len(self._text)

    def _drop_space(self) -> bool:
        """Pass over white space; return whether anything follows."""
        self._start += self._num_spaces()
        return self._start < len(self._text)

    def _num_spaces(self) -> int:
        match = SPACE.match(self._text, self._start)
        return len(match[0]) if match else 0
