"""Who is alive: workers and gateways by their heartbeats, judged only while the bus can be heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.messages import GatewayStatus, Peer, WorkerStatus
from runtime.logs import get_logger
from runtime.postbox import Postbox

BEAT_S = 1.0
MISSED_S = 2.5
"""No new work after two missed beats (and half a one for the way)."""
DEAD_S = 5.0
"""Dead after this, and its requests move: two missed beats on busy cores are not death."""

log = get_logger("roster")


@dataclass(slots=True)
class Member:
    """One life of a worker or gateway, as last heard. Times are of the loop's clock, in seconds."""

    peer: Peer
    status: WorkerStatus | GatewayStatus
    heard: float
    moved: float


@dataclass(slots=True)
class _Ear:
    """Whether this process hears itself through the bus, and since when without a break."""

    last: float
    since: float


@dataclass(slots=True)
class _Callbacks:
    lost: list[Callable[[Peer], None]] = field(default_factory=list)
    changed: list[Callable[[], None]] = field(default_factory=list)


class Roster:
    """Members by their newest life. Times run on this process's clock alone."""

    def __init__(self, postbox: Postbox) -> None:
        """Takes over the postbox's heartbeats. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._me = postbox.me
        self._members: dict[str, Member] = {}
        now = self._loop.time()
        self._ear = _Ear(last=now, since=now)
        self._callbacks = _Callbacks()
        postbox.on(WorkerStatus, self.hear)
        postbox.on(GatewayStatus, self.hear)
        postbox.on_replaced(self._lose)
        self._timer = self._loop.call_later(BEAT_S / 2, self._judge)

    def on_lost(self, callback: Callable[[Peer], None]) -> None:
        """Call once with each life that is over: silent too long, replaced by a newer one, or gone by its own word."""
        self._callbacks.lost.append(callback)

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call whenever a heartbeat came or a member went."""
        self._callbacks.changed.append(callback)

    def workers(self, role: str) -> list[tuple[Member, WorkerStatus]]:
        """Workers of this role that may get new work, by id."""
        return [
            (member, member.status)
            for _, member in sorted(self._members.items())
            if isinstance(member.status, WorkerStatus)
            and member.status.role == role
            and member.status.state == "ready"
            and self.fresh(member)
        ]

    def member(self, peer: Peer) -> Member | None:
        """The member of exactly this life, ``None`` if it isn't known or is over."""
        member = self._members.get(peer.id)
        return member if member is not None and member.peer == peer else None

    def fresh(self, member: Member) -> bool:
        """Heard, and moving if it has work, within two beats."""
        return self._loop.time() - min(member.heard, member.moved) < MISSED_S

    def hear(self, sender: Peer, status: WorkerStatus | GatewayStatus) -> None:
        """Note a heartbeat (also one read from the store, for a newcomer)."""
        now = self._loop.time()
        if sender == self._me:
            if now - self._ear.last > MISSED_S:
                self._ear.since = now
            self._ear.last = now
            return
        if isinstance(status, WorkerStatus) and status.state == "leaving":
            self._lose(sender)
            return
        before = self._members.get(sender.id)
        if before is not None and before.peer.epoch > sender.epoch:
            return
        moved = now
        if before is not None and before.peer == sender and _stands_still(before.status, status):
            moved = before.moved
        self._members[sender.id] = Member(sender, status, now, moved)
        if before is None:
            log.info("peer_heard", peer=sender.id)
        self._changed()

    def deaf(self) -> bool:
        """This process doesn't hear itself through the bus, or not for long enough to judge others."""
        now = self._loop.time()
        if now - self._ear.last > MISSED_S:
            self._ear.since = now
        return now - self._ear.since < DEAD_S

    def close(self) -> None:
        """Stop judging."""
        self._timer.cancel()

    def _judge(self) -> None:
        self._timer = self._loop.call_later(BEAT_S / 2, self._judge)
        if self.deaf():
            return
        now = self._loop.time()
        for member in list(self._members.values()):
            if now - min(member.heard, member.moved) > DEAD_S:
                log.warning("peer_lost", peer=member.peer.id)
                self._lose(member.peer)

    def _lose(self, peer: Peer) -> None:
        member = self._members.get(peer.id)
        if member is None or member.peer != peer:
            return
        del self._members[peer.id]
        for callback in self._callbacks.lost:
            callback(peer)
        self._changed()

    def _changed(self) -> None:
        for callback in self._callbacks.changed:
            callback()


def _stands_still(before: WorkerStatus | GatewayStatus, after: WorkerStatus | GatewayStatus) -> bool:
    """A worker that has work and whose progress counter didn't move between two beats."""
    if not isinstance(before, WorkerStatus) or not isinstance(after, WorkerStatus):
        return False
    return before.busy and after.busy and before.progress == after.progress
