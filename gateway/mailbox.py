"""Updates on their way from a request to its one reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.generation import Update


class Mailbox:
    """Filled and emptied on one loop; bounded by the request's own tokens."""

    def __init__(self) -> None:
        """Open and empty."""
        self.on_news: Callable[[], None] = lambda: None
        """Called whenever something was put in, and at the end."""
        self._updates: list[Update] = []
        self._error: GatewayError | None = None
        self._closed = False

    @property
    def over(self) -> bool:
        """Nothing more comes than what is here."""
        return self._closed

    def put(self, update: Update) -> None:
        """Hand over."""
        self._updates.append(update)
        self.on_news()

    def drop(self, choice: int) -> None:
        """The reader wants no more of this choice."""
        self._updates = [update for update in self._updates if update.choice != choice]

    def close(self, error: GatewayError | None) -> None:
        """Nothing more comes; the reader gets what is here, and then the error if there is one."""
        self._closed = True
        self._error = error
        self.on_news()

    def take(self) -> list[Update]:
        """All that is here. Raises the error that ended the request once nothing is."""
        taken, self._updates = self._updates, []
        if not taken and self._error is not None:
            raise self._error
        return taken
