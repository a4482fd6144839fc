"""What the formats of tool calls have in common: objects behind a marker, with text around them."""

from typing import ClassVar

from gateway.tool_calls.call_object import CallObject
from gateway.tool_calls.markers import num_begun, stands_at
from gateway.tool_calls.segments import Content, Segment
from gateway.tool_calls.stepped_reader import SteppedReader


class MarkedReader(SteppedReader):
    """Reads ``BEGIN``, an object, and ``END`` if it is there, any number of times, in text.

    White space before a call at the start of the text, and after any call, is dropped; other text is
    content. So is, exactly as it is written, what ``BEGIN`` announces but is no call, and a call that the
    text ends in before it was told. A call that breaks after that stays as it was told; reading goes on
    where it broke, with ``END`` if that is there. With ``BARE`` an object is a call without ``BEGIN``
    too, at the start of the text and after another call.
    """

    BEGIN: ClassVar[str]
    END: ClassVar[str]
    BARE: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(self._before_marker)
        self._num_calls = 0
        self._call = CallObject(0, self._held)

    def finish(self) -> list[Segment]:
        """What was held back, as content; of a call that was told, nothing."""
        rest = self._take_unread()
        if self._step != self._in_object or not self._call.told:
            self._tell_content(rest)
        return self._take_told()

    def _before_marker(self) -> bool:
        """At a place where a call may begin, and white space before it is no content."""
        if not self._hold_space():
            return False
        found = stands_at(self._text, self._start, self.BEGIN)
        if found:
            self._hold(len(self.BEGIN))
            self._step = self._behind_marker
        elif found is False and self.BARE and self._text[self._start] == "{":
            self._step = self._before_object
        elif found is False:
            self._give_back()
        return found is not None

    def _in_content(self) -> bool:
        place = self._text.find(self.BEGIN, self._start)
        end = place if place >= 0 else len(self._text) - num_begun(self._text, self._start, self.BEGIN)
        self._tell_content(self._text[self._start : end])
        self._start = end
        if place >= 0:
            self._hold(len(self.BEGIN))
            self._step = self._behind_marker
        return place >= 0

    def _behind_marker(self) -> bool:
        """What a call begins with; a format may know more than an object."""
        return self._before_object()

    def _before_object(self) -> bool:
        if not self._hold_space():
            return False
        if self._text[self._start] == "{":
            self._call = CallObject(self._num_calls, self._held)
            self._step = self._in_object
        else:
            self._give_back()
        return True

    def _in_object(self) -> bool:
        call = self._call
        self._start = call.read(self._text, self._start, self._told)
        if not call.done and not call.broken:
            return False
        rest = self._held.take()
        if call.told:
            self._num_calls += 1
            rest = rest.lstrip()
        self._tell_content(rest)
        self._step = self._in_content if rest else self._behind_object
        return True

    def _behind_object(self) -> bool:
        if not self._drop_space():
            return False
        found = stands_at(self._text, self._start, self.END)
        if found:
            self._start += len(self.END)
        if found is not None:
            self._step = self._behind_call
        return found is not None

    def _behind_call(self) -> bool:
        if not self._drop_space():
            return False
        self._step = self._before_marker
        return True

    def _give_back(self) -> None:
        """Tell what was held: it is no call."""
        self._tell_content(self._held.take())
        self._step = self._in_content

    def _tell_content(self, text: str) -> None:
        if text:
            self._told.append(Content(text))
