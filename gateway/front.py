"""The outermost layer of the app: keys and their limits, the record of each request, errors of last resort."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access_log import CLIENT_CLOSED, KEY, MAX_LABEL_CHARS, RequestRecord, record_of
from gateway.bearer import given_key
from gateway.cors import with_cors
from gateway.disconnect import ClientGone
from gateway.errors import GatewayError
from gateway.framing import check_framing
from gateway.http_errors import error_response, internal_error, unauthorized
from gateway.key_ring import KeyRing
from gateway.limits import rate_headers
from gateway.services import Services
from runtime.logs import get_logger

log = get_logger("gateway.front")

OPEN_ROUTES = frozenset({"/health", "/ping", "/live", "/ready", "/metrics", "/load", "/version"})
"""Need no key: they are for probes and collectors, and tell nothing of any request."""

KEPT = "/v1/responses/"
"""Below it are the routes that show and end what was asked for before."""


class Front:
    """ASGI middleware around everything else. Each HTTP request ends in one metric and one line."""

    def __init__(self, app: ASGIApp, keys: KeyRing, services: Services) -> None:
        self._app = app
        self._keys = keys
        self._services = services
        self._metrics = services.metrics
        self._door = with_cors(self._answer, services.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise nothing but cancellation."""
        if scope["type"] != "http":
            return  # the server offers nothing else; what came all the same would pass by the keys
        record = RequestRecord(label=_label(scope), method=scope["method"])
        scope[KEY] = record
        self._metrics.began()
        try:
            await self._serve(scope, receive, _Sender(send, record, self._services))
        finally:
            route = scope.get("route")
            record.route = getattr(route, "path", record.route)
            seconds = time.monotonic() - record.started
            self._metrics.ended(record, seconds)
            record.write(seconds)
            await self._services.settle(record)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Before all else: where does this request end? What isn't clear about it is no browser's."""
        try:
            check_framing(scope, self._services.settings)
        except GatewayError as error:
            record_of(scope).error_code = error.code or str(error.status)
            await error_response(error, scope, {"connection": "close"})(scope, receive, send)
            return
        await self._door(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever a client hears, errors too. A web page's question whether it may ask ends before it."""
        record = record_of(scope)
        try:
            await self._let_in(scope)
            await self._app(scope, receive, send)
        except ClientGone as gone:
            record.status, record.reason = CLIENT_CLOSED, gone.reason
        except _Refused as refused:
            record.error_code = refused.error.code or str(refused.error.status)
            await error_response(refused.error, scope, refused.headers)(scope, receive, send)
        except Exception:
            log.exception("request_failed", label=record.label, path=scope["path"])
            record.error_code = "internal_error"
            if not record.status:
                await error_response(internal_error(), scope)(scope, receive, send)

    async def _let_in(self, scope: Scope) -> None:
        """Note who asks. Raises ``_Refused``: no valid key, or one that has had enough."""
        if not self._keys.asks or scope["path"] in OPEN_ROUTES:
            return
        given = given_key(scope)
        key = None if given is None else self._keys.find(given)
        if key is None:
            raise _Refused(unauthorized(scope["path"]), {"www-authenticate": "Bearer"})
        try:
            only_looks = scope["path"].startswith(KEPT)
            await self._services.enter(record_of(scope), key, only_looks=only_looks)
        except GatewayError as error:
            raise _Refused(error, {}) from error


class _Refused(Exception):  # noqa: N818 - it says what happened
    """Not let in."""

    def __init__(self, error: GatewayError, headers: dict[str, str]) -> None:
        super().__init__()
        self.error = error
        self.headers = headers


class _Sender:
    """``send`` that notes the status, adds the headers every response has, and settles before the end."""

    def __init__(self, send: Send, record: RequestRecord, services: Services) -> None:
        self._send = send
        self._services = services
        self._record = record

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._headers()]}
        elif not message.get("more_body", False):
            await self._services.settle(self._record)  # whoever has the answer may come again at once
        await self._send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        record = self._record
        headers = [(b"x-request-id", record.label.encode("latin-1"))] if record.label else []
        if record.stay is not None:
            told = rate_headers(record.stay.key.limits, record.stay.verdict)
            headers += [(name.encode(), value.encode()) for name, value in told.items()]
        return headers


def _label(scope: Scope) -> str:
    """Return the client's own name for the request: for logs, never for telling them apart."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")[:MAX_LABEL_CHARS].strip()  # a header that we send may end in no space
            return text
    return ""
