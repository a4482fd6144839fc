"""What /openapi.json says of a messages body's messages, which ``history`` checks."""

from typing import Any

from gateway.chat_messages import MAX_MESSAGES

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _block(kind: str, *texts: str, **optional: Schema) -> Schema:
    return _object({"type": {"const": kind}, **dict.fromkeys(texts, _TEXT)}, **optional)


def _content(*blocks: Schema) -> Schema:
    return {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": list(blocks)}}]}


_TEXT_BLOCK = _block("text", "text")
SYSTEM = _content(_TEXT_BLOCK)

_RESULT = _block("tool_result", "tool_use_id", content={"anyOf": [SYSTEM, {"type": "null"}]}, is_error={})
_USER = _content(_TEXT_BLOCK, _RESULT)
_ASSISTANT = _content(
    _TEXT_BLOCK,
    _block("thinking", "thinking"),
    _block("redacted_thinking"),
    _block("tool_use", "id", "name", input={"type": "object"}),
)
MESSAGES: Schema = {
    "type": "array",
    "items": {
        "anyOf": [
            _object({"role": {"const": role}, "content": content})
            for role, content in (("user", _USER), ("assistant", _ASSISTANT))
        ]
    },
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
}
