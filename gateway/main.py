"""Starts a gateway: bus, roster, dispatcher, and the HTTP server in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from gateway.app import create_app
from gateway.descriptors import make_room
from gateway.dispatch_metrics import DispatchCounters, watch_waiting
from gateway.dispatch_settings import DispatchSettings
from gateway.dispatcher import GatewayDispatcher
from gateway.errors import ModelFolderError
from gateway.grammars.checking import GrammarCheck
from gateway.http_server import serve_http
from gateway.http_settings import HttpSettings
from gateway.key_ring import KeyRing
from gateway.keys import KeyFileError
from gateway.limiter import Limiter
from gateway.listening import listen, url_of
from gateway.lobby import Lobby
from gateway.metrics import HttpMetrics
from gateway.redis_limits import WARM_TIMEOUT_S, RedisLimits
from gateway.responses_api.background import Background
from gateway.responses_api.redis_store import CALL_TIMEOUT_S, RedisStore
from gateway.responses_api.shelf import Shelf
from gateway.responses_api.store import MemoryStore, ResponseStore
from gateway.served_model import ServedModel, load_served_model
from gateway.settings import GatewaySettings
from gateway.workers.seat import Seat
from protocol.codec import decode
from protocol.errors import WireError
from protocol.messages import GatewayStatus, Peer, WorkerStatus
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer, process_id
from runtime.logs import get_logger, setup_logs
from runtime.metrics import Metrics
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.redis_client import open_redis
from runtime.roster import Roster
from runtime.roster_store import RosterStore
from runtime.tasks import leave_within, run_service, spawn

BAD_SETTINGS = 2
"""Exit code when starting again wouldn't help."""

LEAVE_S = 15.0
"""Seconds from the last answer to the end of the process."""

log = get_logger("gateway")


def run(settings: GatewaySettings, seat: Seat | None = None) -> int:
    """Run until told to end; return the exit code. With a ``seat`` a supervisor has the port."""
    gateway_id = process_id("gateway", settings.gateway_id)
    setup_logs(settings.log_level, "gateway", gateway_id)
    try:
        entrance = seat or listen(settings.host, settings.port)
    except OSError as error:
        log.error("port_taken", host=settings.host, port=settings.port, reason=error.strerror)
        return BAD_SETTINGS
    try:
        template = Path(settings.chat_template) if settings.chat_template else None
        parsers = settings.tool_call_parser, settings.reasoning_parser
        name, longest = settings.served_model_name, settings.fixed_model_len
        model = load_served_model(Path(settings.model), name, longest, template, *parsers)
        if seat is not None:
            model = replace(model, created=seat.briefing.created)
    except ModelFolderError as error:
        log.error("model_refused", model=settings.model, reason=str(error))
        return BAD_SETTINGS
    try:
        keys = KeyRing(settings.api_key, Path(settings.keys_file) if settings.keys_file else None)
    except KeyFileError as error:
        log.error("keys_refused", file=settings.keys_file, reason=str(error))
        return BAD_SETTINGS
    make_room(settings.max_connections)
    gc.freeze()  # what has been loaded stays: looked through again and again, it would halt all streams meanwhile

    async def serve(stop: asyncio.Event) -> int:
        return await _serve(settings, model, keys, new_peer(gateway_id), entrance, stop)

    return run_service(serve)


async def _serve(
    settings: GatewaySettings,
    model: ServedModel,
    keys: KeyRing,
    me: Peer,
    entrance: socket.socket | Seat,
    stop: asyncio.Event,
) -> int:
    """Answer HTTP from the start; requests get through once the bus is there."""
    lobby, metrics, done = Lobby(), Metrics(), asyncio.Event()
    url = entrance.briefing.url if isinstance(entrance, Seat) else url_of(entrance)

    async def work() -> None:
        async with _dispatcher(settings, me, url, metrics) as dispatcher:
            lobby.open(dispatcher)
            log.info("listening", url=url)
            await done.wait()

    bounds, counted = http_settings(settings), HttpMetrics(metrics)
    limiter = _limiter(settings, entrance.briefing.num_workers if isinstance(entrance, Seat) else 1)
    grammars = GrammarCheck()
    background = Background(Shelf(_response_store(settings)))
    app = create_app(lobby, model, bounds, counted, keys, limiter, grammars, background)
    if isinstance(entrance, Seat):
        await entrance.join(counted, lambda: lobby.health().ready)
    keeping = spawn(limiter.keep(), "limiter")
    working = asyncio.ensure_future(work())
    working.add_done_callback(lambda _: stop.set())
    await serve_http(
        app, entrance, stop, lambda: lobby.drain(settings.shutdown_timeout), bounds, counted.refused_connection
    )
    leave_within(LEAVE_S)
    keeping.cancel()
    await background.close()
    await limiter.close()
    await grammars.close()
    done.set()
    if not lobby.is_open:
        working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    if isinstance(entrance, Seat):
        await entrance.close()
    return 0


