"""Output that follows a grammar: on one engine, over a hand-over, from any token on."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits

from engine.api import Broken, ChoiceTail, NewTokens, Prefill, Release
from engine.guide import GrammarError, Guide
from engine.guides import Guides
from protocol.sampling import Sampling
from tests.support.engine_rig import GREEDY, KEY, MODEL, SEEDED, HandOver, Rig, generate, only, prompt, tails
from tests.support.inline_guides import InlineGuides
from tests.support.scripted_dispatcher import EOS_ID, small_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["ox", "ant"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
WORDS = LLMatcher.grammar_from_regex("[a-f]{3,40}(xyz)?")
OBJECT = LLMatcher.grammar_from_json_schema(SCHEMA)


@cache
def guides() -> Guides:
    return Guides(small_tokenizer().to_json(), MODEL.config.vocab_size)


def rig(num_blocks: int = 96) -> Rig:
    return Rig(num_blocks, guides=guides())


def guided(sampling: Sampling, grammar: str = OBJECT, max_tokens: int = 80) -> Sampling:
    return replace(sampling, grammar=grammar, eos_ids=(EOS_ID,), max_tokens=max_tokens)


def text(ids: list[int]) -> str:
    return b"".join(small_tokenizer().token_bytes(each) for each in ids if each != EOS_ID).decode()


def end_of(results: Rig, choice: int = 0) -> tuple[str, int]:
    last = [each for each in only(results.results, NewTokens) if each.choice == choice][-1]
    return last.finish_reason, last.stop_token


@pytest.mark.parametrize("seed", range(6))
def test_an_object_is_one_of_its_schema_and_ends_with_it(seed: int) -> None:
    engine = rig()
    [ids] = generate(engine, prompt(40), guided(replace(SEEDED, seed=seed)))
    value = json.loads(text(ids))
    assert set(value) == {"name", "kind"}
    assert value["kind"] in ("ox", "ant")
    assert len(value["name"]) <= 12
    assert end_of(engine) == ("stop", -1)
    engine.assert_empty()


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_where_it_could_go_on_the_model_ends_it(sampling: Sampling) -> None:
    engine = rig()
    sampling = replace(guided(sampling, WORDS), logit_bias=((EOS_ID, 100.0),))
    [ids] = generate(engine, prompt(40), sampling)
    assert re.fullmatch("[a-f]{3,}", text(ids))
    assert end_of(engine) == ("stop", EOS_ID)


def test_an_end_counts_as_one_even_where_ends_are_ignored_or_come_early() -> None:
    sampling = replace(guided(GREEDY), ignore_eos=True, min_tokens=79)
    engine = rig()
    [ids] = generate(engine, prompt(40), sampling)
    assert set(json.loads(text(ids))) == {"name", "kind"}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_hand_over_changes_nothing(sampling: Sampling) -> None:
    sampling = guided(sampling)
    [alone] = generate(rig(), prompt(40), sampling)
    hand_over = HandOver(rig(), rig(), prompt(40), sampling)
    assert hand_over.whole() == [alone]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_from_any_token_on_it_goes_on_as_it_would_have(sampling: Sampling) -> None:
    sampling = guided(sampling)
    [whole] = generate(rig(), prompt(40), sampling)
    for k in (0, 1, 2, 7, len(whole) - 2, len(whole) - 1):
        [rest] = generate(rig(), prompt(40), sampling, choices=(ChoiceTail(0, tuple(whole[:k])),))
        assert whole[:k] + rest == whole, k


def test_each_choice_follows_it_by_itself() -> None:
    sampling = guided(SEEDED)
    engine = rig()
    both = generate(engine, prompt(40), sampling, choices=tails((), ()))
    alone = [generate(rig(), prompt(40), sampling, choices=(ChoiceTail(i),))[0] for i in (0, 1)]
    assert both == alone
    assert both[0] != both[1]


def test_who_gives_way_goes_on_in_its_grammar() -> None:
    sampling = guided(SEEDED, LLMatcher.grammar_from_regex("[a-p]{400}"), max_tokens=30)
    alone = [generate(rig(), prompt(40, seed), sampling, name=str(seed))[0] for seed in (0, 1)]
    tight = rig(8)
    tight.submit(*(Prefill((str(seed), 0), prompt(40, seed), tails(()), sampling) for seed in (0, 1)))
    tight.run()
    assert tight.load.num_preemptions
    assert [tight.tokens((str(seed), 0)) for seed in (0, 1)] == alone


def test_what_is_no_grammar_ends_alone() -> None:
    engine = rig()
    bad = Prefill(("bad", 0), prompt(40), tails(()), guided(GREEDY, "start: ("))
    good = Prefill(("good", 0), prompt(40), tails(()), GREEDY)
    [broken] = only(engine.run(bad, good), Broken)
    assert (broken.key, broken.code) == (("bad", 0), "bad_request")
    assert "compiled" in broken.message
    assert len(engine.tokens(("good", 0))) == GREEDY.max_tokens
    engine.assert_empty()


def test_a_grammar_that_grows_too_complex_ends_its_request_alone() -> None:
    strict = Guides(small_tokenizer().to_json(), MODEL.config.vocab_size, LLParserLimits(max_lexer_states=40))
    bomb = LLMatcher.grammar_from_regex("(.*a.{9}b){9}")
    engine = Rig(guides=strict)
    bad = Prefill(("bad", 0), prompt(40), tails(()), guided(SEEDED, bomb))
    good = Prefill(("good", 0), prompt(40), tails(()), GREEDY)
    results = engine.run(bad, good)
    [broken] = only(results, Broken)
    assert (broken.key, broken.code) == (("bad", 0), "bad_request")
    assert 1 < len(engine.tokens(("bad", 0))) < 80
    assert len(engine.tokens(("good", 0))) == GREEDY.max_tokens
    engine.assert_empty()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("hand_over", [False, True])
def test_one_that_breaks_as_it_reads_a_token_ends_its_request_alone(n: int, hand_over: bool) -> None:
    """Replays vllm #17313, vllm #19270: it ended the engine."""
    engine = rig()
    bomb = guided(SEEDED, LLMatcher.grammar_from_regex("(a{1000}){1000}"))
    bad = Prefill(("bad", 0), prompt(40), tails(*[()] * n), bomb, hand_over=hand_over)
    good = Prefill(("good", 0), prompt(40), tails(()), GREEDY)
    [broken] = only(engine.run(bad, good), Broken)
    assert (broken.key, broken.code) == (("bad", 0), "bad_request")
    assert len(engine.tokens(("good", 0))) == GREEDY.max_tokens
    engine.assert_empty()


