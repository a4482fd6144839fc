"""One request on a prefill worker: what is computed, which first tokens exist, what the record will say."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import Computed, NewTokens
from kvtransfer.sender import Sender
from protocol.messages import Branch, Grant, KVHandover, LiveChoice, Peer, PrefillRequest


@dataclass(slots=True)
class Job:
    """State of one attempt. ``sender`` is ``None`` when nothing can be left to hand over."""

    request: PrefillRequest
    gateway: Peer
    sender: Sender | None = None
    first_tokens: dict[int, NewTokens] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    trunk_tokens: int = -1
    branches: dict[int, Branch] = field(default_factory=dict)

    def position(self, choice: int) -> int:
        """Where a choice stands among the request's tails."""
        return next(i for i, tail in enumerate(self.request.tails) if tail.choice == choice)

    def note_computed(self, done: Computed) -> int:
        """Note a branch's end; returns the branch's number in the transfer (0 is the trunk)."""
        if done.choice < 0:
            if done.last:
                self.trunk_tokens = done.num_tokens
            return 0
        if done.last:
            num_tokens = done.num_tokens - done.first_token
            self.branches[done.choice] = Branch(done.choice, done.first_token, num_tokens)
        return self.position(done.choice) + 1

    @property
    def sampled(self) -> bool:
        """Every choice that wasn't stopped has its first token."""
        return all(tail.choice in self.first_tokens or tail.choice in self.stopped for tail in self.request.tails)

    @property
    def live(self) -> list[int]:
        """Choices that go on after their first token."""
        return [
            choice
            for choice, tokens in self.first_tokens.items()
            if not tokens.finish_reason and choice not in self.stopped
        ]

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose compute was skipped here."""
        return max((tokens.num_cached_tokens for tokens in self.first_tokens.values()), default=0)

    def record(self, grant: Grant, num_pieces: int, total_bytes: int, digest: bytes) -> KVHandover:
        """The hand-over record, once everything is sampled and sent."""
        request = self.request
        tails = {tail.choice: tail.token_ids for tail in request.tails}
        choices = tuple(
            LiveChoice(
                choice,
                tails[choice] + self.first_tokens[choice].token_ids,
                len(tails[choice]),
                self.first_tokens[choice].logprobs,
            )
            for choice in self.live
        )
        return KVHandover(
            request_id=request.request_id,
            attempt=request.attempt,
            transfer_id=grant.transfer_id,
            gateway=self.gateway,
            prompt_ids=request.prompt_ids,
            choices=choices,
            sampling=request.sampling,
            cache_salt=request.cache_salt,
            trunk_tokens=self.trunk_tokens,
            branches=tuple(self.branches[c] for c in self.live if c in self.branches),
            num_pieces=num_pieces,
            total_bytes=total_bytes,
            contents_digest=digest,
            num_cached_tokens=self.num_cached_tokens,
            decode_ms=request.decode_ms,
        )
