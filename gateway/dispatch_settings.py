"""Limits of the dispatcher, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.phase_clock import DECODE, PREFILL, QUEUE, TRANSFER


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """How many may wait, how often a request is tried, and how long each phase may take (seconds)."""

    max_waiting: int = 1024
    """Requests waiting for room. More would outlast ``queue_s`` anyway; at 8 KB each it's 8 MB."""
    max_attempts: int = 4
    """Tries that may fail before the request does. A request that breaks workers must not break all."""
    max_given_back: int = 64
    """Times that workers may give a request back, drained or preempted. Nothing has failed then, so it's more:
    this only ends one that is sent round for ever."""
    queue_age_share: float = 0.5
    """No newcomers behind one that has waited this share of ``queue_s``: it isn't nearly started and they are
    behind it, so they would wait in vain."""
    queue_s: float = 60.0
    """All waiting for room of one request together: longer than most clients' patience helps nobody."""
    prefill_s: float = 120.0
    """From sending an attempt to its first token, the worker's own queue included."""
    transfer_s: float = 30.0
    """From the prefill worker's first token to the decode worker's: some GB over a slow link."""
    decode_s: float = 600.0
    """From adoption to the last token: 4,096 tokens at 7 a second."""
    ack_s: float = 0.03
    """Acks of this long go out together, with the next tokens that come; without any after twice as long: well under
    the 100 ms after which emitters repeat."""
    gap_s: float = 0.05
    """A missing token is asked for after this long: overtaken messages arrive by themselves sooner."""
    wanted_s: float = 1.0
    """Holds last 5 s, so four of these messages may be lost."""
    answer_s: float = 10.0
    """How long a worker that is heard may leave a request unanswered; it was repeated a dozen times by then.
    Twice as long as silence takes to be death."""
    ask_s: float = 1.0
    """How long a decode worker may take to say that it adopted, when the prefill worker is gone."""
    cancel_s: float = 60.0
    """Cancels are repeated this long at most; by then the hold has expired on its holder's own clock."""
    max_affinity_blocks: int = 65_536
    """Blocks whose whereabouts are remembered: a million tokens, about 20 MB."""

    def limits_s(self) -> dict[str, float]:
        """Seconds of each phase."""
        return {
            QUEUE: self.queue_s,
            PREFILL: self.prefill_s,
            TRANSFER: self.transfer_s,
            DECODE: self.decode_s,
        }
