"""Which pair of workers takes a request: a pure function of what is known about them.

Prefill worker: the fewest tokens before the request's first token, that is queued tokens and the
request's own that aren't cached there. A cached token is worth what it saves, one token of compute:
affinity never beats a queue that is shorter by more than the cached tokens.

Decode worker: the lowest load, the larger of its shares of sequences and of blocks in use. A prompt
that is wholly cached there is worth ``AFFINITY_LOAD`` of load, a part of it that part: affinity never
beats a worker whose load is lower by more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.candidate import Bar, Candidate, Need, Route, Shortage
from protocol.messages import Peer

AFFINITY_LOAD = 0.1
NO_LIMIT = -1
"""``local_prefill_tokens`` of a worker that prefills whatever comes."""

Rank = tuple[bool, bool, bool, float, float, int, str]
"""Failed this request, other numerics, hasn't worked on it; load; turn and name."""


def choose(need: Need, prefills: Sequence[Candidate], decodes: Sequence[Candidate]) -> Route | Shortage:
    """The route, or why there is none.

    Split if a prefill worker is to be had, whatever the decode workers' own limits; else local
    prefill ("fallback", or "both" where no prefill worker exists and the worker has no limit).
    """
    able_prefills = [c for c in prefills if _able(c, need)]
    able_decodes = [c for c in decodes if _able(c, need)]
    free_prefills = [c for c in able_prefills if c.bar is Bar.NONE]
    free_decodes = [c for c in able_decodes if _has_room(c, need)]
    if need.one_token and free_prefills:
        best = min(free_prefills, key=lambda c: prefill_rank(c, need))
        return Route("split", best.peer, Peer())
    pair = _best_pair(need, free_prefills, free_decodes)
    if pair is not None:
        return Route("split", pair[0].peer, pair[1].peer)
    local_decodes = [c for c in able_decodes if can_prefill(c, need)]
    if not _best_pair(need, free_prefills, able_decodes):
        local = [c for c in local_decodes if _has_room(c, need)]
        if local:
            best = min(local, key=lambda c: decode_rank(c, need))
            unlimited = best.status.local_prefill_tokens == NO_LIMIT
            path = "both" if unlimited and not prefills else "fallback"
            return Route(path, best.peer, best.peer)
    can_split = _best_pair(need, able_prefills, able_decodes) is not None
    if can_split or local_decodes or (need.one_token and able_prefills):
        return Shortage.FULL
    return _verdict(need, prefills, decodes)


def last_resort(need: Need, pool: Sequence[Candidate]) -> list[Candidate]:
    """The pool, with the worker that has been kept out longest let in if nobody else could ever serve."""
    able = [c for c in pool if _able(c, need)]
    tried = [c for c in able if c.bar is Bar.OUT and c.out_since is not None]
    if not tried or any(c.bar is not Bar.OUT for c in able):
        return list(pool)
    best = min(tried, key=lambda c: (c.out_since, c.peer.id))
    return [replace(c, bar=Bar.NONE) if c is best else c for c in pool]


def prefill_rank(candidate: Candidate, need: Need) -> Rank:
    """Lower is better: tokens ahead of this request's first token."""
    status = candidate.status
    own = max(need.num_tokens - candidate.cached_tokens, 0)
    ahead = max(status.waiting_tokens + candidate.extra_tokens, 0) + own
    return _rank(candidate, ahead, status.num_running + status.num_waiting)


def decode_rank(candidate: Candidate, need: Need) -> Rank:
    """Lower is better: load, less what the cached part of the prompt is worth."""
    cached = min(candidate.cached_tokens / max(need.num_tokens, 1), 1.0)
    cost = decode_load(candidate) - AFFINITY_LOAD * cached
    return _rank(candidate, cost, candidate.status.waiting_tokens + candidate.extra_tokens)


def decode_load(candidate: Candidate) -> float:
    """The larger of two shares: sequences of the most it may run, blocks in use of all."""
    status = candidate.status
    seqs = max(status.num_running + status.num_waiting + candidate.extra_seqs, 0)
    used = status.total_blocks - candidate.room_blocks
    return max(seqs / max(status.max_num_seqs, 1), used / max(status.total_blocks, 1))


def can_prefill(candidate: Candidate, need: Need) -> bool:
    """Its own limit allows to prefill this request without a prefill worker."""
    limit = candidate.status.local_prefill_tokens
    return limit == NO_LIMIT or max(need.num_tokens - candidate.cached_tokens, 1) <= limit


def _rank(candidate: Candidate, cost: float, second: float) -> Rank:
    return (
        candidate.avoid,
        not candidate.alike,
        not candidate.prefer,
        cost,
        second,
        candidate.turn,
        candidate.peer.id,
    )


def _able(candidate: Candidate, need: Need) -> bool:
    return candidate.bar is not Bar.NEVER and _long_enough(candidate, need)


def _long_enough(candidate: Candidate, need: Need) -> bool:
    return candidate.status.max_model_len >= need.context_len


def _has_room(candidate: Candidate, need: Need) -> bool:
    """What looks too large for the whole pool is offered all the same: the worker's verdict ends it."""
    too_large = need.num_blocks > candidate.status.total_blocks
    return candidate.bar is Bar.NONE and (too_large or need.num_blocks <= candidate.room_blocks)


def _best_pair(
    need: Need, prefills: Iterable[Candidate], decodes: Iterable[Candidate]
) -> tuple[Candidate, Candidate] | None:
    """The best of each kind among workers that fit each other; failed ones only if no other pair."""
    best_prefill = _best_by_fingerprint((c, prefill_rank(c, need)) for c in prefills)
    best_decode = _best_by_fingerprint((c, decode_rank(c, need)) for c in decodes)
    both = best_prefill.keys() & best_decode.keys()
    if not both:
        return None

    def worth(fingerprint: str) -> tuple[bool, bool, bool, Rank, Rank]:
        prefill, decode = best_prefill[fingerprint][1], best_decode[fingerprint][1]
        return (prefill[0] or decode[0], prefill[1] or decode[1], prefill[2] and decode[2], decode, prefill)

    chosen = min(both, key=worth)
    return best_prefill[chosen][0], best_decode[chosen][0]


def _best_by_fingerprint(
    ranked: Iterable[tuple[Candidate, Rank]],
) -> dict[str, tuple[Candidate, Rank]]:
    best: dict[str, tuple[Candidate, Rank]] = {}
    for candidate, rank in ranked:
        fingerprint = candidate.status.fingerprint
        if fingerprint not in best or rank < best[fingerprint][1]:
            best[fingerprint] = (candidate, rank)
    return best


def _verdict(need: Need, prefills: Sequence[Candidate], decodes: Sequence[Candidate]) -> Shortage:
    """Why no worker could ever take it."""
    known = (*prefills, *decodes)
    if any(c.bar is Bar.NEVER and _long_enough(c, need) for c in known):
        return Shortage.NEVER_FITS
    deciding = known if need.one_token else decodes
    if deciding and not any(_long_enough(c, need) for c in deciding):
        return Shortage.TOO_LONG
    if prefills and decodes and not any(_long_enough(c, need) for c in prefills):
        return Shortage.TOO_LONG
    return Shortage.NO_WORKER
