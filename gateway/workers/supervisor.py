"""N gateway processes on one port: the supervisor accepts and hands out connections, and keeps the workers running."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from gateway.listening import listen, url_of
from gateway.settings import GatewaySettings
from gateway.workers.door import Door
from gateway.workers.line import Hear
from gateway.workers.member import Member, start_member
from gateway.workers.seat import LOAD, METRICS, Briefing
from gateway.workers.sums import Sums
from protocol.subjects import check_process_id
from runtime.backoff import Backoff, how_it_ended
from runtime.identity import process_id
from runtime.logs import get_logger, setup_logs
from runtime.tasks import CRASHED, run_service

BAD_SETTINGS = 2
"""Exit code of a worker, and then ours, when starting again wouldn't help."""

LEAVE_S = 20.0
"""Beyond ``shutdown_timeout``: a worker gives up after 15."""

_IN_ORDER = {0, -signal.SIGTERM}
"""Exit codes of workers that were told to end; the second is of one that hadn't begun."""

log = get_logger("gateway.supervisor")


def run(settings: GatewaySettings) -> int:
    """Run until told to end; return the exit code."""
    gateway_id = process_id("gateway", settings.gateway_id)
    setup_logs(settings.log_level, "gateway", gateway_id)
    try:
        check_process_id(name_of(gateway_id, settings.gateway_workers))
    except ValueError as error:
        log.error("gateway_id_refused", reason=str(error))
        return BAD_SETTINGS
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        log.error("port_taken", host=settings.host, port=settings.port, reason=error.strerror)
        return BAD_SETTINGS

    async def serve(stop: asyncio.Event) -> int:
        return await Supervisor(replace(settings, gateway_id=gateway_id), listener).run(stop)

    return run_service(serve)


Start = Callable[[int, Briefing, Mapping[str, Hear]], Awaitable[Member]]


class Supervisor:
    """Lives as long as its loop."""

    def __init__(self, settings: GatewaySettings, listener: socket.socket, start: Start = start_member) -> None:
        self._settings = settings
        self._start = start
        self._url = url_of(listener)
        self._created = int(time.time())
        self._members: dict[int, Member] = {}
        self._sums = Sums(self._members)
        self._door = Door(listener, self._members)
        self._ending = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Until ``stop`` is set, or a worker can't run as it was told; return the exit code."""
        numbers = range(1, self._settings.gateway_workers + 1)
        keeping = [asyncio.ensure_future(self._keep(number)) for number in numbers]
        stopping = asyncio.ensure_future(stop.wait())
        self._door.open()
        log.info("listening", url=self._url, num_workers=len(numbers))
        await asyncio.wait({stopping, *keeping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return await self._end(keeping)

    async def _end(self, keeping: Sequence[asyncio.Future[int]]) -> int:
        """Every worker drains, and takes connections until then: newcomers hear why they get nothing."""
        self._ending.set()
        for member in self._members.values():
            member.terminate()
        await asyncio.wait(keeping, timeout=self._settings.shutdown_timeout + LEAVE_S)
        self._door.close()
        for member in list(self._members.values()):
            log.error("worker_late", worker=member.number, pid=member.pid)
            member.kill()
        codes = await asyncio.gather(*keeping)
        if BAD_SETTINGS in codes:
            return BAD_SETTINGS
        return 0 if set(codes) <= _IN_ORDER else CRASHED

    async def _keep(self, number: int) -> int:
        """Run one over and over; return the exit code of the last one."""
        backoff = Backoff()
        while True:
            started = time.monotonic()
            code = await self._run_once(number)
            if self._ending.is_set() or code == BAD_SETTINGS:
                return code
            wait_s = backoff.after(time.monotonic() - started, code)
            self._sums.restarted()
            log.error("worker_ended", worker=number, reason=how_it_ended(code), again_in_s=wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait_s)
            if self._ending.is_set():
                return code

    async def _run_once(self, number: int) -> int:
        answers = {METRICS: lambda _: self._sums.page(), LOAD: lambda _: self._sums.load()}
        try:
            member = await self._start(number, self._briefing(number), answers)
        except OSError as error:
            log.error("worker_not_started", worker=number, reason=error.strerror)
            return CRASHED
        log.info("worker_started", worker=number, pid=member.pid)
        self._members[number] = member
        if self._ending.is_set():
            member.terminate()
        try:
            return await member.ended()
        finally:
            del self._members[number]
            self._sums.ended(number)
            await member.close()

    def _briefing(self, number: int) -> Briefing:
        """Its part of what holds for all together; where it doesn't divide, the first ones have one more."""
        settings = self._settings
        own = replace(
            settings,
            gateway_id=name_of(settings.gateway_id, number),
            gateway_workers=1,
            max_connections=part(settings.max_connections, settings.gateway_workers, number),
            max_waiting=part(settings.max_waiting, settings.gateway_workers, number),
        )
        return Briefing(own, self._url, settings.gateway_workers, self._created)


def name_of(gateway_id: str, number: int) -> str:
    """The id of a worker."""
    return f"{gateway_id}-w{number}"


def part(whole: int, num_parts: int, number: int) -> int:
    """The part of ``number``, from 1 on; all parts together are the whole."""
    return whole // num_parts + (number <= whole % num_parts)
