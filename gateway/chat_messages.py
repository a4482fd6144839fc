"""The messages of a chat, checked and brought into the form that templates read."""

import json
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gateway.body import Body, invalid, parse
from gateway.errors import GatewayError

MAX_MESSAGES = 4096
MAX_PARTS = 8192
"""A body of many small pieces would hold the event loop for seconds; so many take some tenths."""


_PART = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "refusal"]}, "text": {"type": "string"}, "refusal": {"type": "string"}},
    "required": ["type"],
}
Content = Annotated[
    object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]})
]


class Function(Body):
    """A function that the assistant called; ``arguments`` is JSON text."""

    name: str
    arguments: str | dict[str, object] = ""


class ToolCall(Body):
    """A call in an assistant's earlier message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class Message(Body):
    """One message; ``content`` is checked apart, since it has several forms."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


def template_messages(value: object, *, knows_developer: bool) -> list[dict[str, object]]:
    """Messages for the template: content is one string, parts of text joined by line breaks.

    Without ``knows_developer`` a developer's message is a system message. Raises ``GatewayError``
    (400) that names the message at fault.
    """
    if not isinstance(value, list) or not value:
        raise invalid("messages", "a list of at least one message")
    _check_number(value)
    messages = []
    for number, each in enumerate(value):
        where = f"messages.{number}"
        given = {key: part for key, part in each.items() if part is not None} if isinstance(each, dict) else each
        message = parse(Message, given, where)
        messages.append(_plain(message, where, knows_developer=knows_developer))
    return messages


def _check_number(messages: list[object]) -> None:
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES}")
    lists = [each.get(key) for each in messages if isinstance(each, dict) for key in ("content", "tool_calls")]
    if sum(len(parts) for parts in lists if isinstance(parts, list)) > MAX_PARTS:
        raise invalid("messages", f"at most {MAX_PARTS} parts and tool calls over all messages")


def _plain(message: Message, where: str, *, knows_developer: bool) -> dict[str, object]:
    if message.content is None and message.role != "assistant":
        raise invalid(f"{where}.content", "Field required")
    role = "system" if message.role == "developer" and not knows_developer else message.role
    plain: dict[str, object] = {"role": role, "content": _text(message.content, f"{where}.content")}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, key) is not None:
            plain[key] = getattr(message, key)
    if message.tool_calls:
        plain["tool_calls"] = [
            _plain_call(call, f"{where}.tool_calls.{number}") for number, call in enumerate(message.tool_calls)
        ]
    return plain


def _text(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(where, "a string or a list of parts")
    return "\n".join(_part(part, f"{where}.{number}") for number, part in enumerate(content))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise invalid(where, "a part is an object with a type")
    if kind not in ("text", "refusal"):
        raise GatewayError(
            400,
            f"{where}: parts of type {kind[:64]!r} aren't supported by this server, only text",
            code="unsupported_parameter",
            param=where,
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise invalid(f"{where}.{kind}", "a string")
    return text


def _plain_call(call: ToolCall, where: str) -> dict[str, object]:
    """Templates want the arguments as an object, clients send them as JSON text."""
    arguments: object = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError) as error:
            raise invalid(f"{where}.function.arguments", "not valid JSON") from error
    function = {"name": call.function.name, "arguments": arguments}
    plain: dict[str, object] = {"type": call.type, "function": function}
    if call.id is not None:
        plain["id"] = call.id
    return plain
