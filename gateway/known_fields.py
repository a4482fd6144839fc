"""Which fields of a body are known: what --strict goes by."""

from collections.abc import Collection, Mapping

from gateway.body import Body
from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings
from gateway.unsupported import UNSUPPORTED

HARMLESS = frozenset(
    {
        "length_penalty",
        "metadata",
        "moderation",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "spaces_between_special_tokens",
        "store",
        "stream_interval",
        "user",
        "verbosity",
    }
)
"""Clients send them, and they change no answer here: hints, marks of the client's own, defaults of other servers."""


def refuse_unknown(
    fields: Mapping[str, object], model: type[Body], settings: HttpSettings, known: Collection[str] = UNSUPPORTED
) -> None:
    """Raise ``GatewayError`` (400, ``unsupported_parameter``) for the first field that nobody knows, if so told.

    ``known`` are those that were looked at before. Fields inside others (of a message, of ``stream_options``) aren't
    looked at.
    """
    if not settings.strict:
        return
    for name in fields:
        if name not in model.model_fields and name not in HARMLESS and name not in known:
            raise GatewayError(
                400,
                f"{name[:256]} isn't known to this server, which is told to be strict; leave it out",
                code="unsupported_parameter",
                param=name[:256],
            )
