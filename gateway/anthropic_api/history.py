"""From Anthropic's system text and messages to those of a chat."""

from collections.abc import Mapping
from typing import Any

from gateway.body import invalid
from gateway.chat_messages import MAX_MESSAGES, MAX_PARTS
from gateway.foreign_fields import unsupported

Messages = list[dict[str, Any]]

_IGNORED = ("redacted_thinking",)
"""Nobody but who wrote it can read it."""


def chat_messages(messages: list[object], system: object) -> Messages:
    """A chat's messages: content as parts of text, results of tools as messages of their own.

    Neighbors of one role are one message. Raises ``GatewayError`` (400) that names the place at fault.
    """
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES}")
    history = _History()
    if system is not None:
        parts = [_text_of(block, where) for block, where in history.blocks(system, "system")]
        history.add("system", parts)
    for number, message in enumerate(messages):
        history.take(message, f"messages.{number}")
    return history.messages


class _History:
    """Grows by one message after the other, bounded in blocks over all of them."""

    def __init__(self) -> None:
        self.messages: Messages = []
        self._num_blocks = 0

    def take(self, message: object, where: str) -> None:
        """Add a message of either role."""
        if not isinstance(message, dict):
            raise invalid(where, "an object with role and content")
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            raise invalid(f"{where}.role", "user or assistant")
        if content is None:
            raise invalid(f"{where}.content", "Field required")
        for block, place in self.blocks(content, f"{where}.content"):
            if role == "user":
                self._user(block, place)
            else:
                self._assistant(block, place)
        if content in ("", []):
            self.add(role, [])

    def blocks(self, content: object, where: str) -> list[tuple[Mapping[str, object], str]]:
        """Return blocks and their places; a string is a block of text."""
        if isinstance(content, str):
            return [({"type": "text", "text": content}, where)] if content else []
        if not isinstance(content, list):
            raise invalid(where, "a string or a list of blocks")
        self._num_blocks += len(content)
        if self._num_blocks > MAX_PARTS:
            raise invalid("messages", f"at most {MAX_PARTS} blocks over all messages")
        placed = [(block, f"{where}.{number}") for number, block in enumerate(content)]
        for block, place in placed:
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                raise invalid(place, "a block is an object with a type")
        return placed

    def add(self, role: str, texts: list[str]) -> dict[str, Any]:
        """Add text to the last message if it has this role and no calls, else a new one with it."""
        parts = [{"type": "text", "text": text} for text in texts]
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += parts
        else:
            self.messages.append({"role": role, "content": parts})
        return self.messages[-1]

    def _user(self, block: Mapping[str, object], where: str) -> None:
        if block["type"] != "tool_result":
            self.add("user", [_text_of(block, where)])
            return
        content = block.get("content")
        parts_of = self.blocks("" if content is None else content, f"{where}.content")
        texts = [_text_of(part, place) for part, place in parts_of]
        if block.get("is_error") is True:
            texts = ["Error:", *texts]
        parts = [{"type": "text", "text": text} for text in texts]
        call_id = _string(block, "tool_use_id", where)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": parts})

    def _assistant(self, block: Mapping[str, object], where: str) -> None:
        if block["type"] in _IGNORED:
            self.add("assistant", [])
        elif block["type"] == "thinking":
            message = self.add("assistant", [])
            message["reasoning_content"] = message.get("reasoning_content", "") + _string(block, "thinking", where)
        elif block["type"] == "tool_use":
            given = block.get("input", {})
            if not isinstance(given, dict):
                raise invalid(f"{where}.input", "an object")
            function = {"name": _string(block, "name", where), "arguments": given}
            call = {"id": _string(block, "id", where), "type": "function", "function": function}
            self.add("assistant", []).setdefault("tool_calls", []).append(call)
        else:
            self.add("assistant", [_text_of(block, where)])


def _text_of(block: Mapping[str, object], where: str) -> str:
    if block["type"] != "text":
        raise unsupported(where, f"blocks of type {str(block['type'])[:64]!r}")
    return _string(block, "text", where)


def _string(block: Mapping[str, object], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "a string")
    return value
