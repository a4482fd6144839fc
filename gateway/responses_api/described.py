"""What /openapi.json says of a response's input, which ``items`` checks."""

from typing import Any

from gateway.chat_messages import MAX_MESSAGES
from gateway.responses_api.items import MAX_CALL_ID_CHARS, ROLES

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_CALL_ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_CHARS}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


_PARTS = [
    _object({"type": {"enum": ["input_text", "output_text", "text"]}, "text": _TEXT}),
    _object({"type": {"const": "refusal"}, "refusal": _TEXT}),
]
_CONTENT: Schema = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": _PARTS}}]}
_ITEMS = [
    _object({"role": {"enum": list(ROLES)}, "content": _CONTENT}, type={"const": "message"}),
    _object({"type": {"const": "function_call"}, "call_id": _CALL_ID, "name": _TEXT, "arguments": _TEXT}),
    _object({"type": {"const": "function_call_output"}, "call_id": _CALL_ID, "output": _CONTENT}),
    _object({"type": {"const": "reasoning"}}),
]
INPUT: Schema = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": _ITEMS}, "maxItems": MAX_MESSAGES}]}
