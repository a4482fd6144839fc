"""A prefill and a decode worker that compute nothing: they speak the messages, and make tokens out of their places."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from protocol.errors import Code
from protocol.messages import (
    Accepted,
    Cancel,
    Failed,
    Finished,
    Key,
    KVHandover,
    LiveChoice,
    Peer,
    PrefillRequest,
    Released,
    Reserve,
    TokenEvent,
    Wanted,
    WorkerStatus,
)
from runtime.emitter import Emitter
from runtime.identity import new_peer
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.roster import BEAT_S

WORDS = tuple(1000 + 7919 * place % 20_000 for place in range(16))
"""Token ids of the default model, each of which is whole characters."""

MAX_ENDED = 4096
"""Attempts whose end is remembered: some seconds of them, longer than a message is on its way."""


@dataclass(slots=True)
class Going:
    """One request that is decoded: one token a step."""

    num_made: int
    max_tokens: int


def text_token(index: int) -> int:
    """The token at this place of every answer."""
    return WORDS[index % len(WORDS)]


class InstantWorker:
    """One of the two. The decode worker makes one token of each request a step."""

    def __init__(self, postbox: Postbox, role: str, step_s: float) -> None:
        """Takes over the postbox's messages. ``step_s`` lies between two steps."""
        self._postbox = postbox
        self._role = role
        self._step_s = step_s
        self._emitter = Emitter(postbox, role)
        self._held: dict[Key, Peer] = {}
        self._going: dict[Key, Going] = {}
        self._ended: dict[Key, None] = {}
        self._stepping = False
        postbox.on(PrefillRequest, self._prefill)
        postbox.on(Reserve, self._reserve)
        postbox.on(KVHandover, self._adopt)
        postbox.on(Finished, lambda sender, message: self._drop((message.request_id, message.attempt)))
        postbox.on(Cancel, self._cancel)
        postbox.on(Wanted, self._wanted)

    async def beat(self) -> None:
        """Say once a second that it is here."""
        status = WorkerStatus(
            role=self._role, state="ready", model="instant", max_model_len=8192, weights="w", layout="l",
            fingerprint="f", numerics="n", kv_dtype="bfloat16", status_url="", progress=0, busy=False, num_running=0,
            num_waiting=0, max_num_seqs=1 << 20, waiting_tokens=0, total_blocks=1 << 20, free_blocks=1 << 20,
            reserved_blocks=0, local_prefill_tokens=0,
        )  # fmt: skip
        while True:
            self._postbox.broadcast(status)
            await asyncio.sleep(BEAT_S)

    def _knows(self, key: Key) -> bool:
        """A repeated message means an attempt that goes on or has ended: nothing is computed twice."""
        return key in self._held or key in self._ended

    def _hold(self, gateway: Peer, key: Key) -> None:
        self._held[key] = gateway
        self._emitter.begin(key, gateway)

    def _reserve(self, gateway: Peer, message: Reserve) -> None:
        key = (message.request_id, message.attempt)
        if not self._knows(key):
            self._hold(gateway, key)
        self._postbox.send(gateway, Accepted(*key, self._role))

    def _prefill(self, gateway: Peer, message: PrefillRequest) -> None:
        key = (message.request_id, message.attempt)
        if self._knows(key):
            return
        self._hold(gateway, key)
        self._postbox.send(gateway, Accepted(*key, self._role))
        over = self._emit(key, 0, message.sampling.max_tokens)
        self._emitter.flush()
        if over:
            self._postbox.send(message.decode, Finished(*key))
        else:
            live = (LiveChoice(0, (text_token(0),), 0),)
            handover = KVHandover(
                *key, "t", gateway, message.prompt_ids, live, message.sampling, "", len(message.prompt_ids), (), 0, 0,
                b"", 0, message.decode_ms,
            )  # fmt: skip
            self._postbox.send(message.decode, handover)
        self._end(key)

    def _adopt(self, prefill: Peer, message: KVHandover) -> None:
        key = (message.request_id, message.attempt)
        if key in self._ended:
            return
        if key not in self._held:
            self._hold(message.gateway, key)
        if key not in self._going:
            self._going[key] = Going(1, message.sampling.max_tokens)
            self._emit(key, 0, message.sampling.max_tokens)
        self._step_soon()

    def _step_soon(self) -> None:
        if not self._stepping and self._going:
            self._stepping = True
            asyncio.get_running_loop().call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._stepping = False
        for key, going in list(self._going.items()):
            if self._emit(key, going.num_made, going.max_tokens):
                self._end(key)
            going.num_made += 1
        self._emitter.flush()
        self._step_soon()

    def _emit(self, key: Key, index: int, max_tokens: int) -> bool:
        """Queue a token; True if it is the last one."""
        over = index + 1 >= max_tokens
        reason, end = ("length", index + 1) if over else ("", -1)
        self._emitter.add(TokenEvent(*key, 0, index, (text_token(index),), (), reason, -1, end, 0))
        return over

    def _end(self, key: Key) -> None:
        self._held.pop(key, None)
        self._going.pop(key, None)
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._emitter.retire(key)

    def _drop(self, key: Key) -> None:
        self._end(key)
        self._emitter.forget(key)

    def _cancel(self, sender: Peer, message: Cancel) -> None:
        for key in [k for k in self._held if k[0] == message.request_id and k[1] <= message.attempt]:
            self._drop(key)
        self._postbox.send(sender, Released(message.request_id, message.attempt))

    def _wanted(self, sender: Peer, message: Wanted) -> None:
        for ref in message.attempts:
            if not self._knows((ref.request_id, ref.attempt)):
                failed = Failed(ref.request_id, ref.attempt, self._role, Code.UNKNOWN, "not here")
                self._postbox.send(sender, failed)


async def _work(url: str, step_s: float, pipe: Connection) -> None:
    async with asyncio.TaskGroup() as group:
        for role in ("prefill", "decode"):
            bus = await connect_bus(url, name=role, on_wait=_no_server)
            postbox = Postbox(bus, new_peer(f"{role}-1"))
            worker = InstantWorker(postbox, role, step_s)
            await postbox.open()
            group.create_task(worker.beat())
        pipe.send("ready")


def _no_server(line: str) -> None:
    raise ConnectionError(line)


def main(url: str, step_s: float, core: int, pipe: Connection) -> None:
    """Run both in one process on one core, until it is killed."""
    os.sched_setaffinity(0, {core})
    uvloop.run(_work(url, step_s, pipe))
