"""Stands in for the dispatcher until the bus is there, so that probes and clients get answers from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import from_code
from gateway.health import Health, Reason
from protocol.errors import Code

if TYPE_CHECKING:
    from gateway.dispatcher import GatewayDispatcher
    from gateway.generation import Generation, Stream


class Lobby:
    """A ``Dispatcher`` that refuses everything until it is opened, and passes everything on from then."""

    def __init__(self) -> None:
        """Closed."""
        self._dispatcher: GatewayDispatcher | None = None
        self._draining = False

    @property
    def is_open(self) -> bool:
        """Whether requests get through."""
        return self._dispatcher is not None

    def open(self, dispatcher: GatewayDispatcher) -> None:
        """The bus is there."""
        self._dispatcher = dispatcher

    async def submit(self, generation: Generation) -> Stream:
        """As ``Dispatcher`` promises."""
        if self._dispatcher is None:
            raise from_code(Code.NO_WORKER, "the message bus can't be reached yet; try again later")
        return await self._dispatcher.submit(generation)

    def context_len(self) -> int:
        """As ``Dispatcher`` promises."""
        return self._dispatcher.context_len() if self._dispatcher is not None else 0

    def health(self) -> Health:
        """As ``Dispatcher`` promises."""
        if self._dispatcher is not None:
            return self._dispatcher.health()
        reasons = (Reason("bus_away", "the message bus can't be reached yet"),)
        return Health(connected=False, draining=self._draining, reasons=reasons)

    async def drain(self, within_s: float) -> None:
        """As ``GatewayDispatcher`` does it; before that there is nothing to wait for."""
        self._draining = True
        if self._dispatcher is not None:
            await self._dispatcher.drain(within_s)
