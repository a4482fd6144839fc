"""All choices of one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.accepted import AcceptedList
from protocol.messages import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.generation import Update


class Choices:
    """One accepted list each; a choice is live until it has ended or was stopped."""

    def __init__(self, num_choices: int, max_tokens: int) -> None:
        """``max_tokens`` of each."""
        self._max_tokens = max_tokens
        self._lists = [AcceptedList(choice, max_tokens) for choice in range(num_choices)]

    def __iter__(self) -> Iterator[AcceptedList]:
        """In order of their numbers."""
        return iter(self._lists)

    def get(self, choice: int) -> AcceptedList | None:
        """The choice of this number, ``None`` if there is none."""
        return self._lists[choice] if 0 <= choice < len(self._lists) else None

    @property
    def live(self) -> list[AcceptedList]:
        """Those that want more tokens."""
        return [each for each in self._lists if not each.over]

    @property
    def begun(self) -> bool:
        """Some token was accepted."""
        return any(each.token_ids for each in self._lists)

    @property
    def num_output(self) -> int:
        """Tokens that count as usage, over all choices."""
        return sum(each.num_output for each in self._lists)

    @property
    def num_wasted(self) -> int:
        """Tokens made after a choice's end, as far as is known."""
        return sum(each.num_wasted for each in self._lists)

    def tails(self) -> tuple[Tail, ...]:
        """What a new attempt continues: the accepted tokens of each live choice."""
        return tuple(Tail(each.choice, tuple(each.token_ids)) for each in self.live)

    def new_attempt(self) -> None:
        """Forget what waits of the attempt before."""
        for each in self._lists:
            each.new_attempt()

    def end_full_ones(self) -> list[Update]:
        """End live choices that have all their tokens: a new attempt would have none to make."""
        full = [each for each in self.live if each.next_index >= self._max_tokens]
        return [each.end("length") for each in full]
