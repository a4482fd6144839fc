"""A request's body: read within bounds, parsed, checked against its model."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from gateway.body_json import BodyReader
from gateway.disconnect import ClientGone
from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings


class Body(BaseModel):
    """Base of all bodies: no guessing of types, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)

_READER = BodyReader()


async def read_fields(request: Request, settings: HttpSettings) -> dict[str, object]:
    """Return the JSON object that was sent, without fields that are null or an empty object.

    Raises ``GatewayError``: 413 too large, 408 too slow, 400 not a JSON object, 429 too many large ones.
    """
    raw = await _read(request, settings)
    try:
        fields = await _READER.read(raw)
    except ValueError as error:
        raise GatewayError(400, f"The body isn't valid JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise GatewayError(400, "The body must be a JSON object", code="invalid_json")
    return {name: value for name, value in fields.items() if value is not None and value != {}}


async def _read(request: Request, settings: HttpSettings) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > settings.max_body_bytes:
        raise _too_large(settings)
    raw = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                raw += message.get("body", b"")
                if len(raw) > settings.max_body_bytes:
                    raise _too_large(settings)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise GatewayError(408, "The body took too long to arrive", code="request_timeout") from error
    return bytes(raw)


def _too_large(settings: HttpSettings) -> GatewayError:
    return GatewayError(
        413,
        f"The body is larger than {settings.max_body_bytes} bytes",
        code="request_too_large",
    )


def parse(model: type[AnyBody], fields: object, where: str = "") -> AnyBody:
    """Return ``fields`` as ``model``.

    Raises ``GatewayError`` (400) that names the first field at fault.

    ``where`` is the dotted path of ``fields`` inside the body.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(step) for step in (where, *first["loc"]) if step != "")
        reason = first["msg"].removeprefix("Value error, ")
        raise GatewayError(400, f"{path}: {reason}" if path else reason, param=path or None) from error


def invalid(param: str, reason: str, code: str | None = None) -> GatewayError:
    """Return a 400 about one field's value."""
    return GatewayError(400, f"{param}: {reason}", param=param, code=code)
