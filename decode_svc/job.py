"""One request on a decode worker: reserved, landing, or decoding."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import Adopt, ChoiceTail
from kvtransfer.receiver import Receiver
from protocol.handover import State
from protocol.messages import KVHandover, Peer, TokenEvent


@dataclass(slots=True)
class Job:
    """State of one attempt. ``receiver`` exists from the grant on; a local prefill never has one."""

    gateway: Peer
    prefill: Peer
    state: State
    receiver: Receiver | None = None
    stopped: set[int] = field(default_factory=set)
    num_cached_tokens: int = 0


def adopt_command(record: KVHandover, stopped: set[int]) -> Adopt:
    """The engine's command for a verified record, without choices that ended meanwhile."""
    tails = tuple(
        ChoiceTail(choice.choice, choice.token_ids) for choice in record.choices if choice.choice not in stopped
    )
    key = (record.request_id, record.attempt)
    return Adopt(key, record.prompt_ids, tails, record.sampling, record.cache_salt)


def first_events(record: KVHandover, stopped: set[int]) -> list[TokenEvent]:
    """This worker's first event of each choice: the tokens that the prefill worker made in this attempt."""
    return [
        TokenEvent(
            record.request_id,
            record.attempt,
            choice=choice.choice,
            first_index=choice.num_accepted,
            token_ids=choice.token_ids[choice.num_accepted :],
            logprobs=choice.logprobs,
            finish_reason="",
            stop_token=-1,
            num_tokens=-1,
            num_cached_tokens=record.num_cached_tokens,
        )
        for choice in record.choices
        if choice.choice not in stopped
    ]
