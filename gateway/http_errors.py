"""Errors as HTTP responses, in the words of the route."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Scope

from gateway.anthropic_errors import body_for, is_anthropic
from gateway.errors import GatewayError

DEFAULT_RETRY_AFTER_S = 1

_AGAIN = (429, 503)


def error_response(error: GatewayError, scope: Scope, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the body, and the headers that tell clients whether to try again.

    429 and 503 always say when; any other 5xx without a time says never, since clients repeat
    those of their own accord.
    """
    extra = dict(headers or {})
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status in _AGAIN:
        retry_after_s = DEFAULT_RETRY_AFTER_S
    if retry_after_s is not None:
        extra["retry-after"] = str(retry_after_s)
    elif error.status >= 500:
        extra["x-should-retry"] = "false"
    return JSONResponse(body_for(scope, error), error.status, extra)


def internal_error() -> GatewayError:
    """For what nobody foresaw; the log has the details."""
    return GatewayError(
        500,
        "The server made a mistake; its log says more",
        type="server_error",
        code="internal_error",
    )


def unauthorized(path: str) -> GatewayError:
    """No key, or a wrong one."""
    either = ", or in x-api-key" if is_anthropic(path) else ""
    return GatewayError(
        401,
        f"Send a valid API key in the header Authorization: Bearer <key>{either}",
        type="authentication_error",
        code="invalid_api_key",
    )


def from_http(error: HTTPException, method: str, path: str) -> GatewayError:
    """Translate what the framework refuses: no such route, another method."""
    if error.status_code == 404:
        return GatewayError(404, f"No such route: {method} {path[:256]}", code="not_found")
    if error.status_code == 405:
        return GatewayError(405, f"{method} isn't allowed here", code="method_not_allowed")
    return GatewayError(error.status_code, str(error.detail))
