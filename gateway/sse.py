"""An answer as a stream of server-sent events."""

import json
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access_log import RequestRecord, record_of
from gateway.disconnect import ClientGone, until_gone
from gateway.errors import GatewayError
from gateway.http_errors import internal_error
from gateway.responses import Answer, Json
from gateway.services import Services
from gateway.transcript import Piece
from gateway.write_watch import WriteWatch
from runtime.logs import get_logger

log = get_logger("gateway.sse")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """Sends a run's pieces as they come: what is ready together goes out in one write.

    Its first token has come when it is made. An error is an event with ``error``, then [DONE].
    """

    def __init__(self, answer: Answer, services: Services) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **answer.headers()},
        )
        del self.headers["content-length"]
        self._answer = answer
        self._services = services
        self._before = b"data: " + _encode(answer.chunk_head())[:-1].encode() + b',"choices":['

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all. Raises ``ClientGone``; in any case nothing of the run is left."""
        reason = "client disconnected"
        try:
            await until_gone(receive, self._send_all(send, record_of(scope)))
        except ClientGone as gone:
            reason = gone.reason
            raise
        finally:
            self._answer.run.close(reason)

    async def _send_all(self, send: Send, record: RequestRecord) -> None:
        settings = self._services.settings
        watch = WriteWatch(settings.keepalive_s, settings.write_timeout_s, self._answer.run.nudge)
        try:
            async with watch.limit():
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for body in self._events(record):
                    watch.sends()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    watch.sent()
                watch.sends()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError as error:
            raise ClientGone("client reads too slowly") from error

    async def _events(self, record: RequestRecord) -> AsyncIterator[bytes]:
        run = self._answer.run
        yield b"".join(self._opening())
        try:
            while (pieces := await run.batch()) or not run.over:
                yield b"".join(map(self._piece, pieces)) if pieces else KEEPALIVE
            if run.job.include_usage or run.job.include_kvferry:
                yield _event(self._answer.chunk([]))
        except GatewayError as error:
            record.error_code = error.code or str(error.status)
            yield _event(error.body())
        except Exception:
            log.exception("stream_failed", request_id=run.request_id)
            record.error_code = "internal_error"
            yield _event(internal_error().body())
        await self._services.settle(record)  # before the end is told: whoever hears of it may come again at once
        yield DONE

    def _opening(self) -> list[bytes]:
        answer = self._answer
        said = [answer.shape.opening(choice) for choice in range(answer.run.num_choices)]
        opened = [choice for choice in said if choice is not None]
        events = [self._chunk(choice) for choice in opened]
        if once := answer.shape.once():
            events[0] = _event({**answer.chunk([opened[0]]), **once})
        return events

    def _piece(self, piece: Piece) -> bytes:
        return b"".join(map(self._chunk, self._answer.shape.piece(piece)))

    def _chunk(self, choice: Json) -> bytes:
        if self._answer.run.job.continuous_usage:
            return _event(self._answer.chunk([choice]))
        return self._before + _encode(choice).encode() + b"]}\n\n"


def _event(body: object) -> bytes:
    return b"data: " + _encode(body).encode() + b"\n\n"
