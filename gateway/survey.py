"""Looks at everything that decides what the gateway can do, and says what is amiss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.health import MAX_NAMED, Health, Reason
from gateway.router import NO_LIMIT

if TYPE_CHECKING:
    from gateway.hearing import Hearing
    from gateway.kept_out import KeptOut
    from gateway.planner import Planner
    from protocol.messages import Peer, WorkerStatus

Known = list[tuple["Peer", "WorkerStatus", bool]]
"""Workers of one role, and whether each is heard well enough to get work."""


def survey(planner: Planner, kept_out: KeptOut, hearing: Hearing, *, draining: bool) -> Health:
    """Health now."""
    planner.look()
    prefills, decodes = (
        [(member.peer, status, fresh) for member, status, fresh in planner.members(role)]
        for role in ("prefill", "decode")
    )
    status, paths = _paths(prefills, decodes)
    reasons = [*_missing(prefills, decodes, hearing, draining=draining), *_silent(prefills, decodes)]
    reasons += [*_kept_out(kept_out), *_misfits(prefills, decodes)]
    return Health(
        status=status,
        paths=paths,
        num_prefill=len(_fresh(prefills)),
        num_decode=len(_fresh(decodes)),
        connected=hearing.connected,
        draining=draining,
        reasons=tuple(reasons[:MAX_NAMED]),
    )


def _paths(prefills: Known, decodes: Known) -> tuple[str, tuple[str, ...]]:
    heard = _fresh(decodes)
    if {p.fingerprint for p in _fresh(prefills)} & {d.fingerprint for d in heard}:
        return "ok", ("split",)
    limits = {status.local_prefill_tokens for status in heard} - {0}
    if NO_LIMIT in limits and not prefills:
        return "ok", ("both",)
    return ("degraded", ("fallback",)) if limits else ("unavailable", ())


def _fresh(known: Known) -> list[WorkerStatus]:
    return [status for _, status, fresh in known if fresh]


def _missing(prefills: Known, decodes: Known, hearing: Hearing, *, draining: bool) -> Iterator[Reason]:
    if draining:
        yield Reason("draining", "this gateway ends and takes nothing new")
    if not hearing.connected:
        yield Reason("bus_away", "the message bus can't be reached")
    elif hearing.deaf:
        yield Reason("bus_silent", "the message bus hasn't been heard for long enough to judge workers")
    for role, known in (("prefill", prefills), ("decode", decodes)):
        if not _fresh(known):
            yield Reason(f"no_{role}_worker", f"no {role} worker is ready")


def _silent(*pools: Known) -> Iterator[Reason]:
    for peer, status, fresh in (each for pool in pools for each in pool):
        if not fresh:
            text = f"{status.role} worker {peer.id} has missed heartbeats, or makes no progress"
            yield Reason("worker_silent", text, peer.id)


def _kept_out(kept_out: KeptOut) -> Iterator[Reason]:
    for absence in kept_out.absences():
        text = f"worker {absence.worker.id} failed ({absence.code}) and is tried again in {absence.left_s:.0f} s"
        yield Reason("worker_kept_out", text, absence.worker.id)


def _misfits(prefills: Known, decodes: Known) -> Iterator[Reason]:
    """Workers that can be paired with nobody, though the other role is there."""
    for pool, others in ((prefills, decodes), (decodes, prefills)):
        known = {status.fingerprint for _, status, _ in others}
        for peer, status, _ in pool:
            if others and status.fingerprint not in known:
                text = (
                    f"{status.role} worker {peer.id} fits nobody: its fingerprint {status.fingerprint[:64]!r}"
                    " (wire, layout, KV dtype, weights, tokenizer) is nobody else's"
                )
                yield Reason("worker_fits_nobody", text, peer.id)
