"""What one step will do, as a pure function of light views: no tensor, no clock, no bus.

Rules. The oldest ``max_num_seqs`` running sequences have a seat. Those with one token left (decode) go
first, a token each; then prompts take what is left of the token budget, oldest first, in chunks;
then waiting ones start, first come first served. A decode that needs a block when none is left makes
the youngest give way: it will be computed again from its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Running:
    """A sequence that has its blocks.

    ``num_left`` tokens are known and not computed; the next one ``needs_block`` or not. Dropping it gives
    ``own_blocks`` back, unless it is ``fixed`` (its blocks are promised to a hand-over) and stays.
    """

    age: int
    num_left: int
    num_blocks: int
    needs_block: bool = False
    own_blocks: int = 0
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence without blocks.

    Starting takes ``new_blocks`` of the free and cached ones, and ``spare`` blocks (one for each choice
    that it will feed) must be left over.
    """

    age: int
    num_left: int
    new_blocks: int
    spare: int


@dataclass(frozen=True, slots=True)
class Limits:
    """``kept_free`` blocks are spoken for: one per live choice, and what reservations have coming."""

    max_num_seqs: int
    max_num_batched_tokens: int
    total_blocks: int
    kept_free: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next ``num_tokens`` tokens of one sequence."""

    age: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """In this order: ``outgrown`` end (they can never fit), ``preempted`` give way, ``started`` begin, chunks run."""

    chunks: tuple[Chunk, ...] = ()
    started: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    outgrown: tuple[int, ...] = ()


@dataclass(slots=True)
class _Draft:
    """A plan in the making: what is left, and what has been decided."""

    free: int
    tokens: int
    seats: int
    chunks: list[Chunk] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    preempted: set[int] = field(default_factory=set)
    outgrown: list[int] = field(default_factory=list)

    def run(self, age: int, num_left: int) -> None:
        """Give a sequence as many of its tokens as the budget holds."""
        num_tokens = min(num_left, self.tokens)
        self.tokens -= num_tokens
        self.seats -= 1
        self.chunks.append(Chunk(age, num_tokens))


def plan(waiting: Iterable[Waiting], running: Sequence[Running], free_blocks: int, limits: Limits) -> Plan:
    """Decide one step. ``waiting`` and ``running`` are ordered by age; ``waiting`` is read only as far as needed.

    ``free_blocks`` counts free and cached ones. Never plans more tokens, sequences or blocks than there are.
    """
    draft = _Draft(free_blocks, limits.max_num_batched_tokens, limits.max_num_seqs)
    queue = iter(waiting)
    head = next(queue, None)
    seated = running[: limits.max_num_seqs]
    if head is not None and _takes_a_seat(head, running, free_blocks, limits):
        seated = seated[:-1]
    _grow_decodes(draft, [r for r in seated if r.num_left == 1], running, limits.total_blocks)
    for prompt in seated:
        if prompt.num_left > 1 and prompt.age not in draft.preempted and draft.tokens:
            draft.run(prompt.age, prompt.num_left)
    if not draft.preempted:
        _start(draft, head, queue, limits, alone=not running)
    return Plan(
        tuple(draft.chunks),
        tuple(draft.started),
        tuple(sorted(draft.preempted, reverse=True)),
        tuple(draft.outgrown),
    )


def _takes_a_seat(head: Waiting, running: Sequence[Running], free_blocks: int, limits: Limits) -> bool:
    """Whether all seats are taken but the longest waiting sequence is older than who sits last, and fits.

    Adopted sequences join without waiting; without this rule a stream of them would keep a prompt out.
    """
    if len(running) < limits.max_num_seqs:
        return False
    younger = running[limits.max_num_seqs - 1].age > head.age
    return younger and head.new_blocks + head.spare <= free_blocks - limits.kept_free


def _grow_decodes(draft: _Draft, decodes: Sequence[Running], running: Sequence[Running], total_blocks: int) -> None:
    """One token for each decode, oldest first; where blocks run out the youngest sequences give way."""
    youngest = len(running) - 1
    for decode in decodes:
        if decode.age in draft.preempted or not draft.tokens:
            continue
        if decode.needs_block and decode.num_blocks >= total_blocks:
            draft.outgrown.append(decode.age)
            continue
        while decode.needs_block and not draft.free and youngest >= 0:
            victim = running[youngest]
            if victim.age < decode.age:
                break
            youngest -= 1
            if not victim.fixed and victim.age not in draft.outgrown:
                draft.preempted.add(victim.age)
                draft.free += victim.own_blocks
        if decode.age in draft.preempted or (decode.needs_block and not draft.free):
            continue
        draft.free -= decode.needs_block
        draft.run(decode.age, 1)


def _start(draft: _Draft, head: Waiting | None, queue: Iterable[Waiting], limits: Limits, *, alone: bool) -> None:
    """Start waiting sequences while seats, tokens and blocks last. Nobody overtakes who doesn't fit."""
    kept = limits.kept_free
    for candidate in _chain(head, queue):
        if not draft.seats or not draft.tokens:
            return
        fits = candidate.new_blocks + candidate.spare <= draft.free - kept
        # Who is all alone may use the last block: nobody else is there to be kept waiting.
        if not fits and not (alone and not kept and candidate.new_blocks <= draft.free):
            return
        alone = False
        draft.free -= candidate.new_blocks
        kept += candidate.spare
        draft.started.append(candidate.age)
        draft.run(candidate.age, candidate.num_left)


def _chain(head: Waiting | None, queue: Iterable[Waiting]) -> Iterable[Waiting]:
    if head is not None:
        yield head
        yield from queue
