"""Results on their way out of an engine whose blocks are fetched from a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.api import Computed, Key, NewTokens, Pong, Ready, Result
from engine.copy_stream import Copy
from engine.staging import Staging


class Outbox:
    """What is computed is told once its bytes are on the host.

    Tokens of a key don't overtake what was computed before them. A key's end does: then that isn't told any more.
    """

    def __init__(self, staging: Staging) -> None:
        """``staging`` fetches."""
        self._staging = staging
        self._held: dict[Key, deque[tuple[Result, Copy | None]]] = {}

    @property
    def holds(self) -> bool:
        """Whether something waits for its bytes."""
        return bool(self._held)

    @property
    def has_news(self) -> bool:
        """Whether some of that may go now."""
        return any(copy is None or copy.is_done() for (_, copy), *_ in self._held.values())

    def take(self, results: Iterable[Result]) -> list[Result]:
        """Begin to fetch what ``results`` say is computed; returns what may go now, of these and of earlier ones."""
        self._staging.look()
        out: list[Result] = []
        for key in list(self._held):
            out += self._arrived(key)
        for result in results:
            if isinstance(result, Computed):
                copy = self._staging.fetch(result.key, result.choice, result.blocks)
                self._held.setdefault(result.key, deque()).append((result, copy))
                out += self._arrived(result.key)
            elif isinstance(result, Pong | Ready) or result.key not in self._held:
                out.append(result)
            elif isinstance(result, NewTokens):
                self._held[result.key].append((result, None))
            else:
                out += [held for held, copy in self._held.pop(result.key) if copy is None]
                out.append(result)
        return out

    def _arrived(self, key: Key) -> list[Result]:
        held, out = self._held[key], list[Result]()
        while held and (held[0][1] is None or held[0][1].is_done()):
            out.append(held.popleft()[0])
        if not held:
            del self._held[key]
        return out
