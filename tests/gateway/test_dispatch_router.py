"""Routing as a function: what it may never do, and the stated worth of affinity."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.affinity import MAX_HOLDERS, Affinity
from gateway.candidate import BLOCK_TOKENS, Bar, Candidate, Need, Route, Shortage
from gateway.in_flight import InFlight, Share
from gateway.prefix import Prefix
from gateway.router import AFFINITY_LOAD, NO_LIMIT, choose, decode_load, prefill_rank
from protocol.messages import Peer
from tests.support.worker_habits import status

NEED = Need(num_tokens=320, num_choices=1, context_len=400)


def worker(worker_id: str, role: str, **fields: object) -> Candidate:
    """An idle candidate; fields of its status and of itself alike."""
    own = {k: v for k, v in fields.items() if k in Candidate.__dataclass_fields__}
    load = {k: v for k, v in fields.items() if k not in own}
    return replace(Candidate(Peer(worker_id, "e"), status(role, **load)), **own)  # type: ignore[arg-type]


def candidates(role: str) -> st.SearchStrategy[list[Candidate]]:
    one = st.builds(
        lambda fingerprint, length, free, tokens, seqs, local, bar, avoid, prefer, cached: worker(
            "", role, fingerprint=fingerprint, max_model_len=length, free_blocks=free,
            waiting_tokens=tokens, num_running=seqs, local_prefill_tokens=local, bar=bar,
            avoid=avoid, prefer=prefer, cached_tokens=cached,
        ),
        st.sampled_from("fg"), st.sampled_from([300, 400, 4096]), st.sampled_from([0, 20, 21, 1000]),
        st.integers(0, 2000), st.integers(0, 20), st.sampled_from([0, 200, 320, NO_LIMIT]),
        st.sampled_from([Bar.NONE, Bar.NONE, Bar.NOW, Bar.NEVER]), st.booleans(), st.booleans(),
        st.sampled_from([0, 160, 320]),
    )  # fmt: skip

    def name(found: list[Candidate]) -> list[Candidate]:
        return [replace(c, peer=Peer(f"{role}{i}", "e")) for i, c in enumerate(found)]

    return st.lists(one, max_size=4).map(name)


def usable(c: Candidate) -> bool:
    return c.bar is Bar.NONE and c.status.max_model_len >= NEED.context_len


def roomy(c: Candidate) -> bool:
    return usable(c) and c.room_blocks >= NEED.num_blocks


@given(candidates("prefill"), candidates("decode"), st.booleans())
def test_a_route_is_always_one_that_can_work(
    prefills: list[Candidate], decodes: list[Candidate], one_token: bool
) -> None:
    route = choose(replace(NEED, one_token=one_token), prefills, decodes)
    by_peer = {c.peer: c for c in (*prefills, *decodes)}
    if not isinstance(route, Route):
        return
    prefill = by_peer[route.prefill]
    assert usable(prefill)
    if not route.decode.id:
        assert one_token
        assert prefill.status.role == "prefill"
        return
    decode = by_peer[route.decode]
    assert roomy(decode)
    assert decode.status.fingerprint == prefill.status.fingerprint
    assert route.local == (route.path != "split")
    if route.local:
        limit = decode.status.local_prefill_tokens
        assert limit == NO_LIMIT or max(NEED.num_tokens - decode.cached_tokens, 1) <= limit
        assert (route.path == "both") == (limit == NO_LIMIT and not prefills)


@given(candidates("prefill"), candidates("decode"))
def test_a_pair_that_can_work_is_never_overlooked(prefills: list[Candidate], decodes: list[Candidate]) -> None:
    route = choose(NEED, prefills, decodes)
    pairs = [
        (p, d)
        for p in prefills
        for d in decodes
        if usable(p) and roomy(d) and p.status.fingerprint == d.status.fingerprint
    ]
    assert (isinstance(route, Route) and route.path == "split") == bool(pairs)
    if pairs and isinstance(route, Route):
        chosen = [c for c in (*prefills, *decodes) if c.peer in route.peers]
        assert any(c.avoid for c in chosen) == all(p.avoid or d.avoid for p, d in pairs)


@given(candidates("prefill"), candidates("decode"))
def test_affinity_never_beats_a_clearly_less_loaded_worker(prefills: list[Candidate], decodes: list[Candidate]) -> None:
    plain = [replace(c, avoid=False, prefer=False) for c in prefills]
    both = [replace(c, avoid=False, prefer=False) for c in decodes]
    route = choose(NEED, plain, both)
    if not isinstance(route, Route) or route.local:
        return
    p = next(c for c in plain if c.peer == route.prefill)
    d = next(c for c in both if c.peer == route.decode)
    for other in plain:
        if usable(other) and other.status.fingerprint == p.status.fingerprint:
            assert p.status.waiting_tokens - p.cached_tokens <= other.status.waiting_tokens
            assert prefill_rank(p, NEED) <= prefill_rank(other, NEED)
    for other in both:
        if roomy(other) and other.status.fingerprint == d.status.fingerprint:
            assert decode_load(d) <= decode_load(other) + AFFINITY_LOAD


@given(candidates("prefill"), candidates("decode"))
def test_choosing_is_a_function_of_its_arguments_whatever_their_order(
    prefills: list[Candidate], decodes: list[Candidate]
) -> None:
    assert choose(NEED, prefills, decodes) == choose(NEED, prefills[::-1], decodes[::-1])


def test_the_decode_worker_with_fewer_blocks_or_sequences_in_use_is_chosen() -> None:
    p = worker("p", "prefill")
    idle = worker("d1", "decode")
    for busy in (
        worker("d0", "decode", free_blocks=500),
        worker("d0", "decode", reserved_blocks=500),
        worker("d0", "decode", num_running=8),
        worker("d0", "decode", num_waiting=8),
        worker("d0", "decode", extra_seqs=8),
        worker("d0", "decode", extra_blocks=500),
    ):
        route = choose(NEED, [p], [busy, idle])
        assert isinstance(route, Route)
        assert route.decode == idle.peer


def test_equally_idle_workers_take_turns() -> None:
    p1, p2 = worker("p1", "prefill", turn=7), worker("p2", "prefill", turn=6)
    route = choose(NEED, [p1, p2], [worker("d", "decode")])
    assert isinstance(route, Route)
    assert route.prefill == p2.peer


def test_what_looks_larger_than_a_whole_pool_is_for_the_worker_to_judge() -> None:
    route = choose(NEED, [worker("p", "prefill")], [worker("d", "decode", total_blocks=5, free_blocks=5)])
    assert isinstance(route, Route)


def test_each_shortage_has_its_reason() -> None:
    p, d = worker("p", "prefill"), worker("d", "decode")
    assert choose(NEED, [], []) is Shortage.NO_WORKER
    assert choose(NEED, [p], []) is Shortage.NO_WORKER
    assert choose(NEED, [], [d]) is Shortage.NO_WORKER
    assert choose(NEED, [p], [replace(d, bar=Bar.NOW)]) is Shortage.FULL
    assert choose(NEED, [p], [replace(d, bar=Bar.NEVER)]) is Shortage.NEVER_FITS
    assert choose(NEED, [p], [worker("d", "decode", free_blocks=3)]) is Shortage.FULL
    assert choose(replace(NEED, context_len=5000), [p], [d]) is Shortage.TOO_LONG
    assert choose(NEED, [p], [worker("d", "decode", fingerprint="g")]) is Shortage.NO_WORKER


def test_a_busy_prefill_pool_is_no_reason_for_local_prefill_while_decode_workers_are_full() -> None:
    full = worker("d", "decode", free_blocks=3, local_prefill_tokens=NO_LIMIT)
    other = worker("e", "decode", fingerprint="g", local_prefill_tokens=NO_LIMIT)
    assert choose(NEED, [worker("p", "prefill")], [full, other]) is Shortage.FULL


def hashes(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def test_affinity_counts_leading_blocks_only() -> None:
    affinity = Affinity(100)
    one, two = Peer("a", "1"), Peer("b", "1")
    affinity.note(hashes("x", "y", "z"), one)
    affinity.note(hashes("x"), two)
    assert affinity.cached_tokens(hashes("x", "y", "q"), [one, two]) == {
        one: 2 * BLOCK_TOKENS,
        two: BLOCK_TOKENS,
    }
    assert affinity.cached_tokens(hashes("q", "x"), [one, two]) == {}


def test_a_worker_that_restarted_has_an_empty_cache() -> None:
    """Replays llm-d-router #2853."""
    affinity = Affinity(100)
    affinity.note(hashes("x"), Peer("a", "1"))
    assert affinity.cached_tokens(hashes("x"), [Peer("a", "2")]) == {}


