"""The outermost layer of the app: keys, the record of each request, errors of last resort."""

import hmac
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access_log import KEY, MAX_LABEL_CHARS, RequestRecord
from gateway.disconnect import ClientGone
from gateway.http_errors import error_response, internal_error, unauthorized
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from runtime.logs import get_logger

log = get_logger("gateway.front")

OPEN_ROUTES = frozenset({"/health", "/live", "/ready", "/metrics", "/version"})
"""Need no key: they are for probes and collectors, and tell nothing of any request."""

CLIENT_CLOSED = 499


class Front:
    """ASGI middleware around everything else. Each HTTP request ends in one metric and one line."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, metrics: HttpMetrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.api_keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise nothing but cancellation."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(label=_label(scope), method=scope["method"])
        scope[KEY] = record
        self._metrics.began()
        try:
            await self._answer(scope, receive, _Sender(send, record))
        finally:
            route = scope.get("route")
            record.route = getattr(route, "path", record.route)
            seconds = time.monotonic() - record.started
            self._metrics.ended(record, seconds)
            record.write(seconds)

    async def _answer(self, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        record = sender.record
        try:
            if self._keys and scope["path"] not in OPEN_ROUTES and not self._has_key(scope):
                record.error_code = "invalid_api_key"
                refusal = error_response(unauthorized(), {"www-authenticate": "Bearer"})
                await refusal(scope, receive, sender)
            else:
                await self._app(scope, receive, sender)
        except ClientGone as gone:
            record.status, record.reason = CLIENT_CLOSED, gone.reason
        except Exception:
            log.exception("request_failed", label=record.label, path=scope["path"])
            record.error_code = "internal_error"
            if not sender.started:
                await error_response(internal_error())(scope, receive, sender)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        # every key is compared, so that the time tells nothing
        return any([hmac.compare_digest(key.strip(), known) for known in self._keys])  # noqa: C419


class _Sender:
    """``send`` that notes the status and adds the headers every response has."""

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send = send
        self.record = record
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.started = True
            self.record.status = message["status"]
            if self.record.label:
                label = (b"x-request-id", self.record.label.encode("latin-1"))
                message = {**message, "headers": [*message.get("headers", ()), label]}
        await self._send(message)


def _label(scope: Scope) -> str:
    """Return the client's own name for the request: for logs, never for telling them apart."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")[:MAX_LABEL_CHARS]
            return text
    return ""
