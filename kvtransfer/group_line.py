"""One end of a process group: the thread in which it is made and used, and what it tells the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from kvtransfer.group_store import BusStore, StoreError
from kvtransfer.pair_group import GroupError, MakeGroup, PairGroup
from protocol.link_messages import GroupWord
from protocol.messages import Peer
from runtime.logs import get_logger
from runtime.postbox import Postbox

JOIN_S = 10.0
"""Both ranks have to be there within this."""
CLOSE_S = 1.0

log = get_logger("group")


class GroupLine:
    """Makes a group with ``peer`` in a thread of its own, greets the other end, then runs ``work`` there.

    ``on_open`` and ``on_end(reason)`` are called on the loop, the latter at most once and never after ``close``.
    """

    def __init__(self, postbox: Postbox, peer: Peer, group: str, on_end: Callable[[str], None]) -> None:
        """Needs a running loop. ``start`` begins."""
        self.is_open = False
        self.group = group
        self.peer = peer
        self._on_end = on_end
        self._closed = False
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
        self._closed = True
        self.is_open = False
        self._store.give_up("this end was closed")

    def join(self) -> None:
        """Wait for the thread, ``CLOSE_S`` at the most: one that waits for a stopped receiver ends with its time."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def on_loop(self, call: Callable[..., None], *args: object) -> None:
        """From the thread: call on the loop."""
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self, make: MakeGroup, rank: int, work: Callable[[PairGroup], None]) -> None:
        try:
            group = make(self._store, rank)
            _greet(group, rank, self.group)
            self.on_loop(self._opened)
            work(group)
        except GroupError as error:
            self.on_loop(self._ended, str(error))

    def _say(self, word: GroupWord) -> None:
        if not self._closed:
            self._postbox.send(self.peer, word)

    def _opened(self) -> None:
        if not self._closed:
            self.is_open = True
            log.info("group_joined", peer=self.peer.id)

    def _ended(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_end(reason)


class LineEnd(Protocol):
    """What a sender or a receiver keeps for a line."""

    line: GroupLine

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
            self._ending = [line for line in self._ending if line.is_running]
            self._ending.append(end.line)

    def close(self) -> None:
        """Leave all groups. Idempotent."""
        for peer in list(self.lines):
            self.lost(peer)

    def join(self) -> None:
        """Wait for threads that are ending. Blocks, ``CLOSE_S`` for each at the most."""
        while self._ending:
            self._ending.pop().join()


def _greet(group: PairGroup, rank: int, name: str) -> None:
    """Each end hears the group's name from the other. Raises ``GroupError``."""
    mine, theirs = bytearray(name.encode()), bytearray(len(name.encode()))
    if rank == 0:
        group.send(mine, len(mine))
        group.receive(theirs, len(theirs))
    else:
        group.receive(theirs, len(theirs))
        group.send(mine, len(mine))
    if mine != theirs:
        raise GroupError("the other rank is of another group")
