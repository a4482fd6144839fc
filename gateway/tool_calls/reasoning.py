"""What a model thinks before it answers, told apart from the answer."""

from gateway.tool_calls.markers import num_begun, stands_at
from gateway.tool_calls.segments import Content, Reader, Reasoning, Segment
from gateway.tool_calls.stepped_reader import SteppedReader


class ReasoningReader(SteppedReader):
    """Tells what stands between ``begin`` and ``end`` at the start of a text as reasoning.

    What follows goes to the inner reader. Dropped are the markers, white space before ``begin``, one line
    break behind it and all those behind ``end``, and reasoning that is white space alone. Without ``end``
    all is reasoning. A text that begins otherwise has none and is left to the inner reader as it is.
    """

    def __init__(
        self, inner: Reader | None, begin: str = "<think>", end: str = "</think>", *, starts_inside: bool
    ) -> None:
        """Without an ``inner`` reader the answer is content.

        ``starts_inside``: the prompt ends in ``begin``, or the model is known to leave it out. If the text
        has one nevertheless, it is dropped.
        """
        super().__init__(self._at_start)
        self.inside = starts_inside
        """Whether the text pushed so far ends in reasoning."""
        self._inner = inner
        self._begin = begin
        self._end = end

    def finish(self) -> list[Segment]:
        """What was held back, as reasoning if ``end`` hasn't come, and what the inner reader held back."""
        rest = self._take_unread()
        if self.inside:
            self._tell_reasoning(rest if self._step == self._in_reasoning else rest.removeprefix("\n"))
        else:
            self._pass_on(rest)
        if self._inner is not None:
            self._told += self._inner.finish()
        return self._take_told()

    def _at_start(self) -> bool:
        if not self._hold_space():
            return False
        found = stands_at(self._text, self._start, self._begin)
        if found:
            self._held.take()
            self._start += len(self._begin)
            self.inside = True
        elif found is False and not self.inside:
            self._pass_on(self._held.take())
            self._step = self._in_answer
            return True
        if found is not None:
            self._step = self._behind_begin
        return found is not None

    def _behind_begin(self) -> bool:
        """At white space that is reasoning if any reasoning follows."""
        if not self._hold_space():
            return False
        found = stands_at(self._text, self._start, self._end)
        if found:
            self._held.take()
        elif found is False:
            self._tell_reasoning(self._held.take().removeprefix("\n"))
        if found is not None:
            self._step = self._in_reasoning
        return found is not None

    def _in_reasoning(self) -> bool:
        place = self._text.find(self._end, self._start)
        found = place >= 0
        end = place if found else len(self._text) - num_begun(self._text, self._start, self._end)
        self._tell_reasoning(self._text[self._start : end])
        self._start = end
        if found:
            self._start += len(self._end)
            self.inside = False
            self._step = self._behind_end
        return found

    def _behind_end(self) -> bool:
        while self._start < len(self._text) and self._text[self._start] == "\n":
            self._start += 1
        if self._start == len(self._text):
            return False
        self._step = self._in_answer
        return True

    def _in_answer(self) -> bool:
        self._pass_on(self._text[self._start :])
        self._start = len(self._text)
        return False

    def _tell_reasoning(self, text: str) -> None:
        if text:
            self._told.append(Reasoning(text))

    def _pass_on(self, text: str) -> None:
        if not text:
            return
        self._told += self._inner.push(text) if self._inner is not None else [Content(text)]
