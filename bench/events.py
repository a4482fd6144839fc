"""Server-sent events out of chunks of bytes, each with the time of the chunk that ended it."""

from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 4 << 20
"""An event with log probabilities of many tokens has some 100 KB."""

Timed = tuple[float, bytes]


class LineTooLongError(ValueError):
    """The stream has a line that no event needs."""


def events(chunks: Iterable[Timed], *, to_end: bool = True) -> Iterator[Timed]:
    """Yield each event's data. Source: the HTML standard's section "Server-sent events".

    Comments and fields other than ``data`` are left out. With `to_end`, what stands last without a blank line after it
    is yielded too; without, the stream was left in the middle and that is dropped. Raises `LineTooLongError`.
    """
    data: list[bytes] = []
    when = 0.0
    for when, line in _lines(chunks, to_end):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield when, b"\n".join(data)
            data = []
    if data and to_end:
        yield when, b"\n".join(data)


def _lines(chunks: Iterable[Timed], to_end: bool) -> Iterator[Timed]:
    rest = b""
    when = 0.0
    for when, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield when, line.removesuffix(b"\r")
        if len(rest) > MAX_LINE_BYTES:
            raise LineTooLongError
    if rest and to_end:
        yield when, rest
