"""From the body of a response, and the conversation so far, to a chat's."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.answer import Json
from gateway.body import invalid, parse
from gateway.foreign_fields import unsupported
from gateway.requests import ChatBody
from gateway.responses_api.body import (
    INCLUDABLE,
    LOGPROBS,
    AllowedFunctions,
    FunctionTool,
    NamedFunction,
    ResponsesBody,
    TextFormat,
)
from gateway.responses_api.items import chat_messages
from gateway.sampling_fields import SamplingFields
from gateway.tools import ALLOWED
from gateway.truncation import AS_FITS

NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of a chat by the names that they have here."""

_NOT_PASSED_ON = frozenset({"n", "stream", "stream_options", "request_id"})


def chat_body(body: ResponsesBody, fields: Mapping[str, object], items: Sequence[Json]) -> tuple[ChatBody, object]:
    """(the chat, its tools as templates read them). ``fields`` are the body's as they came.

    Raises ``GatewayError`` (400).
    """
    own = SamplingFields.model_fields.keys() - _NOT_PASSED_ON
    chat: dict[str, Any] = {name: value for name, value in fields.items() if name in own}
    messages = chat_messages(items, body.instructions)
    if not messages:
        raise invalid("input", "at least one message or result")
    chat.update(
        messages=messages,
        tools=[_chat_tool(tool) for tool in tools_of(body)],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
        **_logprobs(body),
        **_format(body.text.format),
    )
    if body.max_output_tokens is not None:
        chat["max_completion_tokens"] = body.max_output_tokens
    if body.truncation == "auto":
        chat["truncate_prompt_tokens"] = AS_FITS
    return parse(ChatBody, chat), chat["tools"]


def tools_of(body: ResponsesBody) -> list[FunctionTool]:
    """The functions that are offered. Raises ``GatewayError`` (400) for tools of other kinds, by their names."""
    for number, tool in enumerate(body.tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise unsupported(f"tools.{number}", f"tools of type {kind[:64]!r}")
    return [parse(FunctionTool, tool, f"tools.{number}") for number, tool in enumerate(body.tools)]


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _choice(choice: object) -> object:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind not in ("function", ALLOWED):
        raise unsupported("tool_choice", f"choices of type {kind[:64]!r}")
    if not isinstance(choice, dict):
        return choice
    if kind == ALLOWED:
        some = parse(AllowedFunctions, choice, "tool_choice")
        return {"type": ALLOWED, ALLOWED: {"mode": some.mode, "tools": list(map(_chat_name, some.tools))}}
    return _chat_name(parse(NamedFunction, choice, "tool_choice"))


def _chat_name(named: NamedFunction) -> dict[str, Any]:
    return {"type": "function", "function": {"name": named.name}}


def _logprobs(body: ResponsesBody) -> dict[str, Any]:
    unknown = next((each for each in body.include if each not in INCLUDABLE), None)
    if unknown is not None:
        raise invalid("include", f"nothing is known as {unknown[:64]!r}")
    if LOGPROBS in body.include:
        return {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.top_logprobs:
        raise invalid("top_logprobs", f"only with {LOGPROBS} in include")
    return {}


def _format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    for name in ("name", "json_schema"):
        if getattr(wanted, name) is None:
            raise invalid(f"text.format.{'schema' if name == 'json_schema' else name}", "Field required")
    schema = {"name": wanted.name, "schema": wanted.json_schema}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