def test_caches_of_two_models_have_no_name_in_common() -> None:
    """Replays vllm #44250, LMCache #2961, llm-d-kv-cache #243: a shared index knew no model."""
    prefix = Prefix(tuple(range(4 * BLOCK_TOKENS)), "")
    kinds = [status("prefill", weights=w, kv_dtype=d) for w in ("v", "w") for d in ("bfloat16", "float32")]
    names = [name for kind in kinds for name in prefix.hashes(kind)]
    assert len(set(names)) == len(names) == 4 * 4
    affinity = Affinity(100)
    affinity.note(prefix.hashes(kinds[0]), Peer("a", "1"))
    assert affinity.cached_tokens(prefix.hashes(kinds[2]), [Peer("a", "1")]) == {}


def test_affinity_is_bounded_and_forgets_the_ends_of_old_prompts_first() -> None:
    affinity = Affinity(4)
    one = Peer("a", "1")
    affinity.note(hashes("x1", "x2", "x3"), one)
    affinity.note(hashes("y1", "y2"), one)
    assert len(affinity) == 4
    assert affinity.cached_tokens(hashes("x1", "x2", "x3"), [one]) == {one: 2 * BLOCK_TOKENS}
    for number in range(20):
        affinity.note(hashes("y1"), Peer(f"w{number}", "1"))
    assert len(affinity._holders[b"y1"]) == MAX_HOLDERS


def test_a_share_counts_until_a_heartbeat_comes_after_its_acceptance() -> None:
    in_flight, peer = InFlight(), Peer("a", "1")
    in_flight.place(peer, "r1", Share(10, 2, 1))
    in_flight.place(peer, "r2", Share(5, 1, 1))
    assert in_flight.extra(peer, heard=100.0) == Share(15, 3, 2)
    in_flight.accepted(peer, "r1", now=101.0)
    assert in_flight.extra(peer, heard=100.5) == Share(15, 3, 2)
    assert in_flight.extra(peer, heard=101.5) == Share(5, 1, 1)
    in_flight.release(peer, "r2", now=101.6)
    assert len(in_flight) == 1
    assert in_flight.extra(peer, heard=101.5) == Share()


def test_a_counted_share_that_ended_is_taken_off_until_the_next_heartbeat() -> None:
    in_flight, peer = InFlight(), Peer("a", "1")
    in_flight.place(peer, "r1", Share(10, 2, 1))
    in_flight.accepted(peer, "r1", now=99.0)
    assert in_flight.extra(peer, heard=100.0) == Share()
    in_flight.release(peer, "r1", now=100.3)
    assert in_flight.extra(peer, heard=100.0) == Share(-10, -2, -1)
    assert in_flight.extra(peer, heard=101.0) == Share()
    assert len(in_flight) == 0
