"""Where JSON values and an object's members begin and end, in text that comes in pieces.

A value's inside isn't judged: its strings and brackets say where it ends. A character that can't be
in JSON outside of strings, or a bracket that closes nothing, breaks it. Where a scan breaks depends on
the text alone. The work of a character is constant, amortized.
"""

import json
import re

SPACE = re.compile(r"[ \t\r\n]*")

MAX_DEPTH = 256
"""Of nested brackets. Clients' own JSON readers give up at some depth; arguments have a handful."""

_CLOSERS = {"{": "}", "[": "]"}
_IN_STRING = re.compile(r'[^"\\]*')
_IN_BRACKETS = re.compile(r"[\s\w,:.+-]*")
_SCALAR = re.compile(r"[\w.+-]*")


def decoded(quoted: str) -> str | None:
    """Return what a JSON string with its quotes stands for; None if nothing that is text."""
    try:
        text = json.loads(quoted, strict=False)
        text.encode()
    except ValueError:
        return None
    return str(text)


class ValueScan:
    """One value: ``done`` behind its last character, or ``broken`` before one that can't be its next.

    ``kind`` is the first character of an object, a list or a string, and "" for anything else. Only
    what follows tells that a number or a word is done.
    """

    def __init__(self, first: str) -> None:
        """Begin with the value's first character, which counts as read."""
        self.kind = first if first in '{["' else ""
        self.done = False
        self.broken = not self.kind and not _SCALAR.fullmatch(first)
        self._closers = [_CLOSERS[first]] if first in _CLOSERS else []
        self._in_string = first == '"'
        self._escaped = False

    def read(self, text: str, start: int) -> int:
        """Read on at ``start``; return the place behind the last character of the value in ``text``."""
        while start < len(text) and not self.done and not self.broken:
            if self._in_string:
                start = self._read_string(text, start)
            elif self._closers:
                start = self._read_brackets(text, start)
            else:
                start = _end_of(_SCALAR, text, start)
                self.done = start < len(text)
        return start

    def _read_string(self, text: str, start: int) -> int:
        if self._escaped:
            self._escaped = False
            return start + 1
        start = _end_of(_IN_STRING, text, start)
        if start == len(text):
            return start
        self._escaped = text[start] == "\\"
        self._in_string = self._escaped
        self.done = not self._in_string and not self._closers
        return start + 1

    def _read_brackets(self, text: str, start: int) -> int:
        start = _end_of(_IN_BRACKETS, text, start)
        if start == len(text):
            return start
        char = text[start]
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS and len(self._closers) < MAX_DEPTH:
            self._closers.append(_CLOSERS[char])
        elif char == self._closers[-1]:
            self._closers.pop()
            self.done = not self._closers
        else:
            self.broken = True
            return start
        return start + 1


_NEXT = {
    ("begin", "{"): "key or end",
    ("key or end", '"'): "colon",
    ("key or end", "}"): "nothing",
    ("key", '"'): "colon",
    ("colon", ":"): "value",
    ("comma or end", ","): "key",
    ("comma or end", "}"): "nothing",
}


class ObjectScan:
    """One object from its opening brace on, read member by member: ``done``, or ``broken``, like a value.

    ``value`` is the value of ``key`` while it is read, up to the first ``read`` after its end.
    """

    def __init__(self) -> None:
        self.key = ""
        self.value: ValueScan | None = None
        self.done = False
        self.broken = False
        self._expects = "begin"
        self._key_scan: ValueScan | None = None
        self._key_text: list[str] = []

    def read(self, text: str, start: int) -> int:
        """Read on at ``start``, which is in ``text``: some characters between values, or of one value.

        Of a new value that is its first character alone. Returns the place behind what was read.
        """
        if self.value is not None and not self.value.done:
            start = self.value.read(text, start)
            self.broken = self.value.broken
            return start
        self.value = None
        if self._key_scan is not None:
            return self._read_key(self._key_scan, text, start)
        after_space = _end_of(SPACE, text, start)
        return after_space if after_space > start else self._read_sign(text[start], start)

    def _read_key(self, scan: ValueScan, text: str, start: int) -> int:
        end = scan.read(text, start)
        self._key_text.append(text[start:end])
        if scan.done:
            key = decoded("".join(self._key_text))
            self.broken = key is None
            self.key = key or ""
            self._key_scan = None
        return end

    def _read_sign(self, char: str, start: int) -> int:
        if self._expects == "value":
            self._expects = "comma or end"
            self.value = ValueScan(char)
            self.broken = self.value.broken
        else:
            self._expects = _NEXT.get((self._expects, char), "")
            self.broken = not self._expects
            self.done = self._expects == "nothing"
            if self._expects == "colon":
                self._key_scan, self._key_text = ValueScan(char), [char]
        return start if self.broken else start + 1


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return where a pattern that matches anywhere, if only nothing, ends."""
    match = pattern.match(text, start)
    return match.end() if match else start
