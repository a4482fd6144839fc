"""Errors as Anthropic's clients read them, and the routes that they are for."""

from starlette.types import Scope

from gateway.access_log import record_of
from gateway.errors import GatewayError

MESSAGES = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    """Whether a route speaks Anthropic's API."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def anthropic_body(error: GatewayError, request_id: str = "") -> dict[str, object]:
    """Return Anthropic's body of an error. The field at fault stands in the message alone."""
    by_class = "api_error" if error.status >= 500 else "invalid_request_error"
    told = {"type": _TYPES.get(error.status, by_class), "message": error.message}
    return {"type": "error", "error": told, "request_id": request_id or None}


def body_for(scope: Scope, error: GatewayError) -> dict[str, object]:
    """Return the body of an error in the words of the route that was asked."""
    if not is_anthropic(scope["path"]):
        return dict(error.body())
    record = record_of(scope)
    return anthropic_body(error, record.request_id or record.label)
