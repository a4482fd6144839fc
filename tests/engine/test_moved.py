"""What was moved here goes ahead of what is new; what gives way is given back or computed again."""

from __future__ import annotations

from dataclasses import replace

from engine.api import GaveBack, NewTokens, Ping, Pong, Prefill, Rejected
from tests.support.engine_rig import GREEDY, Rig, generate, only, prefill, prompt


def of(name: str, attempt: int = 1, length: int = 40, max_tokens: int = 5, **fields: object) -> Prefill:
    """A prefill with a key of its own."""
    sampling = replace(GREEDY, max_tokens=max_tokens)
    command = replace(prefill(length, sampling), key=(name, attempt), prompt_ids=prompt(length, len(name)))
    return replace(command, **fields)  # type: ignore[arg-type]


def test_a_moved_request_starts_before_new_ones_that_came_first() -> None:
    rig = Rig(seqs=1)
    results = rig.run(of("a"), of("bb"), of("ccc", attempt=2))
    first = list(dict.fromkeys(tokens.key[0] for tokens in only(results, NewTokens)))
    assert first.index("ccc") < first.index("bb")


def test_a_ping_is_answered_between_steps() -> None:
    rig = Rig()
    rig.submit(of("a"), Ping(7))
    assert Pong(7) in rig.step()


def test_a_prefill_over_its_budget_is_rejected_and_one_that_the_cache_shortens_is_not() -> None:
    rig = Rig()
    command = of("a", length=40, max_uncached_tokens=20)
    (answer,) = rig.run(command)
    assert isinstance(answer, Rejected)
    assert answer.code == "no_space"
    rig.assert_empty()
    rig.run(replace(command, max_uncached_tokens=40))
    assert only(rig.run(replace(command, key=("again", 1))), NewTokens)


def test_what_gives_way_and_is_long_is_given_back_and_the_other_goes_on() -> None:
    limit = 400
    rig = Rig(num_blocks=34, recompute=64)
    long = [of(name, max_tokens=limit) for name in ("a", "bb")]
    results = rig.run(*long)
    assert [gone.key for gone in only(results, GaveBack)] == [("bb", 1)]
    assert rig.tokens(("a", 1)) == generate(Rig(), long[0].prompt_ids, long[0].sampling)[0]
    assert rig.load.num_preemptions == 1
    rig.assert_empty()
