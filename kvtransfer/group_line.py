"""One end of a process group: the thread in which it is made and used, and what it tells the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from kvtransfer.group_store import BusStore, StoreError
from kvtransfer.pair_group import OP_S, GroupError, MakeGroup, PairGroup
from protocol.link_messages import GroupEnded, GroupWord
from protocol.messages import Peer
from runtime.logs import get_logger
from runtime.postbox import Postbox

JOIN_S = 10.0
"""Both ranks have to be there within this."""
CLOSE_S = OP_S + 1.0
"""Within this every thread has ended: none may be left in a backend's call when the interpreter ends."""
MAX_LINES = 64
"""Peers at a time, each with two or three threads and some descriptors; those count that are still ending."""

log = get_logger("group")


class GroupLine:
    """Makes a group with ``peer`` in a thread of its own, greets the other end, then runs ``work`` there.

    ``on_end(reason)`` is called on the loop, at most once and never after ``close``.
    """

    def __init__(self, postbox: Postbox, peer: Peer, group: str, on_end: Callable[[str], None]) -> None:
        """Needs a running loop. ``start`` begins."""
        self.is_open = False
        self.is_closed = False
        self.group = group
        self.peer = peer
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._postbox = postbox
        self._store = BusStore(lambda key, value: self.on_loop(self._say, GroupWord(group, key, value)), JOIN_S)
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether its thread hasn't ended."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, make: MakeGroup, rank: int, work: Callable[[PairGroup], None]) -> None:
        """``work(group)`` returns when nothing is left to do. Raises ``OSError`` when there can be no more threads."""
        self._thread = threading.Thread(
            target=self._run, args=(make, rank, work), name=f"group-{self.peer.id}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def hear(self, word: GroupWord) -> None:
        """The other end's entry."""
        try:
            self._store.hear(word.key, word.value)
        except StoreError as error:
            self._store.give_up(str(error))

    def close(self) -> None:
        """Nothing more is told; the thread ends with what it does just now. Idempotent."""
        self.is_closed = True
        self.is_open = False
        self._store.give_up("this end was closed")

    def join(self, within_s: float) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(within_s)

    def on_loop(self, call: Callable[..., None], *args: object) -> None:
        """From the thread: call on the loop."""
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self, make: MakeGroup, rank: int, work: Callable[[PairGroup], None]) -> None:
        try:
            self._store.meet(rank)
            group = make(self._store, rank)
            _greet(group, rank, self.group)
            self._store.seal()
            self.on_loop(self._opened)
            work(group)
        except (GroupError, StoreError) as error:
            self.on_loop(self._ended, str(error))
        except Exception as error:
            log.exception("group_thread_failed", peer=self.peer.id)
            self.on_loop(self._ended, f"{type(error).__name__}: {error}")

    def _say(self, word: GroupWord) -> None:
        if not self.is_closed:
            self._postbox.send(self.peer, word)

    def _opened(self) -> None:
        if not self.is_closed:
            self.is_open = True
            log.info("group_joined", peer=self.peer.id)

    def _ended(self, reason: str) -> None:
        if not self.is_closed:
            self.close()
            self._on_end(reason)


class LineEnd(Protocol):
    """What a sender or a receiver keeps for a line."""

    line: GroupLine

    def work(self, group: PairGroup) -> None:
        """In the line's thread, once both ranks have joined; returns when nothing is left to do."""

    def close(self) -> None:
        """Close the line, and let its thread end."""


L = TypeVar("L", bound=LineEnd)


class GroupEnd(Generic[L]):
    """What senders and receivers do alike: one line for each peer."""

    def __init__(self, postbox: Postbox) -> None:
        """No lines yet. Needs a running loop."""
        self.postbox = postbox
        self.lines: dict[Peer, L] = {}
        self._ending: list[GroupLine] = []

    @property
    def sharing(self) -> list[str]:
        """Peers that a group is made with."""
        return [peer.id for peer, end in self.lines.items() if end.line.is_open]

    def of(self, peer: Peer, group: str) -> L | None:
        """What is kept for a peer, if it is of this group."""
        end = self.lines.get(peer)
        return end if end is not None and end.line.group == group else None

    def no_room(self, peer: Peer) -> str:
        """Why no group can be begun with a peer just now; "" if one can."""
        self._ending = [line for line in self._ending if line.is_running]
        if sum(line.peer == peer for line in self._ending) > 1:
            return "two groups with this worker are still ending"
        if len(self.lines) + len(self._ending) >= MAX_LINES:
            return f"there are {MAX_LINES} groups already"
        return ""

    def begin(self, end: L, make: MakeGroup, rank: int) -> None:
        """Keep ``end`` and start its line."""
        self.lines[end.line.peer] = end
        try:
            end.line.start(make, rank, end.work)
        except OSError as error:
            self.failed(end.line.peer, str(error))

    def word(self, sender: Peer, word: GroupWord) -> None:
        """A peer's entry."""
        end = self.of(sender, word.group)
        if end is not None:
            end.line.hear(word)

    def lost(self, peer: Peer) -> None:
        """A life is over."""
        end = self.lines.pop(peer, None)
        if end is not None:
            end.close()
            self._ending.append(end.line)

    def failed(self, peer: Peer, reason: str) -> None:
        """The group is over; the peer, which would go on, hears it."""
        log.every(60.0, f"{peer.id} {reason}").warning("group_failed", peer=peer.id, reason=reason)
        end = self.lines.get(peer)
        if end is not None:
            self.postbox.send(peer, GroupEnded(end.line.group, reason))
        self.lost(peer)

    def close(self) -> None:
        """Leave all groups. Idempotent."""
        for peer, end in list(self.lines.items()):
            self.postbox.send(peer, GroupEnded(end.line.group, "this worker leaves"))
            self.lost(peer)

    def join(self) -> None:
        """Wait for all threads that are ending. Blocks, ``CLOSE_S`` at the most."""
        end = time.monotonic() + CLOSE_S
        while self._ending:
            self._ending.pop().join(max(0.0, end - time.monotonic()))


def _greet(group: PairGroup, rank: int, name: str) -> None:
    """Each end hears the group's name from the other. Raises ``GroupError``."""
    mine, theirs = bytearray(name.encode()), bytearray(len(name))
    if rank == 0:
        group.send(mine, len(mine))
        group.receive(theirs, len(theirs))
    else:
        group.receive(theirs, len(theirs))
        group.send(mine, len(mine))
    if mine != theirs:
        raise GroupError("the other rank is of another group")
