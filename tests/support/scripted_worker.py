"""Workers for tests of the dispatcher: they speak the messages, and make tokens told by their index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from protocol.messages import (
    Accepted,
    Cancel,
    Failed,
    Finished,
    KVHandover,
    LiveChoice,
    Message,
    Peer,
    PrefillRequest,
    Refused,
    Released,
    Reserve,
    Stop,
    TokenEvent,
    Wanted,
)
from runtime.bus import Bus
from runtime.emitter import Emitter
from runtime.identity import new_peer
from runtime.postbox import Postbox
from runtime.roster import BEAT_S
from tests.support.worker_habits import Habits, status

Key = tuple[str, int]


@dataclass
class Held:
    """One attempt at a worker."""

    gateway: Peer
    max_tokens: int
    emitting: bool = False
    stopped: set[int] = field(default_factory=set)


class ScriptedWorker:
    """Both kinds; ``heard`` has every message that came, ``held`` the attempts that weren't let go."""

    def __init__(self, bus: Bus, worker_id: str, role: str, **load: object) -> None:
        """Own ``bus``. Beats from ``open`` on each second until it dies, and whenever ``beat`` is called."""
        self.habits = Habits()
        self.heard: list[Message] = []
        self.held: dict[Key, Held] = {}
        self.ended: set[Key] = set()
        self.status = status(role, **load)
        self.bus = bus
        self.postbox = Postbox(self.bus, new_peer(worker_id))
        self.emitter = Emitter(self.postbox, role)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        handlers: dict[type[Message], Callable[..., None]] = {
            PrefillRequest: self._prefill,
            Reserve: self._reserve,
            KVHandover: self._handover,
            Finished: self._finished,
            Cancel: self._cancel,
            Stop: self._stop,
            Wanted: self._wanted,
        }
        for kind, handler in handlers.items():
            self.postbox.on(kind, lambda sender, message, run=handler: self._hear(sender, message, run))  # type: ignore[misc]

    @property
    def me(self) -> Peer:
        return self.postbox.me

    async def open(self) -> ScriptedWorker:
        await self.postbox.open()
        self._beats()
        return self

    def _beats(self) -> None:
        if self.habits.beats:
            self.beat()
        self._pulse = self._loop.call_later(BEAT_S, self._beats)

    def beat(self, **changes: object) -> None:
        """A heartbeat, with a new state if one is given."""
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        self.postbox.broadcast(self.status)

    def die(self) -> None:
        """Gone at once; the last beat spares tests the wait for silence."""
        self.beat(state="leaving")
        self.habits.beats = False
        self.stop_working()

    def stop_working(self) -> None:
        self.habits.deaf_to = (PrefillRequest, Reserve, KVHandover, Cancel, Stop, Wanted, Finished)
        for key in list(self.held):
            self._drop(key)

    def of(self, kind: type[Message]) -> list[Message]:
        """What came of one type."""
        return [message for message in self.heard if type(message) is kind]

    def also_hear(self, kind: type[Message]) -> list[Message]:
        """What comes of a type that the emitter answers, from now on."""
        came: list[Message] = []
        known = self.postbox._handlers[kind]

        def hear(sender: Peer, message: Message) -> None:
            came.append(message)
            known(sender, message)

        self.postbox._handlers[kind] = hear
        return came

    def fail(self, code: str, phase: str = "decode") -> None:
        """Give up everything that is held."""
        for key, held in list(self.held.items()):
            self._drop(key)
            self.postbox.send(held.gateway, Failed(*key, phase, code, "test"))

    async def close(self) -> None:
        self._pulse.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.emitter.close()
        self.postbox.close()
        await self.bus.close()

    def _hear(self, sender: Peer, message: Message, run: Callable[[Peer, Message], None]) -> None:
        self.heard.append(message)
        if not isinstance(message, self.habits.deaf_to):
            run(sender, message)

    def _take(self, gateway: Peer, message: PrefillRequest | Reserve, max_tokens: int) -> bool:
        """Accept or refuse; False if there is nothing more to do."""
        key = (message.request_id, message.attempt)
        phase = self.status.role
        full = key not in self.held and len(self.held) >= self.habits.max_held
        if self.habits.refuse or key in self.ended or full:
            code = self.habits.refuse or ("no_space" if full else "cancelled")
            self.postbox.send(gateway, Refused(*key, phase, code, "test"))
            return False
        for old in [k for k in self.held if k[0] == key[0] and k[1] < key[1]]:
            self._drop(old)
        known = key in self.held
        self.held.setdefault(key, Held(gateway, max_tokens))
        self.emitter.begin(key, gateway)
        self.postbox.send(gateway, Accepted(*key, phase))
        return not known

    def _reserve(self, gateway: Peer, message: Reserve) -> None:
        self._take(gateway, message, message.demand.max_tokens)

    def _prefill(self, gateway: Peer, message: PrefillRequest) -> None:
        if not self._take(gateway, message, message.sampling.max_tokens) or self.habits.stall_prefill:
            return
        key = (message.request_id, message.attempt)
        starts = {tail.choice: len(tail.token_ids) for tail in message.tails}
        if message.decode == self.me:
            self._decode(key, starts, 20)
            return
        going = {c: start for c, start in starts.items() if not self._emit(key, c, start, 1, 20)}
        self.emitter.flush()
        if self.habits.stall_handover:
            return
        if going and message.decode.id:
            self._hand_over(key, message, going)
        elif message.decode.id:
            self.postbox.send(message.decode, Finished(*key))

    def _hand_over(self, key: Key, message: PrefillRequest, going: dict[int, int]) -> None:
        live = tuple(LiveChoice(c, (self.habits.says(c, start),), start) for c, start in going.items())
        self.postbox.send(
            message.decode,
            KVHandover(
                *key, "t", self.held[key].gateway, message.prompt_ids, live, message.sampling,
                "", len(message.prompt_ids), (), 0, 0, b"", 20, message.decode_ms,
            ),
        )  # fmt: skip

    def _handover(self, prefill: Peer, message: KVHandover) -> None:
        key = (message.request_id, message.attempt)
        if (
            key not in self.held and key not in self.ended and not self.habits.refuse
        ):  # as a GrantRequest stands for a Reserve
            self.held[key] = Held(message.gateway, message.sampling.max_tokens)
            self.emitter.begin(key, message.gateway)
        if key in self.held:
            self._decode(key, {live.choice: live.num_accepted for live in message.choices}, -1)

    def _decode(self, key: Key, starts: dict[int, int], num_cached: int) -> None:
        task = self._loop.create_task(self._steps(key, starts, num_cached))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _steps(self, key: Key, starts: dict[int, int], num_cached: int) -> None:
        """One step is one token of every choice that goes on."""
        going = dict(starts)
        while key in self.held and going:
            for choice, index in list(going.items()):
                if index >= self.habits.stall_decode_at:
                    return
                stopped = choice in self.held[key].stopped
                if stopped or self._emit(key, choice, index, 1, num_cached):
                    del going[choice]
                else:
                    going[choice] += 1
            self.emitter.flush()
            await asyncio.sleep(self.habits.token_s)

    def _emit(self, key: Key, choice: int, first: int, count: int, num_cached: int) -> bool:
        """Queue tokens; True if the choice ends with them."""
        end = min(self.habits.end_at.get(choice, 1 << 30), self.held[key].max_tokens)
        ids = tuple(self.habits.says(choice, index) for index in range(first, min(first + count, end)))
        over = first + len(ids) >= end
        reason = ("length" if end == self.held[key].max_tokens else "stop") if over else ""
        num_tokens = first + len(ids) if over else -1
        self.emitter.add(TokenEvent(*key, choice, first, ids, (), reason, -1, num_tokens, num_cached))
        return over

    def _finished(self, prefill: Peer, message: Finished) -> None:
        self._drop((message.request_id, message.attempt))

    def _cancel(self, sender: Peer, message: Cancel) -> None:
        for key in [k for k in self.held if k[0] == message.request_id and k[1] <= message.attempt]:
            self._drop(key)
        self.ended.add((message.request_id, message.attempt))
        if self.habits.release:
            self.postbox.send(sender, Released(message.request_id, message.attempt))

    def _stop(self, sender: Peer, message: Stop) -> None:
        held = self.held.get((message.request_id, message.attempt))
        if held is not None:
            held.stopped.add(message.choice)

    def _wanted(self, sender: Peer, message: Wanted) -> None:
        for ref in message.attempts:
            if (ref.request_id, ref.attempt) not in self.held:
                self.postbox.send(sender, Failed(ref.request_id, ref.attempt, self.status.role, "unknown", "test"))

    def _drop(self, key: Key) -> None:
        self.held.pop(key, None)
        self.ended.add(key)
        self.emitter.forget(key)
