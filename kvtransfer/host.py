"""One worker's io process: engine child, bus, link, roster, heartbeat, status port; started and ended as one."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable

from engine.child import EngineStartError, start_engine
from engine.config import EngineConfig
from engine.port import EnginePort, Started
from kvtransfer.contents import PoolContents
from kvtransfer.link import BusLink, Link
from kvtransfer.worker import Worker, WorkerParts
from protocol.codec import WIRE_VERSION
from protocol.messages import Peer, WorkerStatus
from runtime.bus import Bus
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.logs import get_logger, setup_logs
from runtime.metrics import Metrics
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.roster import Roster
from runtime.roster_store import RosterStore
from runtime.status_server import StatusServer
from runtime.tasks import run_service
from runtime.worker_settings import WorkerSettings

ENGINE_DIED = 1
DRAIN_CHECK_S = 0.05
DRAIN_S = 30.0

log = get_logger("worker")

MakeWorker = Callable[[WorkerParts, WorkerSettings], Worker]


def fingerprint(started: Started) -> str:
    """Equal on two workers that may be paired: wire, block layout, KV dtype and weights."""
    text = f"{WIRE_VERSION}|{started.layout.fingerprint}|{started.ready.weights}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def capacity_line(started: Started) -> str:
    """What the pool holds, in words, and the weights' size."""
    ready, layout = started.ready, started.layout
    tokens = ready.num_blocks * layout.block_size
    length = min(ready.max_model_len, 1024)
    return (
        f"{ready.num_blocks} blocks, {tokens} tokens, about {tokens // length} requests of {length} tokens; "
        f"KV pool {ready.num_blocks * layout.block_bytes / 2**20:.0f} MiB, weights {ready.weight_bytes / 2**20:.0f} MiB"
    )


class WorkerNode:
    """A worker on its bus: what its heartbeat says, and the order in which it starts and ends."""

    def __init__(self, role: str, settings: WorkerSettings, engine: EnginePort, bus: Bus, link: Link, me: Peer) -> None:
        """Needs a running loop."""
        self.role = role
        self.settings = settings
        self.engine = engine
        self.postbox = Postbox(bus, me)
        self.roster = Roster(self.postbox)
        self.link = link
        self.state = "starting"
        self.status_url = ""
        self.parts = WorkerParts(self.postbox, self.roster, engine, PoolContents(engine.pool), link)

    def status(self, worker: Worker) -> WorkerStatus:
        """The heartbeat."""
        started, load = self.engine.started, worker.load
        return WorkerStatus(
            role=self.role,
            state=self.state,
            model=self.settings.served_model_name or started.model_name,
            max_model_len=started.ready.max_model_len,
            weights=started.ready.weights,
            layout=started.layout.fingerprint,
            fingerprint=fingerprint(started),
            numerics=started.ready.numerics,
            kv_dtype=started.layout.dtype,
            status_url=self.status_url,
            progress=self.engine.pool.progress,
            busy=load.num_running + load.num_waiting > 0,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            max_num_seqs=self.settings.max_num_seqs,
            waiting_tokens=load.waiting_tokens,
            total_blocks=started.ready.num_blocks,
            free_blocks=load.free_blocks + load.cached_blocks if load.total_blocks else started.ready.num_blocks,
            reserved_blocks=load.reserved_blocks,
            local_prefill_tokens=self.settings.local_prefill_tokens if self.role == "decode" else 0,
        )

    def ready(self) -> tuple[bool, str]:
        """Whether this worker takes new work, and why not."""
        return self.state == "ready" and self.postbox.bus.connected, (
            self.state if self.postbox.bus.connected else "the bus is away"
        )


def run_worker(role: str, settings: WorkerSettings, make: MakeWorker) -> int:
    """Run a worker's io process until it is told to end; return its exit code. ``make`` builds the service."""
    worker_id = settings.worker_id or f"{role}-{os.getpid()}"
    setup_logs(settings.log_level, role, worker_id)

    async def serve(stop: asyncio.Event) -> int:
        return await _serve(role, settings, new_peer(worker_id), make, stop)

    return run_service(serve)


