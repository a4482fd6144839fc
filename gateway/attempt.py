"""One try of a request, and the two messages that begin it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.phase_clock import DECODE, PREFILL, QUEUE, TRANSFER, PhaseClock
from protocol.messages import Demand, Peer, PrefillRequest, Reserve, Tail

if TYPE_CHECKING:
    from gateway.candidate import Route
    from gateway.generation import Generation


@dataclass(slots=True)
class Attempt:
    """Its number, its workers, and what they have said so far.

    ``prefill_heard``: the prefill worker's first token came, so it may have handed over.
    ``adopted``: the decode worker has the request. ``answered``: who has said anything. ``doubted``: the
    attempt is over at this worker, and whoever must know is asked whether it goes on. ``reason``: the code
    of what ended it before its time.
    """

    request_id: str
    number: int
    route: Route
    tails: tuple[Tail, ...]
    prefill_heard: bool = False
    adopted: bool = False
    answered: set[Peer] = field(default_factory=set)
    doubted: Peer | None = None
    reason: str = ""

    @property
    def reserves(self) -> bool:
        """The decode worker is another one, and has to be told."""
        return bool(self.route.decode.id) and not self.route.local

    def is_prefill_only(self, peer: Peer) -> bool:
        """``peer`` computes the prompt and doesn't decode."""
        return peer == self.route.prefill and not self.route.local

    def is_done_at(self, peer: Peer) -> bool:
        """``peer`` was only to compute the prompt, and the decode worker has it by now."""
        return self.adopted and self.is_prefill_only(peer)

    def first_index(self, choice: int) -> int:
        """Where this attempt's own tokens of a choice begin."""
        return next(len(tail.token_ids) for tail in self.tails if tail.choice == choice)

    def prefill_request(self, generation: Generation, clock: PhaseClock) -> PrefillRequest:
        """To the prefill worker; times left are those of now."""
        return PrefillRequest(
            request_id=self.request_id,
            attempt=self.number,
            prefill=self.route.prefill,
            decode=self.route.decode,
            prompt_ids=generation.prompt_ids,
            tails=self.tails,
            sampling=generation.sampling,
            cache_salt=generation.cache_salt,
            queue_ms=clock.left_ms(QUEUE),
            prefill_ms=clock.left_ms(PREFILL),
            transfer_ms=clock.left_ms(TRANSFER),
            decode_ms=clock.left_ms(DECODE),
        )

    def reserve(self, generation: Generation, clock: PhaseClock) -> Reserve:
        """To the decode worker."""
        return Reserve(
            request_id=self.request_id,
            attempt=self.number,
            prefill=self.route.prefill,
            demand=Demand(
                num_prompt_tokens=len(generation.prompt_ids),
                choices=tuple(tail.choice for tail in self.tails),
                tail_lens=tuple(len(tail.token_ids) for tail in self.tails),
                max_tokens=generation.sampling.max_tokens,
            ),
            queue_ms=clock.left_ms(QUEUE),
        )
