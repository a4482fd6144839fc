"""Workers on a memory bus and memory links, all in this process; their model is a toy unless a test brings one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from decode_svc.service import DecodeWorker
from engine.api import Ready
from engine.core import Engine, EngineSettings, Model
from engine.guides import Guides
from engine.loop import run_loop
from engine.pool_memory import PoolMemory
from engine.port import EnginePort, Started, ThreadPort
from engine.staging import Staging
from engine.toy_model import ToyModel
from kvtransfer.link import BusLink, Link, MemoryExchange, MemoryLink
from kvtransfer.node import WorkerNode
from kvtransfer.worker import Worker
from prefill_svc.service import PrefillWorker
from runtime.bus import Bus
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.postbox import Postbox
from runtime.worker_settings import WorkerSettings
from tests.support.inline_port import InlinePort

T = TypeVar("T")
WITHIN_S = 20.0
"""A deadline for what takes milliseconds, on a busy machine."""


def run(check: Callable[[], Awaitable[T]], within_s: float = 3 * WITHIN_S) -> T:
    """Run an async test."""

    async def bounded() -> T:
        return await asyncio.wait_for(check(), within_s)

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


@dataclass
class Node:
    """One running worker."""

    node: WorkerNode
    worker: Worker
    heartbeat: Heartbeat
    engine: Engine

    @property
    def held_blocks(self) -> int:
        """Blocks that somebody holds, by the engine's last report."""
        return self.worker.load.held_blocks


@dataclass
class Stack:
    """Workers that share a bus and links. ``hub`` has the hooks that lose or delay messages.

    ``virtual``: for a virtual clock; engines run in the loop itself and contents go over the hub too.
    """

    hub: MemoryHub = field(default_factory=MemoryHub)
    exchange: MemoryExchange = field(default_factory=MemoryExchange)
    nodes: dict[str, Node] = field(default_factory=dict)
    num_blocks: int = 64
    max_payload: int = 1 << 20
    model: Model = field(default_factory=ToyModel)
    max_model_len: int = 4096
    virtual: bool = False
    make_link: Callable[[Postbox], Link] | None = None
    guides: Guides | None = None
    staging: Callable[[PoolMemory], Staging] = Staging

    async def add(self, role: str, worker_id: str, **settings: object) -> Node:
        """Start a worker; ``settings`` are of ``WorkerSettings``."""
        chosen = WorkerSettings(model="toy", served_model_name="toy", **settings)  # type: ignore[arg-type]
        model = self.model
        pool = PoolMemory(model.layout, self.num_blocks)
        engine = Engine(
            model,
            pool,
            EngineSettings(
                max_num_seqs=chosen.max_num_seqs,
                max_num_batched_tokens=chosen.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                enable_prefix_caching=chosen.enable_prefix_caching,
                weights="toy",
                kv_dtype=model.layout.dtype,
                max_recompute_tokens=chosen.local_prefill_tokens,
            ),
            staging=self.staging(pool),
            guides=self.guides,
        )
        ready = Ready(self.num_blocks, self.max_model_len, 0, "toy", "toy")
        started = Started(ready, model.layout, "toy")
        bus = MemoryBus(self.hub, max_payload=self.max_payload)
        port: EnginePort
        link: Link
        if self.virtual:
            port = InlinePort(started, pool, engine)
            link = BusLink(MemoryBus(self.hub, max_payload=self.max_payload))
        else:
            port = ThreadPort(started, pool, lambda commands, emit: run_loop(engine, commands, emit))
            link = MemoryLink(self.exchange, self.max_payload)
        postbox = Postbox(bus, new_peer(worker_id))
        if self.make_link is not None:
            link = self.make_link(postbox)
        node = WorkerNode(role, chosen, port, postbox, link)
        worker: Worker
        if role == "prefill":
            worker = PrefillWorker(node.parts)
        else:
            worker = DecodeWorker(node.parts, chosen.local_prefill_tokens)
        port.listen(worker.report, worker.engine_died)
        await worker.attach()
        await node.postbox.open()
        node.state = "ready"
        heartbeat = Heartbeat(node.postbox, lambda: node.status(worker))
        heartbeat.start()
        self.nodes[worker_id] = Node(node, worker, heartbeat, engine)
        return self.nodes[worker_id]

    async def remove(self, worker_id: str) -> None:
        """Stop a worker as if it had been killed: it says nothing more."""
        gone = self.nodes.pop(worker_id)
        gone.node.postbox.close()
        gone.worker.close()
        gone.node.roster.close()
        if gone.heartbeat._task is not None:
            gone.heartbeat._task.cancel()
        await gone.node.link.close()
        await gone.node.engine.close()
        await gone.node.postbox.bus.close()

    async def leave(self, worker_id: str) -> None:
        """End a worker that still has its say: what it holds is given back, then it is gone."""
        node = self.nodes[worker_id]
        node.worker.draining = True
        node.worker.give_back()
        node.node.state = "leaving"
        node.heartbeat.beat()
        for bus in self.buses(worker_id):
            await bus.drain()
        await self.remove(worker_id)

    def buses(self, worker_id: str) -> list[Bus]:
        """A worker's connections: control, and contents where they go over the hub."""
        node = self.nodes[worker_id].node
        link = node.link
        return [node.postbox.bus, *([link.bus] if isinstance(link, BusLink) else [])]

    async def idle(self, within_s: float = WITHIN_S) -> None:
        """Wait until no worker holds an attempt or a block; then every pool's sum is right."""
        nodes = list(self.nodes.values())

        def done() -> bool:
            loads = [n.worker.load for n in nodes if not n.worker.held]
            free = [load.total_blocks and not load.held_blocks and not load.reserved_blocks for load in loads]
            return len(loads) == len(nodes) and all(free)

        await until(done, within_s)
        for node in nodes:
            load = node.worker.load
            assert load.free_blocks + load.cached_blocks == load.total_blocks == self.num_blocks

    async def close(self) -> None:
        """Stop everything."""
        for worker_id in list(self.nodes):
            await self.remove(worker_id)
