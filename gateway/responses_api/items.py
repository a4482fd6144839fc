"""The items of a conversation: what clients send, in the one form that is kept, and as messages of a chat."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.answer import Json
from gateway.body import invalid
from gateway.chat_messages import MAX_MESSAGES, MAX_PARTS
from gateway.foreign_fields import unsupported

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts that are text, with the key that holds it."""

MAX_CALL_ID_CHARS = 128


def input_items(value: object) -> list[Json]:
    """``input`` as items, each with an id; a text is a user's message. Reasoning is left out.

    Raises ``GatewayError`` (400) that names the item at fault.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid("input", "a text or a list of items")
    if len(value) > MAX_MESSAGES:
        raise invalid("input", f"at most {MAX_MESSAGES} items")
    lists = [each.get(key) for each in value if isinstance(each, dict) for key in ("content", "output")]
    if sum(len(parts) for parts in lists if isinstance(parts, list)) > MAX_PARTS:
        raise invalid("input", f"at most {MAX_PARTS} parts over all items")
    items = [_item(each, f"input.{number}") for number, each in enumerate(value)]
    return [each for each in items if each is not None]


def chat_messages(items: Sequence[Json], instructions: str | None) -> list[Json]:
    """Items in the form of ``input_items``, or of an answer's output, as messages of a chat.

    A call belongs to the assistant's message before it.
    """
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": [_chat_part(part) for part in item["content"]]})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": []})
            messages[-1].setdefault("tool_calls", []).append(_chat_call(item))
        elif item["type"] == "function_call_output":
            content = [_chat_part(part) for part in item["output"]]
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
    return messages


def _item(item: object, where: str) -> Json | None:
    if not isinstance(item, dict):
        raise invalid(where, "an object")
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        return _message(item, where)
    if kind == "function_call":
        return _call(item, where)
    if kind == "function_call_output":
        call_id = _call_id(item, where)
        output = _parts(item.get("output"), f"{where}.output", "input_text")
        return {"type": kind, "id": _own_id(item, "fco_"), "call_id": call_id, "output": output, "status": "completed"}
    if kind == "reasoning":
        return None
    if not isinstance(kind, str):
        raise invalid(f"{where}.type", "a string")
    raise unsupported(where, f"items of type {kind[:64]!r}")


def _message(item: Mapping[str, object], where: str) -> Json:
    role = item.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}")
    parts = _parts(item.get("content"), f"{where}.content", "output_text" if role == "assistant" else "input_text")
    own_id = _own_id(item, "msg_")
    return {"type": "message", "id": own_id, "role": role, "content": parts, "status": "completed"}


def _call(item: Mapping[str, object], where: str) -> Json:
    arguments = _string(item, "arguments", where)
    if arguments:
        _parsed(arguments, f"{where}.arguments")
    return {
        "type": "function_call",
        "id": _own_id(item, "fc_"),
        "call_id": _call_id(item, where),
        "name": _string(item, "name", where),
        "arguments": arguments,
        "status": "completed",
    }


def _parts(content: object, where: str, kind: str) -> list[Json]:
    if isinstance(content, str):
        return [_part(kind, content)]
    if not isinstance(content, list):
        raise invalid(where, "a string or a list of parts")
    return [_checked_part(part, f"{where}.{number}") for number, part in enumerate(content)]


def _checked_part(part: object, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise invalid(where, "a part is an object with a type")
    if kind not in _TEXTS:
        raise unsupported(where, f"parts of type {kind[:64]!r}")
    return _part("input_text" if kind == "text" else kind, _string(part, _TEXTS[kind], where))


def _part(kind: str, text: str) -> Json:
    part: Json = {"type": kind, _TEXTS[kind]: text}
    return {**part, "annotations": [], "logprobs": []} if kind == "output_text" else part


def _chat_part(part: Json) -> Json:
    key = _TEXTS[part["type"]]
    return {"type": key, key: part[key]}


def _chat_call(item: Json) -> Json:
    """An earlier answer may have been cut off within a call: then what it was given is unknown."""
    try:
        arguments: Any = json.loads(item["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    function = {"name": item["name"], "arguments": arguments if isinstance(arguments, dict) else item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(where, "not valid JSON") from error


def _call_id(item: Mapping[str, object], where: str) -> str:
    call_id = _string(item, "call_id", where)
    if not 0 < len(call_id) <= MAX_CALL_ID_CHARS:
        raise invalid(f"{where}.call_id", f"1 to {MAX_CALL_ID_CHARS} characters")
    return call_id


def _own_id(item: Mapping[str, object], prefix: str) -> str:
    given = item.get("id")
    return given if isinstance(given, str) and given else f"{prefix}{secrets.token_hex(24)}"


def _string(item: Mapping[str, object], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "a string")
    return value
