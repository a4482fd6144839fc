"""What both workers' io processes do alike: attempts, their holds, cancels, and the news of lost peers."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.api import Broken, Command, GaveBack, Key, Load, Pong, Rejected, Release, Report, Result
from engine.api import Embedded as EngineEmbedded
from engine.api import Released as EngineReleased
from engine.port import EnginePort
from kvtransfer.contents import PoolContents
from kvtransfer.link import Link
from kvtransfer.pulse import Pulse
from protocol.errors import Code
from protocol.messages import AttemptRef, Cancel, Embedded, Failed, Message, Peer, Released, Wanted
from runtime.deadlines import Deadlines
from runtime.emitter import Emitter
from runtime.ended import EndedAttempts
from runtime.holds import Holds
from runtime.logs import get_logger
from runtime.postbox import Postbox
from runtime.repeats import Repeats
from runtime.roster import BEAT_S, Roster

EMBEDDED_S = 600.0
"""How long a vector is told again and again, if its attempt isn't ended before: longer than a broker is away."""

ENDED_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that somebody else sends: an engine that ended by one of them hasn't crashed by itself."""

log = get_logger("worker")


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker's io process is made of."""

    postbox: Postbox
    roster: Roster
    engine: EnginePort
    contents: PoolContents
    link: Link


@dataclass(frozen=True, slots=True)
class Held:
    """One attempt held here: whose it is, and the other worker of the pair (nobody if it is alone)."""

    gateway: Peer
    other: Peer


