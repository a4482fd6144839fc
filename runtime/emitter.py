"""Tokens on their way to gateways: kept until acknowledged, repeated when a choice is quiet or has ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from protocol.messages import Ack, Key, Peer, Resend, TokenEvent, TokenEvents
from protocol.sampling import TokenLogprob
from runtime.postbox import Postbox

QUIET_S = 0.1
"""An unacknowledged choice that is quiet this long is repeated; the pause doubles to ``LONGEST_S``."""
LONGEST_S = 1.0
CHECK_S = 0.05
MAX_EVENTS_A_MESSAGE = 256
RETIRED_S = 60.0
"""What a finished attempt said is repeated this long at the most."""


@dataclass(slots=True)
class _Choice:
    """What one choice has said and its gateway hasn't acknowledged."""

    first_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    stop_token: int = -1
    num_tokens: int = -1
    num_cached_tokens: int = 0
    due: float = 0.0
    pause: float = QUIET_S

    @property
    def silent(self) -> bool:
        """Nothing is left to acknowledge: all tokens passed, and the end too if there was one."""
        return not self.token_ids and not self.finish_reason


class Emitter:
    """Events of this worker's attempts. ``phase`` names the worker's part in the first token."""

    def __init__(self, postbox: Postbox, phase: str) -> None:
        """Takes over Ack and Resend of the postbox. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._postbox = postbox
        self._phase = phase
        self._gateways: dict[Key, Peer] = {}
        self._choices: dict[Key, dict[int, _Choice]] = {}
        self._retired: dict[Key, float] = {}
        self._queued: defaultdict[Peer, list[TokenEvent]] = defaultdict(list)
        postbox.on(Ack, self._acknowledge)
        postbox.on(Resend, self._resend)
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def begin(self, key: Key, gateway: Peer) -> None:
        """Events of this attempt go to this life of a gateway."""
        self._gateways[key] = gateway
        self._choices.setdefault(key, {})

    def add(self, event: TokenEvent) -> None:
        """Queue an event for the next ``flush``. One of an attempt that was forgotten is dropped."""
        key = (event.request_id, event.attempt)
        gateway = self._gateways.get(key)
        if gateway is None:
            return
        choices = self._choices[key]
        kept = choices.get(event.choice)
        if kept is None:
            kept = choices[event.choice] = _Choice(event.first_index)
        kept.token_ids += event.token_ids
        kept.logprobs += event.logprobs
        kept.finish_reason, kept.stop_token = event.finish_reason, event.stop_token
        kept.num_tokens, kept.num_cached_tokens = event.num_tokens, event.num_cached_tokens
        kept.pause, kept.due = QUIET_S, self._loop.time() + QUIET_S
        self._queued[gateway].append(event)

    def flush(self) -> None:
        """Send what is queued, one message a gateway."""
        for gateway, events in self._queued.items():
            for start in range(0, len(events), MAX_EVENTS_A_MESSAGE):
                batch = tuple(events[start : start + MAX_EVENTS_A_MESSAGE])
                self._postbox.send(gateway, TokenEvents(self._phase, batch))
        self._queued.clear()

    def retire(self, key: Key) -> None:
        """The attempt says nothing more; forget it once all is acknowledged, or after a minute."""
        if key in self._gateways and self.num_unacknowledged(key) == 0:
            self.forget(key)
        elif key in self._gateways:
            self._retired[key] = self._loop.time() + RETIRED_S

    def lose(self, gateway: Peer) -> None:
        """This life of a gateway is over: nobody will acknowledge what it was sent."""
        for key in [key for key, peer in self._gateways.items() if peer == gateway]:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """The attempt is over, acknowledged or not. Idempotent."""
        self._retired.pop(key, None)
        self._gateways.pop(key, None)
        self._choices.pop(key, None)

    def num_unacknowledged(self, key: Key) -> int:
        """Choices of this attempt that have something left to say."""
        return sum(not choice.silent for choice in self._choices.get(key, {}).values())

    @property
    def idle(self) -> bool:
        """Everything that was said has been acknowledged or forgotten."""
        return all(self.num_unacknowledged(key) == 0 for key in self._choices)

    def close(self) -> None:
        """Stop repeating."""
        self._timer.cancel()

    def _acknowledge(self, sender: Peer, ack: Ack) -> None:
        for item in ack.items:
            choice = self._choices.get((item.request_id, item.attempt), {}).get(item.choice)
            if choice is None:
                continue
            passed = min(max(item.next_index - choice.first_index, 0), len(choice.token_ids))
            del choice.token_ids[:passed]
            del choice.logprobs[:passed]
            choice.first_index += passed
            if choice.finish_reason and item.next_index > choice.num_tokens:
                choice.finish_reason = ""

    def _resend(self, sender: Peer, resend: Resend) -> None:
        key = (resend.request_id, resend.attempt)
        choice = self._choices.get(key, {}).get(resend.choice)
        if choice is not None and not choice.silent:
            self._queued[self._gateways[key]].append(_repeat(key, resend.choice, choice))
            self.flush()

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check)
        now = self._loop.time()
        for key in [k for k, until in self._retired.items() if until < now or self.num_unacknowledged(k) == 0]:
            self.forget(key)
        for key, choices in self._choices.items():
            for number, choice in choices.items():
                if choice.silent or choice.due > now:
                    continue
                choice.pause = min(choice.pause * 2, LONGEST_S)
                choice.due = now + choice.pause
                self._queued[self._gateways[key]].append(_repeat(key, number, choice))
        self.flush()


def _repeat(key: Key, number: int, choice: _Choice) -> TokenEvent:
    """All that is unacknowledged of a choice, as one event."""
    return TokenEvent(
        request_id=key[0],
        attempt=key[1],
        choice=number,
        first_index=choice.first_index,
        token_ids=tuple(choice.token_ids),
        logprobs=tuple(choice.logprobs),
        finish_reason=choice.finish_reason,
        stop_token=choice.stop_token,
        num_tokens=choice.num_tokens,
        num_cached_tokens=choice.num_cached_tokens,
    )
