"""Text that isn't told yet, since later text decides what it is."""

MAX_HELD_CHARS = 1 << 18
"""So much a call may say before its name; a tool that is given a whole source file is well below it."""


class Held:
    """Text in the order it came, at most ``MAX_HELD_CHARS`` characters."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = MAX_HELD_CHARS

    def add(self, text: str) -> int:
        """Take what there is room for, from its beginning; return the number of characters."""
        taken = text[: self._room]
        self._pieces.append(taken)
        self._room -= len(taken)
        return len(taken)

    def take(self) -> str:
        """Hand it all out, and hold nothing."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._room = MAX_HELD_CHARS
        return text
