"""What every bus keeps beside its connection: counters, who is told of changes, fault isolation."""

import asyncio

from runtime.bus import BusCounters, Handler, StateCallback
from runtime.logs import get_logger

log = get_logger("bus")


class BusState:
    """Connected or not, with counters and callbacks. Lives on one event loop."""

    def __init__(self) -> None:
        self.counters = BusCounters()
        self._connected = False
        self._was_connected = False
        self._settled = asyncio.Event()  # connected, or ended for good
        self._callbacks: list[StateCallback] = []

    @property
    def connected(self) -> bool:
        """Whether there is a server just now."""
        return self._connected

    def set_connected(self, connected: bool) -> None:
        """Note a change, and have the callbacks called in the loop's next turn."""
        if connected == self._connected:
            return
        self._connected = connected
        if connected:
            self.counters.reconnects += self._was_connected
            self._was_connected = True
            self._settled.set()
        else:
            self._settled.clear()
        for callback in tuple(self._callbacks):
            asyncio.get_running_loop().call_soon(_guarded, callback, connected)

    def end(self) -> None:
        """Disconnected for good: callbacks hear it, waiters are let go."""
        self.set_connected(False)
        self._callbacks.clear()
        self._settled.set()

    async def wait_connected(self) -> None:
        """Return when connected, or ended."""
        await self._settled.wait()

    def on_change(self, callback: StateCallback) -> None:
        """Call `callback` at each later change."""
        self._callbacks.append(callback)

    def note_published(self, num_bytes: int) -> None:
        """Count a message that has left the queue for the server."""
        self.counters.published_messages += 1
        self.counters.published_bytes += num_bytes

    def note_dropped(self, subject: str, num_bytes: int, why: str) -> None:
        """Count a message that was thrown away, and say so at most once a second."""
        self.counters.dropped_messages += 1
        self.counters.dropped_bytes += num_bytes
        log.every(1.0, why).warning(
            "bus_message_dropped",
            subject=subject,
            why=why,
            dropped_so_far=self.counters.dropped_messages,
        )

    def call(self, handler: Handler, subject: str, payload: bytes) -> None:
        """Give a handler its message; what it raises is logged and counted, and ends here."""
        self.counters.received_messages += 1
        self.counters.received_bytes += len(payload)
        try:
            handler(subject, payload)
        except Exception:
            self.counters.handler_errors += 1
            log.exception("bus_handler_failed", subject=subject)


def _guarded(callback: StateCallback, connected: bool) -> None:
    try:
        callback(connected)
    except Exception:
        log.exception("bus_state_callback_failed", connected=connected)