@contextlib.asynccontextmanager
async def _dispatcher(
    settings: GatewaySettings, me: Peer, url: str, metrics: Metrics
) -> AsyncIterator[GatewayDispatcher]:
    """A dispatcher on the bus, for as long as it takes; waits for the bus, and tells the workers at its end."""

    def waiting(line: str) -> None:
        log.warning("bus_awaited", reason=line)

    bus = await connect_bus(settings.nats_url, name=me.id, tls=settings.nats_tls, on_wait=waiting)
    postbox = Postbox(bus, me)
    roster = Roster(postbox)
    metrics.watch_bus("control", bus)
    metrics.watch_refused(lambda: postbox.num_refused)
    dispatcher = GatewayDispatcher(postbox, roster, dispatch_settings(settings), DispatchCounters(metrics))
    watch_waiting(metrics, lambda: dispatcher.counts()["waiting"])
    store = RosterStore(settings.redis_url or None, settings.redis_tls)
    heartbeat = Heartbeat(postbox, lambda: GatewayStatus(url, dispatcher.num_requests))
    try:
        await postbox.open()
        await _read_store(store, roster)
        heartbeat.start()
        yield dispatcher
    finally:
        dispatcher.close()
        await heartbeat.stop()
        roster.close()
        postbox.close()
        await store.close()
        await bus.close()


async def _read_store(store: RosterStore, roster: Roster) -> None:
    """A newcomer's roster: what workers last said, until they are heard in person."""
    for frame in await store.all():
        try:
            envelope, status = decode(frame)
        except WireError as error:
            log.warning("roster_entry_refused", reason=str(error))
            continue
        if isinstance(status, WorkerStatus):
            roster.hear(envelope.sender, status)


def _limiter(settings: GatewaySettings, num_workers: int) -> Limiter:
    if not settings.redis_url:
        return Limiter()
    store = RedisLimits(open_redis(settings.redis_url, WARM_TIMEOUT_S, settings.redis_tls))
    return Limiter(store, num_alone=num_workers)


def _response_store(settings: GatewaySettings) -> ResponseStore:
    kept = settings.response_ttl, settings.response_store_bytes
    if not settings.redis_url:
        return MemoryStore(*kept)
    return RedisStore(open_redis(settings.redis_url, CALL_TIMEOUT_S, settings.redis_tls), *kept)


def dispatch_settings(settings: GatewaySettings) -> DispatchSettings:
    """What the dispatcher takes of the gateway's settings."""
    return DispatchSettings(
        max_waiting=settings.max_waiting,
        queue_s=settings.queue_timeout,
        prefill_s=settings.prefill_timeout,
        transfer_s=settings.transfer_timeout,
        decode_s=settings.decode_timeout,
    )


def http_settings(settings: GatewaySettings) -> HttpSettings:
    """What the HTTP side takes of the gateway's settings."""
    return HttpSettings(
        api_keys=settings.api_key,
        max_body_bytes=settings.max_body_bytes,
        max_header_bytes=settings.max_header_bytes,
        max_connections=settings.max_connections,
        header_timeout_s=settings.header_timeout,
        body_timeout_s=settings.body_timeout,
        request_timeout_s=settings.request_timeout,
        first_byte_hold_s=settings.first_byte_hold,
        allowed_origins=settings.allowed_origins,
        allowed_methods=settings.allowed_methods,
        allowed_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        strict=settings.strict,
        trust_request_chat_template=settings.trust_request_chat_template,
    )
