"""Stop strings, looked for in the text itself, so that token borders don't matter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """``text`` was found; its last character is the ``end``-th of the whole text."""

    text: str
    end: int


class StopMatcher:
    """Finds the stop string that is complete first; of two that end together, the longer one.

    That choice depends on the text alone, however it is cut into pieces. Knuth-Morris-Pratt for
    each stop string: a character costs constant time, amortized.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Look for ``stops``, none of which is empty."""
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders_of(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._num_chars = 0

    @property
    def num_held(self) -> int:
        """Number of characters at the end of the text may still become a stop string."""
        return max(self._matched, default=0)

    def push(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Read on; a match that is completed while not ``armed`` is passed over."""
        if not self._stops:
            return None
        for char in text:
            self._num_chars += 1
            match = self._step(char)
            if match is not None and armed:
                return match
        return None

    def _step(self, char: str) -> StopMatch | None:
        found = None
        for number, stop in enumerate(self._stops):
            borders, matched = self._borders[number], self._matched[number]
            while matched and stop[matched] != char:
                matched = borders[matched]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                found = found or StopMatch(stop, self._num_chars)
                matched = borders[matched]
            self._matched[number] = matched
        return found


def _borders_of(stop: str) -> list[int]:
    """Return, at ``k``, the length of ``stop[:k]``'s longest proper prefix that ends it too."""
    borders = [0] * (len(stop) + 1)
    length = 0
    for end in range(1, len(stop)):
        while length and stop[end] != stop[length]:
            length = borders[length]
        if stop[end] == stop[length]:
            length += 1
        borders[end + 1] = length
    return borders
