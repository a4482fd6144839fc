"""Messages to and from one process: envelopes, epochs, and frames longer than the payload limit."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from protocol import subjects
from protocol.codec import decode, encode
from protocol.errors import WireError
from protocol.messages import Envelope, Message, Part, Peer
from runtime.bus import Bus, Subscription
from runtime.logs import get_logger
from runtime.open_frames import OpenFrames

M = TypeVar("M", bound=Message)

PART_OVERHEAD_BYTES = 512
"""Room for a part's envelope and ids: three ids of at most 64 bytes, two epochs, lengths."""
MAX_PEERS = 1 << 14
"""Processes whose newest life is remembered; the one heard first is forgotten first."""

MAX_EPOCH_CHARS = 64
MAX_REASON_CHARS = 200
"""A refused frame may repeat its sender's words, but not at length."""

log = get_logger("postbox")


class Postbox:
    """Sends messages to peers and hands received ones to the handler of their type.

    What comes from an older life of a known process, or is meant for an older life of this one, is
    dropped. The first message of a newer life ends the older one: ``on_replaced`` hears of it first.
    """

    def __init__(self, bus: Bus, me: Peer) -> None:
        """``me`` is the identity that every envelope carries."""
        self.bus = bus
        self.me = me
        self._handlers: dict[type[Any], Callable[[Peer, Any], None]] = {}
        self._replaced: list[Callable[[Peer], None]] = []
        self._epochs: OrderedDict[str, str] = OrderedDict()
        self._open_frames = OpenFrames()
        self.num_refused = 0
        self._subscriptions: list[Subscription] = []

    def on(self, kind: type[M], handler: Callable[[Peer, M], None]) -> None:
        """Call ``handler(sender, message)`` for each message of this type. One handler a type."""
        if kind in self._handlers:
            raise ValueError(f"{kind.__name__} has a handler already")
        self._handlers[kind] = handler

    def on_replaced(self, callback: Callable[[Peer], None]) -> None:
        """Call with the old identity when a newer life of the same id is heard."""
        self._replaced.append(callback)

    async def open(self) -> None:
        """Start to receive; returns when the bus knows about it."""
        for subject in (subjects.inbox(self.me.id), subjects.HEARTBEATS):
            self._subscriptions.append(self.bus.subscribe(subject, self._receive))
        await self.bus.ready()

    def close(self) -> None:
        """Stop to receive. Idempotent; the bus stays open."""
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()

    def send(self, to: Peer, message: Message) -> None:
        """To one life of one process; may be lost on the way."""
        self._publish(subjects.inbox(to.id, subjects.role_of(self.me.id)), to.epoch, message)

    def broadcast(self, message: Message) -> None:
        """To every process on the bus, this one included."""
        self._publish(subjects.heartbeat(self.me.id), "", message)

    def _publish(self, subject: str, to_epoch: str, message: Message) -> None:
        frame = encode(Envelope(self.me, to_epoch), message)
        if len(frame) <= self.bus.max_payload:
            self.bus.publish(subject, frame)
            return
        size = self.bus.max_payload - PART_OVERHEAD_BYTES
        bodies = [frame[start : start + size] for start in range(0, len(frame), size)]
        frame_id = secrets.token_hex(8)
        for index, body in enumerate(bodies):
            part = Part(frame_id, index, len(bodies), body)
            self.bus.publish(subject, encode(Envelope(self.me, to_epoch), part))

    def _receive(self, subject: str, frame: bytes) -> None:
        try:
            envelope, message = decode(frame)
            self._check_role(subject, envelope.sender)
            if not self._current(envelope):
                return
            if isinstance(message, Part):
                whole = self._open_frames.add(envelope.sender, message)
                if whole is None:
                    return
                carrier = envelope
                envelope, message = decode(whole)
                if envelope != carrier:
                    raise WireError("a frame has another envelope than its parts")
        except WireError as error:
            self.num_refused += 1
            reason = str(error)[:MAX_REASON_CHARS]
            log.every(1.0, "refused").warning("frame_refused", subject=subject, num_bytes=len(frame), error=reason)
            return
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(envelope.sender, message)

    @staticmethod
    def _check_role(subject: str, sender: Peer) -> None:
        """A broker lets each role write to subjects with its own name alone: nobody speaks there for another role."""
        if not subject.endswith(f".{subjects.role_of(sender.id)}"):
            raise WireError(f"{sender.id:.80} is no name for a process on {subject:.80}")

    def _current(self, envelope: Envelope) -> bool:
        """Both lives are the newest known; a newer sender replaces the older one first."""
        if envelope.to_epoch not in ("", self.me.epoch):
            return False
        sender = envelope.sender
        known = self._epochs.get(sender.id, "")
        if sender.epoch < known:
            return False
        if sender.epoch > known:
            self._remember(sender)
            if known:
                log.info("peer_restarted", peer=sender.id)
                for callback in self._replaced:
                    callback(Peer(sender.id, known))
        return True

    def _remember(self, sender: Peer) -> None:
        """The newest life of its id."""
        try:
            subjects.check_process_id(sender.id)
        except ValueError:
            raise WireError("a sender's id can't be") from None
        if len(sender.epoch) > MAX_EPOCH_CHARS:
            raise WireError("a sender's epoch is too long")
        self._epochs[sender.id] = sender.epoch
        if len(self._epochs) > MAX_PEERS:
            self._epochs.popitem(last=False)
