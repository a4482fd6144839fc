"""POST /tokenize and POST /detokenize: texts to token ids as prompts are read, and back."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from gateway.body import Body, invalid, parse, read_fields
from gateway.chat_prompt import chat_prompt
from gateway.http_settings import HttpSettings
from gateway.known_fields import refuse_unknown
from gateway.requests import TemplateFields, check_model
from gateway.served_model import ServedModel
from gateway.services import Services
from gateway.tools import ToolFields, tool_use
from gateway.unsupported import refuse_chat_fields, refuse_unsupported

MANY_TOKENS = 1024
"""More are written or read in a thread: about 2 ms of the event loop's time."""


class TokenizeText(Body):
    """POST /tokenize of a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChat(TemplateFields, ToolFields):
    """POST /tokenize of a chat."""

    model: str | None = None
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """POST /detokenize. ``tokens`` are checked one by one, by ``_checked``."""

    model: str | None = None
    tokens: Annotated[list[object], WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]


async def tokenize(request: Request, services: Services) -> Response:
    """Answer with the token ids of a text or chat of any length, special ones as the route for prompts adds them.

    Raises ``GatewayError`` as the routes for prompts do.
    """
    fields = await read_fields(request, services.settings)
    refuse_unsupported(fields)
    body, model = _body_of(fields, services.settings), services.model
    check_model(body.model, model)
    if isinstance(body, TokenizeText):
        ids = await model.tokenizer.encode_aside(body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        shown = tool_use(body, fields.get("tools")).shown
        ids = (await chat_prompt(body, model, services.settings, any_length=True, tools=shown)).token_ids
    return await _json(len(ids), lambda: _told(ids, body, model))


async def detokenize(request: Request, services: Services) -> Response:
    """Answer with the text of token ids. Raises ``GatewayError`` (400) if one is out of the vocabulary."""
    fields = await read_fields(request, services.settings)
    refuse_unknown(fields, DetokenizeBody, services.settings)
    body = parse(DetokenizeBody, fields)
    model = services.model
    check_model(body.model, model)
    return await _json(len(body.tokens), lambda: {"prompt": model.tokenizer.decode(_checked(body.tokens, model))})


def _body_of(fields: Mapping[str, object], settings: HttpSettings) -> TokenizeText | TokenizeChat:
    if "messages" in fields and "prompt" in fields:
        raise invalid("prompt", "send it or messages, not both")
    if "messages" in fields:
        refuse_unknown(fields, TokenizeChat, settings)
        return parse(TokenizeChat, fields)
    refuse_chat_fields(fields)
    refuse_unknown(fields, TokenizeText, settings)
    return parse(TokenizeText, fields)


def _told(ids: tuple[int, ...], body: TokenizeText | TokenizeChat, model: ServedModel) -> dict[str, object]:
    strs = [model.tokenizer.entry(each) for each in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": strs}


def _checked(tokens: list[object], model: ServedModel) -> list[int]:
    ids = [each for each in tokens if type(each) is int and 0 <= each < model.vocab_size]
    if len(ids) != len(tokens):
        raise invalid("tokens", f"token ids are integers from 0 to {model.vocab_size - 1}")
    return ids


async def _json(num_tokens: int, make: Callable[[], dict[str, object]]) -> Response:
    def body() -> bytes:
        return json.dumps(make(), ensure_ascii=False, separators=(",", ":")).encode()

    raw = body() if num_tokens <= MANY_TOKENS else await asyncio.to_thread(body)
    return Response(raw, media_type="application/json")
