"""What a response says whatever its state: its id, and what was asked for."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answer import Json
from gateway.errors import GatewayError
from gateway.responses_api.body import ResponsesBody
from gateway.responses_api.chat_fields import tools_of

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's codes of what fails once an answer has begun, by HTTP status; all others are the server's."""


def new_id() -> str:
    """Return an id that nobody can guess: where no key is asked for, it is all that a response is guarded by."""
    return f"resp_{secrets.token_hex(24)}"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """One response's. ``asked`` are the fields that repeat its request."""

    asked: Json
    id: str = field(default_factory=new_id)
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(
        self,
        status: str,
        output: Sequence[Json] = (),
        usage: Json | None = None,
        *,
        error: GatewayError | None = None,
        incomplete: str | None = None,
    ) -> Json:
        """Return the response in a state; ``incomplete`` is why it is."""
        told: Json = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None if error is None else error_json(error),
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "output": list(output),
            **self.asked,
        }
        return told if usage is None else {**told, "usage": usage}


def error_json(error: GatewayError) -> Json:
    """Return OpenAI's words for what ended a response."""
    return {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}


def asked_of(body: ResponsesBody, model: str) -> Json:
    """What a response repeats of its body, with the defaults of what was left out."""
    asked: Json = {
        "background": body.background,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": body.reasoning.model_dump(),
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": _text(body),
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [tool.model_dump() for tool in tools_of(body)],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": body.truncation,
    }
    return asked if body.user is None else {**asked, "user": body.user}


def _text(body: ResponsesBody) -> Json:
    wanted = body.text.format.model_dump(by_alias=True, exclude_none=True)
    return {"format": wanted, "verbosity": body.text.verbosity or "medium"}
