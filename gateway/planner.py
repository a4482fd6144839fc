"""From the roster to a route: gathers what is known about each worker and asks the router."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.candidate import Bar, Candidate, Need, Route, Shortage
from gateway.in_flight import InFlight, Share
from gateway.kept_out import KeptOut, Standing
from gateway.router import choose, last_resort
from protocol.errors import Code
from protocol.messages import Peer, WorkerStatus

if TYPE_CHECKING:
    from gateway.affinity import Affinity
    from gateway.history import History
    from gateway.prefix import Prefix
    from runtime.roster import Member, Roster

ROLES = ("prefill", "decode")
FOREVER = frozenset({Code.NEVER_FITS.value, Code.TOO_LONG.value, Code.MISMATCH.value, Code.BAD_REQUEST.value})
"""Refusals that no heartbeat changes."""


class Planner:
    """Knows the workers; each route it gives is counted at its workers until they count it themselves."""

    def __init__(self, roster: Roster, affinity: Affinity, in_flight: InFlight, kept_out: KeptOut) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._roster = roster
        self._affinity = affinity
        self._in_flight = in_flight
        self._kept_out = kept_out
        self._seen: dict[Peer, str] = {}
        self._turns: dict[Peer, int] = {}
        self._turn = 0

    def look(self) -> None:
        """Remember who may get work, so that a worker that misses beats is still known."""
        for role in ROLES:
            for member, _ in self._roster.workers(role):
                self._seen[member.peer] = role

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        self._seen.pop(worker, None)
        self._turns.pop(worker, None)

    def route(self, need: Need, prefix: Prefix, history: History) -> Route | Shortage:
        """Where this request can go now, or why nowhere."""
        self.look()
        prefills, decodes = (self._candidates(role, need, prefix, history) for role in ROLES)
        found = choose(need, prefills, decodes)
        if found is Shortage.FULL:
            found = choose(need, last_resort(need, prefills), last_resort(need, decodes))
        return found

    def numerics(self, worker: Peer) -> str:
        """What its heartbeat says; "" once it's gone."""
        member = self._roster.member(worker)
        status = member.status if member is not None else None
        return status.numerics if isinstance(status, WorkerStatus) else ""

    def place(self, route: Route, request_id: str, need: Need, prefix: Prefix) -> None:
        """The request is sent there."""
        self._turn += 1
        for peer in route.peers:
            member = self._roster.member(peer)
            if member is None or not isinstance(member.status, WorkerStatus):
                continue
            hashes = prefix.hashes(member.status)
            cached = self._affinity.cached_tokens(hashes, [peer]).get(peer, 0)
            prefills, decodes = peer == route.prefill, peer == route.decode
            share = Share(
                tokens=max(need.num_tokens - cached, 0) if prefills else 0,
                blocks=need.num_blocks,
                seqs=need.num_choices if decodes else 0,
            )
            self._in_flight.place(peer, request_id, share)
            self._kept_out.placed(peer, request_id)
            self._turns[peer] = self._turn
            if not decodes:  # at once, so that a burst with one prefix goes to one worker
                self._affinity.note(hashes, peer)

    def adopted(self, worker: Peer, prefix: Prefix) -> None:
        """The decode worker has the prompt's blocks now, and not before: local budgets rely on it."""
        member = self._roster.member(worker)
        if member is not None and isinstance(member.status, WorkerStatus):
            self._affinity.note(prefix.hashes(member.status), worker)

    def _candidates(self, role: str, need: Need, prefix: Prefix, history: History) -> list[Candidate]:
        members = list(self.members(role))
        peers = [member.peer for member, _, _ in members]
        cached: dict[Peer, int] = {}
        for kind in {(s.weights, s.kv_dtype): s for _, s, _ in members}.values():
            cached.update(self._affinity.cached_tokens(prefix.hashes(kind), peers))
        found = []
        for member, status, fresh in members:
            extra = self._in_flight.extra(member.peer, member.heard)
            candidate = Candidate(
                peer=member.peer,
                status=status,
                cached_tokens=cached.get(member.peer, 0),
                extra_tokens=extra.tokens,
                extra_blocks=extra.blocks,
                extra_seqs=extra.seqs,
                turn=self._turns.get(member.peer, 0),
                avoid=history.avoids(member.peer),
                alike=history.is_alike(status.numerics),
                prefer=member.peer in history.prefer,
                bar=_bar(member, status, need, history) if fresh else Bar.NOW,
            )
            found.append(self._with_standing(candidate))
        return found

    def _with_standing(self, candidate: Candidate) -> Candidate:
        """A worker that is kept out isn't to be had, unless it is due for a probe."""
        standing = self._kept_out.standing(candidate.peer)
        if candidate.bar is not Bar.NONE or standing in (Standing.IN, Standing.DUE):
            return candidate
        since = self._kept_out.since(candidate.peer) if standing is Standing.OUT else None
        return replace(candidate, bar=Bar.OUT, out_since=since)

    def context_len(self) -> int:
        """The longest context of any pair of known workers; 0 if no decode worker is known."""
        prefills, decodes = (
            [status.max_model_len for _, status, _ in self.members(role)] for role in ("prefill", "decode")
        )
        longest = max(decodes, default=0)
        return min(longest, max(prefills)) if prefills else longest

    def members(self, role: str) -> Iterable[tuple[Member, WorkerStatus, bool]]:
        """Workers of the role, and whether each is heard well enough to get work now."""
        for peer, seen_role in self._seen.items():
            member = self._roster.member(peer) if seen_role == role else None
            if member is None or not isinstance(member.status, WorkerStatus):
                continue
            if member.status.state == "ready":
                yield member, member.status, self._roster.fresh(member)


def _bar(member: Member, status: WorkerStatus, need: Need, history: History) -> Bar:
    """A refusal holds until a heartbeat after it shows room."""
    refusal = history.refusals.get(member.peer)
    if refusal is None:
        return Bar.NONE
    at, code = refusal
    if code in FOREVER:
        return Bar.NEVER
    if member.heard <= at:
        return Bar.NOW
    if status.role == "decode":
        full = status.num_running + status.num_waiting >= max(status.max_num_seqs, 1)
        room = status.free_blocks - status.reserved_blocks
        if full or room < min(need.num_blocks, status.total_blocks):
            return Bar.NOW
    return Bar.NONE