def engine_config(settings: WorkerSettings, worker_id: str) -> EngineConfig:
    """What the engine is told of a worker's settings."""
    return EngineConfig(
        model=settings.model,
        worker_id=worker_id,
        dtype=settings.dtype,
        device=settings.device,
        max_model_len=settings.max_model_len or 0,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes or 0,
        enable_prefix_caching=settings.enable_prefix_caching,
        host_workers=settings.host_workers,
        num_threads=settings.num_threads,
        log_level=settings.log_level,
    )


async def _serve(
    role: str,
    settings: WorkerSettings,
    me: Peer,
    make: MakeWorker,
    stop: asyncio.Event,
) -> int:
    log.info("loading_weights", model=settings.model)
    starting = asyncio.ensure_future(start_engine(engine_config(settings, me.id), role))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return 0
    stopping.cancel()
    try:
        engine = starting.result()
    except EngineStartError as error:
        log.error("engine_failed", reason=str(error))
        return error.exit_code or ENGINE_DIED
    log.info("weights_loaded", capacity=capacity_line(engine.started))

    def waiting(line: str) -> None:
        log.warning("bus_awaited", reason=line)

    bus = await connect_bus(settings.nats_url, name=me.id, on_wait=waiting)
    contents = await connect_bus(settings.nats_url, name=f"{me.id}-contents", on_wait=waiting)
    node = WorkerNode(role, settings, engine, bus, BusLink(contents), me)
    try:
        return await _run(node, make(node.parts, settings), stop)
    finally:
        await node.link.close()
        await bus.close()
        await engine.close()


async def _run(node: WorkerNode, worker: Worker, stop: asyncio.Event) -> int:
    """Announce, serve, drain, leave."""
    died = asyncio.Event()

    def on_death() -> None:
        log.error("engine_died")
        died.set()
        stop.set()

    node.engine.listen(worker.report, on_death)
    metrics = worker_metrics(node, worker)
    server = StatusServer(
        node.settings.host,
        node.settings.status_port,
        live=lambda: (not died.is_set(), "engine died" if died.is_set() else "live"),
        ready=node.ready,
        metrics=metrics.render,
        ledger=worker.ledger,
    )
    port = await server.start()
    node.status_url = f"http://{node.settings.host}:{port}"
    store = RosterStore(node.settings.redis_url or None)
    await worker.attach()
    await node.postbox.open()
    heartbeat = Heartbeat(node.postbox, lambda: node.status(worker), store)
    node.state = "ready"
    heartbeat.start()
    log.info("ready", status_url=node.status_url, role=node.role)
    await stop.wait()
    if not died.is_set():
        await _drain(node, worker, heartbeat, died)
    node.state = "leaving"
    await heartbeat.stop()
    await store.close()
    await server.close()
    worker.close()
    node.roster.close()
    node.postbox.close()
    return ENGINE_DIED if died.is_set() else 0


async def _drain(node: WorkerNode, worker: Worker, heartbeat: Heartbeat, died: asyncio.Event) -> None:
    """No new work; what is here finishes, within ``DRAIN_S``."""
    node.state = "draining"
    worker.draining = True
    heartbeat.beat()
    log.info("draining", num_held=len(worker.held))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    while (worker.held or not worker.emitter.idle) and not died.is_set() and loop.time() < deadline:  # noqa: ASYNC110 - what it waits for has many causes
        await asyncio.sleep(DRAIN_CHECK_S)


def worker_metrics(node: WorkerNode, worker: Worker) -> Metrics:
    """A worker's metrics: all read from its last load report."""
    metrics = Metrics()
    metrics.watch_bus("control", node.postbox.bus)
    for name in worker.load.__dataclass_fields__:
        text = f"{name.replace('_', ' ')}, as of the engine's last report"
        metrics.watch(name, text, lambda name=name: float(getattr(worker.load, name)))  # type: ignore[misc]
    metrics.watch("held_attempts", "attempts held here", lambda: float(len(worker.held)))
    metrics.watch("content_bytes_moved", "content bytes of finished transfers", lambda: float(worker.bytes_moved))
    return metrics
