"""A message as Anthropic's clients read it, streamed and not."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.answer import Json, event, run_headers
from gateway.anthropic_errors import anthropic_body
from gateway.blocks import Began, Block, Blocks, Grew, Kind, Step
from gateway.errors import GatewayError
from gateway.run import Run
from gateway.transcript import Piece

PING = event({"type": "ping"}, "ping")


@dataclass(slots=True)
class MessageAnswer:
    """An ``Answer`` of one choice."""

    run: Run
    blocks: Blocks
    model: str
    keepalive: bytes = field(default=PING, init=False)

    def headers(self) -> dict[str, str]:
        """See ``Answer``."""
        return {**run_headers(self.run), "request-id": self.run.request_id}

    async def whole(self, choices: Sequence[list[Piece]]) -> Json:
        """See ``Answer``."""
        [pieces] = choices
        for piece in pieces:
            self.blocks.read(piece)
        content = [_whole_block(block) for block in self.blocks.all]
        return self._message(content, self._end(pieces[-1]))

    async def opening(self) -> bytes:
        """See ``Answer``."""
        nothing = {"stop_reason": None, "stop_sequence": None}
        return _named({"type": "message_start", "message": self._message([], nothing, num_output=0)})

    def events(self, pieces: Sequence[Piece]) -> bytes:
        """See ``Answer``."""
        return b"".join([self._events(piece) for piece in pieces])

    async def ending(self) -> bytes:
        """See ``Answer``."""
        return _named({"type": "message_stop"})

    async def failed(self, error: GatewayError) -> bytes:
        """See ``Answer``."""
        return _named(anthropic_body(error, self.run.request_id))

    def _events(self, piece: Piece) -> bytes:
        said = [_named(_step(step)) for step in self.blocks.read(piece)]
        if piece.finish_reason:
            said.append(_named({"type": "message_delta", "delta": self._end(piece), "usage": self._usage()}))
        return b"".join(said)

    def _message(self, content: list[Json], end: Json, num_output: int | None = None) -> Json:
        return {
            "id": f"msg_{self.run.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **end,
            "usage": self._usage(num_output),
        }

    def _end(self, last: Piece) -> Json:
        sequence = last.stop_reason if isinstance(last.stop_reason, str) else None
        if last.finish_reason != "stop":
            reason = "max_tokens"
        elif sequence is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.blocks.num_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self, num_output: int | None = None) -> Json:
        """Tokens so far. ``input_tokens`` are those that no cache had, as Anthropic counts."""
        num_cached = self.run.num_cached_tokens
        return {
            "input_tokens": self.run.job.num_prompt_tokens - num_cached,
            "cache_read_input_tokens": num_cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.run.num_tokens if num_output is None else num_output,
        }


def _named(body: Json) -> bytes:
    return event(body, body["type"])


def _step(step: Step) -> Json:
    index = step.block.number
    if isinstance(step, Began):
        return {"type": "content_block_start", "index": index, "content_block": _block(step.block, "", {})}
    if isinstance(step, Grew):
        return {"type": "content_block_delta", "index": index, "delta": _delta(step)}
    return {"type": "content_block_stop", "index": index}


def _delta(step: Grew) -> Json:
    if step.block.kind is Kind.CALL:
        return {"type": "input_json_delta", "partial_json": step.text}
    if step.block.kind is Kind.REASONING:
        return {"type": "thinking_delta", "thinking": step.text}
    return {"type": "text_delta", "text": step.text}


def _whole_block(block: Block) -> Json:
    return _block(block, block.text, _arguments(block.text) if block.kind is Kind.CALL else {})


def _block(block: Block, text: str, arguments: dict[str, Any]) -> Json:
    if block.kind is Kind.CALL:
        return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": block.name, "input": arguments}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _arguments(text: str) -> dict[str, Any]:
    """What a call was given; nothing where it was cut off, as ``stop_reason`` says then."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
