"""The plan keeps its limits whatever it is shown, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan import Chunk, Limits, Plan, Running, Waiting, plan

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=32, total_blocks=100)


def decode(age: int, *, needs: bool = False, own: int = 3, fixed: bool = False) -> Running:
    return Running(age, 1, 3, needs, own, fixed)


def test_decodes_come_first_then_prompts_share_what_is_left_in_order() -> None:
    running = [Running(1, 20, 2), decode(2), Running(3, 50, 4)]
    made = plan([], running, 10, LIMITS)
    assert made.chunks == (Chunk(2, 1), Chunk(1, 20), Chunk(3, 11))


def test_waiting_ones_start_first_come_first_served_and_may_share_a_step() -> None:
    waiting = [Waiting(5, 10, 1, 1), Waiting(6, 10, 1, 1), Waiting(7, 40, 3, 1)]
    made = plan(waiting, [decode(1)], 20, LIMITS)
    assert made.started == (5, 6, 7)
    assert made.chunks == (Chunk(1, 1), Chunk(5, 10), Chunk(6, 10), Chunk(7, 11))


def test_nobody_overtakes_one_that_does_not_fit_yet() -> None:
    waiting = [Waiting(5, 100, 8, 1), Waiting(6, 10, 1, 1)]
    assert plan(waiting, [decode(1)], 8, LIMITS).started == ()


def test_blocks_that_are_kept_free_are_not_for_starting() -> None:
    limits = Limits(4, 32, 100, kept_free=3)
    assert plan([Waiting(5, 16, 1, 1)], [decode(1)], 4, limits).started == ()
    assert plan([Waiting(5, 16, 1, 1)], [decode(1)], 5, limits).started == (5,)


def test_one_that_is_all_alone_may_use_the_last_block() -> None:
    assert plan([Waiting(5, 64, 4, 1)], [], 4, LIMITS).started == (5,)
    assert plan([Waiting(5, 64, 4, 1)], [decode(1)], 4, LIMITS).started == ()


def test_the_youngest_gives_way_when_blocks_run_out() -> None:
    running = [decode(1, needs=True), decode(2), Running(3, 40, 3, own_blocks=3)]
    made = plan([Waiting(9, 5, 1, 1)], running, 0, LIMITS)
    assert made == Plan((Chunk(1, 1), Chunk(2, 1)), (), (3,), ())


def test_the_youngest_itself_gives_way_if_it_is_who_needs_the_block() -> None:
    made = plan([], [decode(1), decode(2, needs=True)], 0, LIMITS)
    assert made == Plan((Chunk(1, 1),), (), (2,), ())


def test_a_hand_over_never_gives_way() -> None:
    running = [decode(1, needs=True), Running(2, 40, 3, own_blocks=3, fixed=True)]
    made = plan([], running, 0, LIMITS)
    assert made.preempted == (1,)
    assert made.chunks == (Chunk(2, 32),)


def test_one_that_fills_the_whole_pool_and_needs_more_has_outgrown_it() -> None:
    limits = Limits(4, 32, total_blocks=3)
    made = plan([], [decode(1, needs=True)], 0, limits)
    assert made == Plan(outgrown=(1,))


def test_an_older_waiting_one_gets_the_seat_of_the_youngest() -> None:
    running = [decode(age) for age in (1, 2, 8, 9)]
    made = plan([Waiting(5, 10, 1, 1)], running, 20, LIMITS)
    assert made.started == (5,)
    assert [chunk.age for chunk in made.chunks] == [1, 2, 8, 5]
    assert plan([Waiting(10, 10, 1, 1)], running, 20, LIMITS).started == ()


def test_waiting_ones_are_looked_at_only_as_far_as_needed() -> None:
    seen: list[int] = []

    def lazily() -> object:
        for age in range(100):
            seen.append(age)
            yield Waiting(age, 20, 2, 1)

    plan(lazily(), [], 100, LIMITS)  # type: ignore[arg-type]
    assert len(seen) <= 3


views = st.tuples(st.sampled_from([1, 1, 1, 5, 40]), st.integers(0, 6), st.booleans(), st.booleans())
waiters = st.tuples(st.integers(1, 60), st.integers(0, 8), st.integers(0, 3))


@settings(max_examples=400, deadline=None)
@given(
    running=st.lists(views, max_size=12),
    waiting=st.lists(waiters, max_size=6),
    free=st.integers(0, 30),
    seqs=st.integers(1, 8),
    tokens=st.integers(1, 64),
    kept=st.integers(0, 12),
)
def test_no_plan_exceeds_tokens_sequences_or_blocks(
    running: list[tuple[int, int, bool, bool]],
    waiting: list[tuple[int, int, int]],
    free: int,
    seqs: int,
    tokens: int,
    kept: int,
) -> None:
    live = [
        Running(2 * age, left, 5, needs and left == 1, own, fixed and not needs)
        for age, (left, own, needs, fixed) in enumerate(running)
    ]
    queue = [Waiting(2 * age + 7, *rest) for age, rest in enumerate(waiting)]
    made = plan(queue, live, free, Limits(seqs, tokens, 100, kept))
    by_age = {view.age: view for view in [*live, *queue]}

    assert sum(chunk.num_tokens for chunk in made.chunks) <= tokens
    assert len(made.chunks) <= seqs
    ages = [chunk.age for chunk in made.chunks]
    assert len(set(ages)) == len(ages)
    assert all(1 <= chunk.num_tokens <= by_age[chunk.age].num_left for chunk in made.chunks)
    assert not set(ages) & set(made.preempted)
    assert set(made.started) <= set(ages)
    given_back = sum(view.own_blocks for view in live if view.age in made.preempted)
    taken = sum(view.needs_block for view in live if view.age in ages)
    starts = [view for view in queue if view.age in made.started]
    taken += sum(view.new_blocks for view in starts)
    assert taken <= free + given_back
    if starts and (live or kept):
        assert not made.preempted
        assert free - taken >= kept + sum(view.spare for view in starts)
    assert not any(view.fixed for view in live if view.age in made.preempted)
    if made.preempted:
        kept_ages = [view.age for view in live if view.age in ages and not view.fixed]
        assert all(age < min(made.preempted) for age in kept_ages if by_age[age].needs_block)


@dataclass
class Job:
    """A sequence in the miniature world below."""

    age: int
    num_tokens: int
    goal: int
    num_computed: int = 0
    num_blocks: int = 0


@settings(max_examples=150, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=10),
    seqs=st.integers(1, 4),
    tokens=st.integers(1, 40),
    total=st.integers(7, 20),
)
def test_every_sequence_that_fits_the_pool_ends_and_no_block_is_promised_twice(
    jobs: list[tuple[int, int]], seqs: int, tokens: int, total: int
) -> None:
    waiting = [Job(age, length, length + grows) for age, (length, grows) in enumerate(jobs)]
    running: list[Job] = []
    for _ in range(3000):
        if not waiting and not running:
            return
        free = total - sum(job.num_blocks for job in running)
        assert free >= 0
        made = plan(
            [Waiting(j.age, j.num_tokens, -(-j.num_tokens // 16), 1) for j in waiting],
            [_view(job) for job in running],
            free,
            Limits(seqs, tokens, total, kept_free=len(running)),
        )
        assert made.chunks or made.preempted
        assert not made.outgrown
        for job in [job for job in running if job.age in made.preempted]:
            running.remove(job)
            job.num_computed = job.num_blocks = 0
            waiting.append(job)
        for job in [job for job in waiting if job.age in made.started]:
            waiting.remove(job)
            job.num_blocks = -(-job.num_tokens // 16)
            running.append(job)
        waiting.sort(key=lambda job: job.age)
        running.sort(key=lambda job: job.age)
        for chunk in made.chunks:
            (job,) = [job for job in running if job.age == chunk.age]
            job.num_computed += chunk.num_tokens
            job.num_blocks = max(job.num_blocks, -(-job.num_computed // 16))
            if job.num_computed == job.num_tokens:
                job.num_tokens += 1
                if job.num_tokens > job.goal:
                    running.remove(job)
    raise AssertionError("somebody starves")


def _view(job: Job) -> Running:
    left = job.num_tokens - job.num_computed
    needs = left == 1 and job.num_computed // 16 >= job.num_blocks
    return Running(job.age, left, job.num_blocks, needs, job.num_blocks)
