"""An answer as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access_log import RequestRecord, record_of
from gateway.answer import Answer
from gateway.disconnect import ClientGone, until_gone
from gateway.errors import GatewayError
from gateway.http_errors import internal_error
from gateway.http_settings import HttpSettings
from gateway.services import Services
from gateway.write_watch import WriteWatch
from runtime.logs import get_logger

STREAMED = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of every stream."""

log = get_logger("gateway.sse")


class Streamed(Response):
    """A response whose body comes in pieces, of unknown length."""

    def __init__(self, headers: dict[str, str]) -> None:
        """``headers`` are those beside ``STREAMED``; empty ones aren't sent."""
        self.status_code = 200
        self.background = None
        told = [(name.encode(), value.encode()) for name, value in headers.items() if value]
        self.raw_headers = [*STREAMED, *told]


class EventStream(Streamed):
    """Sends a run's pieces as they come: what is ready together goes out in one write."""

    def __init__(self, answer: Answer, services: Services, starting: asyncio.Future[None]) -> None:
        """``starting`` is done once the first token has come, or raises what went wrong before."""
        super().__init__(answer.headers())  # of which some aren't known before the first token
        self._answer = answer
        self._services = services
        self._starting = starting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all. Raises ``ClientGone``; in any case nothing of the run is left."""
        reason = "client disconnected"
        try:
            await until_gone(receive, self._send_all(send, record_of(scope)))
        except ClientGone as gone:
            reason = gone.reason
            raise
        finally:
            self._starting.cancel()
            self._answer.run.close(reason)

    async def _send_all(self, send: Send, record: RequestRecord) -> None:
        await send_bodies(self, self._events(record), send, self._services.settings, self._answer.run.nudge)

    async def _events(self, record: RequestRecord) -> AsyncIterator[bytes]:
        """Bodies, none of them empty."""
        answer, run, failure = self._answer, self._answer.run, None
        try:
            while not self._starting.done():
                yield answer.keepalive
                await asyncio.wait((self._starting,), timeout=self._services.settings.keepalive_s)
            self._starting.result()
            if opening := await answer.opening():
                yield opening
            while (pieces := await run.batch()) or not run.over:
                if body := answer.events(pieces) if pieces else answer.keepalive:
                    yield body
        except GatewayError as error:
            failure = error
        except Exception:
            log.exception("stream_failed", request_id=run.request_id)
            failure = internal_error()
        await self._services.settle(record)  # before the end is told: whoever hears of it may come again at once
        if failure is None:
            yield await answer.ending()
        else:
            record.error_code = failure.code or str(failure.status)
            yield await answer.failed(failure)


class BodyStream(Streamed):
    """Sends events that come from elsewhere, and go on there when the client leaves."""

    def __init__(self, bodies: AsyncIterator[bytes], settings: HttpSettings, nudge: Callable[[], None]) -> None:
        """``nudge`` is called after a while without a body; one of ``bodies`` shall follow."""
        super().__init__({})
        self._bodies = bodies
        self._settings = settings
        self._nudge = nudge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all. Raises ``ClientGone``."""
        await until_gone(receive, send_bodies(self, self._bodies, send, self._settings, self._nudge))


async def send_bodies(
    response: Streamed,
    bodies: AsyncIterator[bytes],
    send: Send,
    settings: HttpSettings,
    nudge: Callable[[], None],
) -> None:
    """Send a response whose body comes in pieces. Raises ``ClientGone`` for a client that reads too slowly."""
    watch = WriteWatch(settings.keepalive_s, settings.write_timeout_s, nudge)
    try:
        async with watch.limit():
            head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
            await send(head)
            async for body in bodies:
                watch.sends()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                watch.sent()
            watch.sends()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError as error:
        raise ClientGone("client reads too slowly") from error
