"""One worker's io process: engine child, bus, link, heartbeat and status port, started and ended as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.child import ChildPort, EngineStartError, start_engine
from engine.config import AUTO_LEN, EngineConfig
from kvtransfer.choose_link import LinkError, choose_link
from kvtransfer.ledger import ledger
from kvtransfer.node import WorkerNode, capacity, worker_metrics
from kvtransfer.worker import Worker, WorkerParts
from protocol.messages import Peer
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer, process_id
from runtime.logs import get_logger, setup_logs
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.roster_store import RosterStore
from runtime.status_server import StatusServer, url_for_others
from runtime.tasks import leave_within, run_service
from runtime.worker_settings import WorkerSettings

ENGINE_DIED = 1
BAD_SETTINGS = 2
DRAIN_CHECK_S = 0.05
GIVE_BACK_S = 2.0
"""What isn't finished this long before the end of draining is given back, so that its gateway hears of it."""

LEAVE_S = 15.0
"""The engine's last step may take 10 of it."""

log = get_logger("worker")

MakeWorker = Callable[[WorkerParts, WorkerSettings], Worker]


def run_worker(role: str, settings: WorkerSettings, make: MakeWorker) -> int:
    """Run a worker's io process until it is told to end; return its exit code. ``make`` builds the service."""
    worker_id = process_id(role, settings.worker_id)
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
        quantization=settings.quantization,
        max_model_len=AUTO_LEN if settings.max_model_len == "auto" else settings.fixed_model_len or 0,
        auto_concurrency=settings.auto_concurrency,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes or 0,
        enable_prefix_caching=settings.enable_prefix_caching,
        host_workers=settings.host_workers,
        num_threads=settings.num_threads,
        cores_file=settings.cores_file,
        packed_dir=settings.packed_dir,
        itl_limit_ms=settings.itl_limit_ms,
        enforce_eager=settings.enforce_eager,
        batch_invariant=settings.batch_invariant,
        max_recompute_tokens=settings.local_prefill_tokens,
        log_level=settings.log_level,
    )


async def _serve(role: str, settings: WorkerSettings, me: Peer, make: MakeWorker, stop: asyncio.Event) -> int:
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
    told = capacity(engine.started, settings.max_num_seqs)
    log.info(
        "weights_loaded",
        capacity=str(told),
        weight_bytes=told.weight_bytes,
        token_bytes=told.layout.token_bytes,
        num_blocks=told.num_blocks,
    )
    try:
        return await _on_the_bus(role, settings, me, make, engine, stop)
    finally:
        await engine.close()


async def _on_the_bus(
    role: str, settings: WorkerSettings, me: Peer, make: MakeWorker, engine: ChildPort, stop: asyncio.Event
) -> int:
    def waiting(line: str) -> None:
        log.warning("bus_awaited", reason=line)

    url, tls = settings.nats_url, settings.nats_tls
    bus = await connect_bus(url, name=me.id, tls=tls, on_wait=waiting)
    contents = await connect_bus(url, name=f"{me.id}-contents", tls=tls, on_wait=waiting)
    postbox = Postbox(bus, me)
    try:
        link = choose_link(settings, postbox, contents)
    except LinkError as error:
        log.error("no_link", reason=str(error))
        await contents.close()
        await bus.close()
        return BAD_SETTINGS
    node = WorkerNode(role, settings, engine, postbox, link)
    try:
        return await _run(node, make(node.parts, settings), stop)
    finally:
        await link.close()
        await bus.close()


async def _run(node: WorkerNode, worker: Worker, stop: asyncio.Event) -> int:
    """Announce, serve, drain, leave."""
    died = asyncio.Event()

    def on_death(exit_code: int) -> None:
        log.error("engine_died", exit_code=exit_code)
        worker.engine_died(exit_code)
        died.set()
        stop.set()

    node.engine.listen(worker.report, on_death)
    server = StatusServer(
        node.settings.host,
        node.settings.status_port,
        live=lambda: (not died.is_set(), "engine died" if died.is_set() else "live"),
        ready=lambda: node.ready(worker),
        metrics=worker_metrics(node, worker).render,
        ledger=lambda: ledger(worker),
    )
    port = await server.start()
    node.status_url = url_for_others(node.settings.host, port)
    store = RosterStore(node.settings.redis_url or None, node.settings.redis_tls)
    await worker.attach()
    await node.postbox.open()
    heartbeat = Heartbeat(node.postbox, lambda: node.status(worker), store)
    node.state = "ready"
    heartbeat.start()
    log.info("ready", status_url=node.status_url, role=node.role)
    await stop.wait()
    if not died.is_set():
        await drain(node, worker, heartbeat, died)
    leave_within(LEAVE_S)
    node.state = "leaving"
    await heartbeat.stop()
    await store.close()
    await server.close()
    worker.close()
    node.roster.close()
    node.postbox.close()
    return ENGINE_DIED if died.is_set() else 0


async def drain(node: WorkerNode, worker: Worker, heartbeat: Heartbeat, died: asyncio.Event) -> None:
    """No new work; what is here finishes, and what doesn't within ``--shutdown-timeout`` is given back."""
    node.state = "draining"
    worker.draining = True
    heartbeat.beat()
    within_s = node.settings.shutdown_timeout
    log.info("draining", num_held=len(worker.held), within_s=within_s)

    async def quiet(until: Callable[[], bool], seconds: float) -> None:
        """Until nothing is left, or the time is over."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not until() and not died.is_set() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - many causes
            await asyncio.sleep(DRAIN_CHECK_S)

    await quiet(lambda: not worker.held, max(within_s - GIVE_BACK_S, 0.0))
    worker.give_back()
    await quiet(lambda: worker.emitter.idle, min(within_s, GIVE_BACK_S))
