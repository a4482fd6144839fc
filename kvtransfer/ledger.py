"""A worker's ledger: every hold with its owner, state and age, and the pool's sum."""

from __future__ import annotations

from kvtransfer.worker import Worker


def ledger(worker: Worker) -> dict[str, object]:
    """What ``/debug/ledger`` answers; ages are in seconds. ``free + cached + held == total`` at all times.

    ``link``: how contents travel, and which workers share memory with this one just now.
    """
    ages = worker.holds.ages_s()
    holds = [
        {
            "request_id": key[0],
            "attempt": key[1],
            "owner": held.gateway.id,
            "other": held.other.id,
            "state": worker.state_of(key),
            "age_s": round(ages.get(key, 0.0), 3),
        }
        for key, held in worker.held.items()
    ]
    load = worker.load
    pool = {
        "total": load.total_blocks,
        "free": load.free_blocks,
        "cached": load.cached_blocks,
        "held": load.held_blocks,
        "reserved": load.reserved_blocks,
    }
    link = worker.parts.link
    links = {"name": link.name, "sharing": list(link.sharing)}
    return {"worker": worker.parts.postbox.me.id, "pool": pool, "holds": holds, "link": links}
