"""Structured output of a request: its grammar, known to be one that workers can follow."""

import asyncio

from gateway.errors import GatewayError
from gateway.grammars.asked import StructuredFields, asks_for_form, grammar_of, refused
from gateway.grammars.calls import of_calls
from gateway.grammars.checking import CheckBusy
from gateway.grammars.errors import GrammarRefused
from gateway.grammars.nesting import behind_reasoning, either
from gateway.requests import ChatBody
from gateway.services import Services
from gateway.tools import ToolUse


async def checked_grammar(fields: StructuredFields, services: Services) -> str:
    """The grammar that the output follows, "" for any.

    Raises ``GatewayError`` (400) that names what isn't supported.
    """
    if not asks_for_form(fields):
        return ""
    param, grammar = await asyncio.to_thread(grammar_of, fields)
    return await _checked(param, grammar, services)


async def chat_grammar(body: ChatBody, use: ToolUse, services: Services, *, starts_inside: bool) -> str:
    """The grammar of a chat's answer: a call where one is forced; else what the client asks of its form, or calls.

    A model that reasons does so before. Raises ``GatewayError`` (400) that names what isn't supported.
    """
    if not use.must_call and not asks_for_form(body):
        return ""
    param, grammar = await asyncio.to_thread(_chat_grammar, body, use, services, starts_inside=starts_inside)
    return await _checked(param, grammar, services)


def _chat_grammar(body: ChatBody, use: ToolUse, services: Services, *, starts_inside: bool) -> tuple[str, str]:
    """(field, grammar); both "" for any text. It may take some tenths of a second."""
    param, grammar = grammar_of(body)
    if use.must_call:
        param, grammar = "tools", _calls(use, services)
    elif grammar and use.shown:
        grammar = either(grammar, _calls(use, services))
    style = services.model.style
    if grammar and style.reasoning is not None:
        special = style.special_ids(services.model.tokenizer)
        grammar = behind_reasoning(grammar, style.reasoning, special, starts_inside=starts_inside)
    return param, grammar


def _calls(use: ToolUse, services: Services) -> str:
    style, tokenizer = services.model.style, services.model.tokenizer
    named = [(function.name, function.parameters) for function in use.functions]
    try:
        return of_calls(style.tools, named, style.special_ids(tokenizer), parallel=use.parallel)
    except GrammarRefused as error:
        raise refused("tools", error) from error


async def _checked(param: str, grammar: str, services: Services) -> str:
    if grammar:
        try:
            await services.grammars.check(grammar)
        except GrammarRefused as error:
            raise refused(param, error) from error
        except CheckBusy as error:
            raise too_busy() from error
    return grammar


def too_busy() -> GatewayError:
    """Too many grammars at once, or the process that checks them was ended: their requests may come again."""
    text = "The schema couldn't be checked now; try again"
    return GatewayError(429, text, type="rate_limit_error", code="queue_full")
