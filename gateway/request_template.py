"""The chat template that a request brings along, where the server takes one."""

import asyncio
from functools import lru_cache

from gateway.body import invalid
from gateway.chat_template import ChatTemplate
from gateway.errors import GatewayError, ModelFolderError
from gateway.http_settings import HttpSettings
from gateway.served_model import ServedModel

MAX_KEPT = 8
"""Compiled templates: one takes tens of milliseconds to compile, and a client sends the same one each time."""


async def request_template(source: str, model: ServedModel, settings: HttpSettings) -> ChatTemplate:
    """Return it, compiled in the sandbox of all templates for the model's special tokens.

    Raises ``GatewayError`` (400): this server takes none, or it can't be read.
    """
    if not settings.trust_request_chat_template:
        raise GatewayError(
            400,
            "chat_template isn't taken from requests by this server; leave it out, or have the gateway started with"
            " --trust-request-chat-template",
            code="unsupported_parameter",
            param="chat_template",
        )
    return await asyncio.to_thread(_compiled, source, tuple(model.special_tokens.items()))


@lru_cache(maxsize=MAX_KEPT)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    try:
        return ChatTemplate(source, dict(special_tokens))
    except ModelFolderError as error:
        raise invalid("chat_template", str(error)) from error
    except Exception as error:  # too deep for the parser or the compiler, in any of their words
        raise invalid("chat_template", f"can't be compiled ({type(error).__name__})") from error
