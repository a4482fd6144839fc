"""Rows of text in columns."""

from collections.abc import Sequence


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return lines with columns as wide as their widest cell; numbers stand to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    return "".join(_line(row, widths, right) for row in cells)


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    columns = zip(row, widths, right, strict=True)
    padded = (cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in columns)
    return "  ".join(padded).rstrip() + "\n"
