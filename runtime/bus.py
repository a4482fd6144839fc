"""The bus: publish and subscribe, at most once, in order per publisher and subscription."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from runtime.errors import PayloadTooLarge

Handler = Callable[[str, bytes], None]
"""Takes (subject, payload) on the event loop. Must be quick. An exception is logged and counted."""

StateCallback = Callable[[bool], None]
"""Takes True when the bus has connected and False when it has lost its server."""

DEFAULT_MAX_PENDING_BYTES = 64 << 20
"""Bytes that may wait to be sent; enough for a second of contents, little beside a KV pool."""

MESSAGE_OVERHEAD_BYTES = 128
"""Counted on top of each waiting payload, so that a flood of empty messages is bounded too."""

CLOSE_LINGER_S = 1.0
"""Seconds that `close` gives what still waits to be sent: last words matter, but not for long."""

MAX_SUBJECT_LEN = 256
"""Longer subjects are refused: ours have a handful of short parts."""


@dataclass(slots=True)
class BusCounters:
    """What a bus has done since it was made; only the bus writes, anybody may read."""

    published_messages: int = 0
    published_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    dropped_messages: int = 0
    dropped_bytes: int = 0
    handler_errors: int = 0
    slow_consumer_events: int = 0
    reconnects: int = 0


class Subscription(Protocol):
    """One handler's interest in one subject pattern."""

    @property
    def subject(self) -> str:
        """The pattern subscribed to."""

    def close(self) -> None:
        """End it. Once this returns the handler isn't called again. May be called repeatedly."""


class Bus(Protocol):
    """Carries bytes between services.

    Messages may be lost (a cut connection, a full queue) but are neither doubled nor reordered
    by the bus itself. Methods are called on the event loop that the bus was made on.
    A publisher hears its own messages if it has subscribed to them.
    """

    @property
    def max_payload(self) -> int:
        """Bytes that the server takes in one message; may change when the bus reconnects."""

    @property
    def connected(self) -> bool:
        """Whether there is a server just now."""

    @property
    def counters(self) -> BusCounters:
        """Running totals, for metrics."""

    def publish(self, subject: str, payload: bytes) -> None:
        """Queue one message; never blocks, with or without a server.

        When more than `max_pending` bytes would wait, or after `close`, the message is dropped,
        counted, and the loss logged at most once a second.

        Raises:
            PayloadTooLarge: `payload` is longer than `max_payload`.
            ValueError: `subject` is malformed or has a wildcard.

        """

    async def drain(self) -> None:
        """Return when all that was published before has reached the server or was dropped."""

    def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call `handler` for each message on `subject` (`*` stands for one part) from now on.

        Survives reconnects; what is published while the bus is away is not made up for.

        Raises:
            ValueError: `subject` is malformed.

        """

    async def ready(self) -> None:
        """Return when the server knows all subscriptions so far; waits for a server if need be."""

    def on_state(self, callback: StateCallback) -> None:
        """Call `callback` on the loop at each later change of `connected`."""

    async def close(self) -> None:
        """Hand over what waits (`CLOSE_LINGER_S` at most), then end. May be called repeatedly."""


@lru_cache(maxsize=8192)
def check_subject(subject: str, *, wildcards: bool = False) -> str:
    """Return `subject` if it is well formed.

    Dot-separated non-empty parts of printable ASCII without blanks; `*` only as a whole part and
    only with `wildcards`; `>` nowhere.

    Raises:
        ValueError: it is anything else.

    """
    if not subject or len(subject) > MAX_SUBJECT_LEN:
        raise ValueError(f"subject must have 1 to {MAX_SUBJECT_LEN} characters: {subject[:64]!r}")
    for part in subject.split("."):
        if wildcards and part == "*":
            continue
        if not part or not all("!" <= char <= "~" and char not in "*>" for char in part):
            raise ValueError(f"malformed subject: {subject!r}")
    return subject


def check_message(subject: str, payload: bytes, max_payload: int) -> None:
    """Refuse what no bus may send.

    Raises:
        PayloadTooLarge: the payload is longer than `max_payload` bytes.
        ValueError: the subject is malformed or has a wildcard.

    """
    check_subject(subject)
    if len(payload) > max_payload:
        raise PayloadTooLarge(subject, len(payload), max_payload)


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether `subject` fits `pattern`, in which `*` stands for exactly one part."""
    if "*" not in pattern:
        return pattern == subject
    wanted, given = pattern.split("."), subject.split(".")
    return len(wanted) == len(given) and all(want in ("*", part) for want, part in zip(wanted, given, strict=True))