def test_a_worker_without_grammars_says_so() -> None:
    engine = Rig()
    [broken] = only(engine.run(Prefill(KEY, prompt(40), tails(()), guided(GREEDY))), Broken)
    assert broken.code == "mismatch"  # another worker may
    engine.assert_empty()


def test_what_is_released_meanwhile_is_gone() -> None:
    engine = rig()
    engine.submit(Prefill(KEY, prompt(40), tails(()), guided(GREEDY)), Release(KEY))
    engine.run()
    assert not only(engine.results, NewTokens)
    engine.assert_empty()


def test_a_tokenizer_that_is_none_is_an_error() -> None:
    guides = Guides("{}", MODEL.config.vocab_size)
    with pytest.raises(GrammarError, match="tokenizer"):
        guides.prepare()
    engine = Rig(guides=guides)
    [broken] = only(engine.run(Prefill(KEY, prompt(40), tails(()), guided(GREEDY))), Broken)
    assert broken.code == "bad_request"
    engine.engine.prepare()
    [broken] = only(engine.run(Prefill(KEY, prompt(40), tails(()), guided(GREEDY))), Broken)
    assert "can't follow grammars" in broken.message


def test_only_listed_ids_are_chosen() -> None:
    listed = (5, 77, 300)
    for sampling in (GREEDY, SEEDED):
        [ids] = generate(Rig(), prompt(40), replace(sampling, allowed_ids=listed))
        assert set(ids) <= set(listed)
    assert len(set(ids)) > 1


def test_a_list_and_a_grammar_that_share_nothing_are_a_bad_request() -> None:
    engine = rig()
    sampling = replace(guided(GREEDY), allowed_ids=(EOS_ID,))
    [broken] = only(engine.run(Prefill(KEY, prompt(40), tails(()), sampling)), Broken)
    assert broken.code == "bad_request"
    assert "leaves no token" in broken.message


def test_bad_words_never_come() -> None:
    [plain] = generate(Rig(), prompt(40))
    single, pair = (plain[0],), (plain[3], plain[4])
    [ids] = generate(Rig(), prompt(40), replace(GREEDY, bad_words=(single,)))
    assert plain[0] not in ids
    [ids] = generate(Rig(), prompt(40), replace(GREEDY, bad_words=(pair,)))
    assert ids[:4] == plain[:4]
    assert pair not in pairwise(ids)
    assert ids != plain


def test_a_grammar_that_is_compiled_in_the_middle_of_a_look_is_not_overlooked() -> None:
    """Futures are done by another thread: each is asked once whether it is."""

    class Flips(Future[list[Guide]]):
        asked = 0

        def done(self) -> bool:
            self.asked += 1
            return self.asked > 1

    class Late(InlineGuides):
        def begin(self, *args: Any) -> Future[list[Guide]]:
            made = super().begin(*args)
            flips = Flips()
            flips.set_result(made.result())
            return flips

    engine = Rig(guides=Late(small_tokenizer().to_json(), MODEL.config.vocab_size))
    engine.submit(Prefill(KEY, prompt(40), tails(()), guided(GREEDY)), Prefill(("x", 0), prompt(9), tails(()), GREEDY))
    engine.run()
    assert engine.tokens(KEY)
    engine.assert_empty()
