"""Fixed strings in text whose rest is still to come."""


def stands_at(text: str, start: int, marker: str) -> bool | None:
    """Whether ``marker`` is in ``text`` at ``start``; None if that takes more text to tell."""
    there = text[start : start + len(marker)]
    if there == marker:
        return True
    return None if marker.startswith(there) else False


def num_begun(text: str, start: int, marker: str) -> int:
    """Count the characters at the end of ``text[start:]`` that may become ``marker``."""
    for length in range(min(len(marker) - 1, len(text) - start), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
