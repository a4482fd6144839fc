"""The ladder's rules, one by one."""

from __future__ import annotations

import pytest

from gateway.attempt import Attempt
from gateway.candidate import Route
from gateway.ladder import Source, Step, Word, code_of, culprit, is_own_fault, judge
from gateway.told import worker_error
from protocol.errors import Code
from protocol.messages import Peer, Tail

P, D = Peer("p", "1"), Peer("d", "1")
SPLIT, LOCAL, ALONE = Route("split", P, D), Route("both", D, D), Route("split", P, Peer())


def attempt(route: Route = SPLIT, *, heard: bool = False, adopted: bool = False) -> Attempt:
    return Attempt("r", 1, route, (Tail(0),), prefill_heard=heard, adopted=adopted)


def failed(worker: Peer, code: str, phase: str = "") -> Word:
    return Word(worker, phase, code_of(code), "text")


def lost(worker: Peer, phase: str) -> Word:
    return Word(worker, phase, Code.WORKER_LOST, "text", Source.LOST)


def refused(worker: Peer, code: str) -> Word:
    return Word(worker, "", code_of(code), "text", Source.REFUSED)


@pytest.mark.parametrize(
    ("state", "word", "step"),
    [
        (attempt(adopted=True), failed(P, "worker_lost"), Step.IGNORE),
        (attempt(adopted=True), refused(D, "no_space"), Step.IGNORE),
        (attempt(adopted=True), failed(D, "worker_lost"), Step.AGAIN),
        (attempt(adopted=True), failed(D, "drained"), Step.GIVEN_BACK),
        (attempt(), failed(P, "drained"), Step.GIVEN_BACK),
        (attempt(heard=True), failed(P, "drained"), Step.DOUBT),
        (attempt(heard=True), failed(D, "preempted"), Step.GIVEN_BACK),
        (attempt(adopted=True), failed(P, "drained"), Step.IGNORE),
        (attempt(), failed(P, "worker_lost"), Step.AGAIN),
        (attempt(heard=True), failed(P, "worker_lost"), Step.DOUBT),
        (attempt(heard=True), failed(P, "transfer_failed"), Step.DOUBT),
        (attempt(heard=True), failed(D, "transfer_failed"), Step.AGAIN),
        (attempt(ALONE, heard=True), failed(P, "worker_lost"), Step.AGAIN),
        (attempt(LOCAL, adopted=True), failed(D, "worker_lost"), Step.AGAIN),
        (attempt(), failed(P, "unknown"), Step.DOUBT),
        (attempt(), refused(P, "cancelled"), Step.DOUBT),
        (attempt(), failed(D, "cancelled"), Step.AGAIN),
        (attempt(), refused(D, "no_space"), Step.ELSEWHERE),
        (attempt(), refused(D, "never_fits"), Step.ELSEWHERE),
        (attempt(), refused(P, "draining"), Step.ELSEWHERE),
        (attempt(adopted=True), failed(D, "no_space"), Step.ELSEWHERE),
        (attempt(), failed(P, "deadline_exceeded"), Step.LATE),
        (attempt(), failed(P, "engine_failed"), Step.AGAIN),
        (attempt(), failed(P, "worker_crashed"), Step.AGAIN),
        (attempt(adopted=True), failed(D, "worker_crashed"), Step.AGAIN),
        (attempt(), refused(P, "engine_failed"), Step.AGAIN),
        (attempt(), refused(P, "bad_request"), Step.END),
        (attempt(), failed(P, "a word that nobody knows"), Step.AGAIN),
    ],
)
def test_each_word_has_its_step(state: Attempt, word: Word, step: Step) -> None:
    assert judge(state, word) is step


@pytest.mark.parametrize(
    ("state", "word", "worker"),
    [
        (attempt(), failed(P, "worker_lost"), P),
        (attempt(), failed(P, "transfer_failed"), D),
        (attempt(), failed(D, "transfer_failed"), P),
        (attempt(adopted=True), failed(D, "transfer_failed"), D),
        (attempt(), failed(P, "no_space", "transfer"), D),
        (attempt(), failed(P, "no_space", "prefill"), P),
        (attempt(LOCAL), failed(D, "no_space", "transfer"), D),
        (attempt(ALONE), failed(P, "transfer_failed"), P),
        (attempt(), failed(P, "worker_lost", "transfer"), D),
        (attempt(), failed(D, "worker_lost", "transfer"), P),
        (attempt(), lost(P, "transfer"), P),
        (attempt(), failed(D, "worker_crashed", "prefill"), P),
        (attempt(), failed(P, "preempted", "decode"), D),
        (attempt(), failed(D, "drained", "prefill"), P),
        (attempt(LOCAL), failed(D, "engine_failed", "prefill"), D),
    ],
)
def test_the_worker_to_do_without_is_not_always_the_one_that_spoke(state: Attempt, word: Word, worker: Peer) -> None:
    assert culprit(state.route, word, adopted=state.adopted) == worker


def test_only_what_is_wrong_with_a_worker_keeps_it_out() -> None:
    for code in ("engine_failed", "worker_crashed", "transfer_failed", "gibberish"):
        assert is_own_fault(failed(P, code))
    for code in ("no_space", "preempted", "drained", "unknown", "worker_lost", "deadline_exceeded"):
        assert not is_own_fault(failed(P, code))
    assert is_own_fault(Word(P, "prefill", Code.WORKER_LOST, "", Source.SILENT))


def test_what_went_wrong_inside_a_worker_is_not_told_to_clients() -> None:
    error = worker_error(Word(P, "", Code.ENGINE, "/secret/path"))
    assert error.status == 500
    assert "/secret" not in error.message
    assert len(worker_error(Word(P, "", Code.DRAINED, "x" * 10_000)).message) < 1000