class Worker:
    """Base of both services. Each attempt is held for a gateway, and ends in exactly one way."""

    phase: str
    max_held: int
    """Requests held here at once; more are refused, so that they wait at the gateway."""

    def __init__(self, parts: WorkerParts) -> None:
        """Takes over the postbox's common messages. Needs a running loop."""
        self.parts = parts
        self.repeats = Repeats()
        self.ended = EndedAttempts()
        self.emitter = Emitter(parts.postbox, self.phase)
        self.holds = Holds(self._expired, parts.roster.deaf)
        self.deadlines = Deadlines(self._late, parts.roster.deaf)
        self.pulse = Pulse(parts.engine)
        self.load = Load()
        self.draining = False
        self.bytes_moved = 0
        self.held: dict[Key, Held] = {}
        self._answers: defaultdict[Key, set[Peer]] = defaultdict(set)
        self._loop = asyncio.get_running_loop()
        parts.postbox.on(Cancel, self._cancel)
        parts.postbox.on(Wanted, self._wanted)
        parts.postbox.on(Failed, self._failed)
        parts.postbox.on(Released, self._released)
        parts.roster.on_lost(self._lost)
        self._timer = self._loop.call_later(BEAT_S, self._list_transfers)

    # -- for the services ------------------------------------------------------------------------------

    def hold(self, key: Key, gateway: Peer, other: Peer) -> None:
        """Hold an attempt from now on; an older attempt of the request ends."""
        for old in [k for k in self.held if k[0] == key[0] and k[1] < key[1]]:
            self.end(old)
        self.held[key] = Held(gateway, other)
        self.holds.add(key)

    def reason_to_refuse(self, key: Key) -> tuple[str, str] | None:
        """Code and sentence why nothing new is taken here for this key; ``None`` if it is."""
        if key in self.ended:
            return Code.CANCELLED, "this attempt is over"
        if self.draining:
            return Code.DRAINING, "this worker takes no new work"
        if len(self.held) >= self.max_held:
            return Code.QUEUE_FULL, f"this worker holds {self.max_held} requests already"
        return None

    def submit(self, command: Command) -> None:
        """Hand a command to the engine."""
        self.parts.engine.submit(command)

    def send(self, to: Peer, message: Message) -> None:
        """Send a message; to nobody is no error."""
        if to.id:
            self.parts.postbox.send(to, message)

    def fail(self, key: Key, code: str, message: str, phase: str = "") -> None:
        """This attempt can't go on: both ends hear of it, and it ends here."""
        held = self.held.get(key)
        if held is None:
            return
        log.warning("attempt_failed", request_id=key[0], attempt=key[1], code=code, reason=message)
        failed = Failed(*key, phase or self.phase, code, message)
        self.send(held.gateway, failed)
        if held.other != self.parts.postbox.me:
            self.send(held.other, failed)
        self.end(key)

    def end(self, key: Key, *, keep_events: bool = False) -> None:
        """Nothing of this attempt is wanted any more. ``keep_events``: what it said still has to arrive."""
        if self.held.pop(key, None) is None:
            return
        self.holds.drop(key)
        self.deadlines.leave(key)
        self.ended.add(*key)
        if keep_events:
            self.emitter.retire(key)
        else:
            self.emitter.forget(key)
            self.repeats.stop(("embedded", key))
        self.on_end(key)
        self.submit(Release(key))

    def give_back(self) -> None:
        """This worker leaves: what isn't finished is moved by its gateway at once."""
        for key in list(self.held):
            self.fail(key, Code.DRAINED, "the worker is leaving")

    def engine_died(self, exit_code: int) -> None:
        """The engine ended unasked. Those whose step it crashed in are named; an end from outside blames nobody."""
        from_outside = -exit_code in ENDED_FROM_OUTSIDE
        pool = self.parts.engine.pool
        for key in list(self.held):
            if pool.in_step(key) and not from_outside:
                self.fail(key, Code.CRASHED, f"the engine crashed in its step (exit code {exit_code})")
            else:
                self.fail(key, Code.WORKER_LOST, "the worker's engine has ended")

    def report(self, report: Report) -> None:
        """What the engine did in one pass of its loop."""
        self.load = report.load
        for result in report.results:
            self._result(result)
        self.emitter.flush()

    def close(self) -> None:
        """Stop all timers."""
        self._timer.cancel()
        self.repeats.close()
        self.holds.close()
        self.deadlines.close()
        self.emitter.close()

    # -- what the services fill in -----------------------------------------------------------------------

    async def attach(self) -> None:
        """Begin to receive contents, if this service does."""

    def on_end(self, key: Key) -> None:
        """Drop what the service keeps of an attempt, in whatever state it is."""
        raise NotImplementedError

    def on_key_done(self, key: Key) -> None:
        """The engine holds nothing for this key any more."""

    def on_result(self, result: Result) -> None:
        """A result that isn't the same for both services."""
        raise NotImplementedError

    def open_transfers(self) -> Iterable[tuple[Key, Peer]]:
        """Attempts whose transfer isn't over, and the worker at its other end."""
        raise NotImplementedError

    def state_of(self, key: Key) -> str:
        """The hand-over state of an attempt that is held."""
        raise NotImplementedError

    # -- common messages ---------------------------------------------------------------------------------

    def _result(self, result: Result) -> None:
        if isinstance(result, EngineReleased):
            self._engine_released(result.key)
        elif isinstance(result, Broken):
            self.fail(result.key, Code(result.code), result.message)
        elif isinstance(result, EngineEmbedded):
            self._embedded(result)
        elif isinstance(result, GaveBack):
            self.fail(result.key, Code.PREEMPTED, "there was no room to go on with it")
        elif isinstance(result, Pong):
            self.pulse.heard(result.number)
        elif isinstance(result, Rejected) and result.key not in self.held:
            return
        else:
            self.on_result(result)

    def _embedded(self, result: EngineEmbedded) -> None:
        """Tell the vector until the gateway ends the attempt, which is its answer."""
        held = self.held.get(result.key)
        if held is None:
            return
        gateway, message = held.gateway, Embedded(*result.key, result.vector, result.num_cached_tokens)
        self.deadlines.leave(result.key)
        self.repeats.start(("embedded", result.key), lambda: self.send(gateway, message), EMBEDDED_S, lambda: None)

    def _engine_released(self, key: Key) -> None:
        self.on_key_done(key)
        for peer in self._answers.pop(key, ()):
            self.send(peer, Released(*key))

    def _cancel(self, sender: Peer, cancel: Cancel) -> None:
        """End this attempt and all before it; answered when the engine holds nothing of it any more."""
        key = (cancel.request_id, cancel.attempt)
        log.info("cancel", request_id=key[0], attempt=key[1], reason=cancel.reason)
        self.end_and_answer(sender, key)

    def end_and_answer(self, sender: Peer, key: Key) -> None:
        """End an attempt and all before it; ``sender`` hears Released once the engine has let go."""
        self._answers[key].add(sender)
        self.repeats.stop(("embedded", key))
        if key not in self.held:
            self.ended.add(*key)
            self.submit(Release(key))
        for held in [k for k in self.held if k[0] == key[0] and k[1] <= key[1]]:
            self.end(held)

    def _released(self, sender: Peer, released: Released) -> None:
        """The other side holds nothing any more: it needn't be told again."""
        self.repeats.stop(("finished", (released.request_id, released.attempt)))

    def _wanted(self, sender: Peer, wanted: Wanted) -> None:
        """Renew holds by name. What isn't held here is said at once, never passed over in silence."""
        for ref in wanted.attempts:
            key = (ref.request_id, ref.attempt)
            held = self.held.get(key)
            if held is None:
                self.unknown(sender, key)
            elif held.gateway == sender:
                self.holds.renew(key)

    def unknown(self, sender: Peer, key: Key) -> None:
        """Answer a question about an attempt that isn't held here."""
        message = "this worker doesn't hold the attempt"
        self.send(sender, Failed(*key, self.phase, Code.UNKNOWN, message))

    def _failed(self, sender: Peer, failed: Failed) -> None:
        """The other worker of a pair can't go on; once adopted, its failure changes nothing here."""
        key = (failed.request_id, failed.attempt)
        if any(key == open_key and sender == other for open_key, other in self.open_transfers()):
            self.fail(key, failed.code, failed.message, failed.phase)

    def _lost(self, peer: Peer) -> None:
        """A gateway's attempts end with it; a worker's death fails what is open between the two."""
        self.emitter.lose(peer)
        for key in [k for k, held in self.held.items() if held.gateway == peer]:
            log.info("gateway_lost", request_id=key[0], attempt=key[1])
            self.end(key)
        for key, other in list(self.open_transfers()):
            if other == peer:
                self.fail(key, Code.WORKER_LOST, f"worker {peer.id} is gone", "transfer")

    def _late(self, key: Key, phase: str) -> None:
        """A phase took too long. A transfer may go better between other workers, so that one is tried again."""
        code = Code.TRANSFER if phase == "transfer" else Code.DEADLINE
        self.fail(key, code, f"the {phase} phase took too long", phase)

    def _expired(self, key: Key) -> None:
        """Its gateway hasn't asked for it for too long."""
        self.fail(key, Code.CANCELLED, "nobody has asked for this attempt for too long")

    def _list_transfers(self) -> None:
        """Each second: tell each peer which transfers this side believes open."""
        self._timer = self._loop.call_later(BEAT_S, self._list_transfers)
        lists: defaultdict[Peer, list[AttemptRef]] = defaultdict(list)
        for key, other in self.open_transfers():
            lists[other].append(AttemptRef(*key))
        for other, refs in lists.items():
            self.send(other, Wanted(tuple(refs)))
