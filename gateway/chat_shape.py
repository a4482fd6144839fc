"""The JSON of POST /v1/chat/completions: messages, and their deltas in a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answer import Json
from gateway.chat_reading import ChatReading, new_call_id
from gateway.logprobs import chat_logprobs
from gateway.prompt_scores import Scores
from gateway.prompt_told import PromptTold
from gateway.responses import joined
from gateway.tokenizer import TextTokenizer
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Reasoning, Segment
from gateway.tool_calls.segments import joined as joined_segments
from gateway.transcript import Piece


@dataclass(slots=True)
class ChatShape:
    """One answer's. ``readings`` are those of its choices, in order.

    ``prompt_ids`` are told, and choices' own ids with them, ``with_ids``; and what they were worth, by id as vLLM does,
    if it ``tells_scores``. A choice that called a tool finishes with ``call_reason``, which OpenAI has as "tool_calls",
    but as "stop" where the client has named the function.
    """

    tokenizer: TextTokenizer
    logprobs: bool
    readings: Sequence[ChatReading]
    as_ids: bool
    prompt_ids: Sequence[int]
    with_ids: bool = False
    tells_scores: bool = False
    call_reason: str = "tool_calls"
    num_told: int = 0
    scores: list[Scores] = field(default_factory=list, init=False)
    id_prefix: str = field(default="chatcmpl-", init=False)
    whole_object: str = field(default="chat.completion", init=False)
    chunk_object: str = field(default="chat.completion.chunk", init=False)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of all choices, so far."""
        return sum(reading.num_reasoning_tokens for reading in self.readings)

    def opening(self, choice: int) -> Json | None:
        """Return the role."""
        return self._delta(Piece(choice, "", [], 0), {"role": "assistant", "content": ""})

    def piece(self, piece: Piece) -> list[Json]:
        """Return deltas, the first with the piece's tokens; and a finish reason on an empty one."""
        deltas = [_delta_of(segment) for segment in self.readings[piece.choice].read(piece)]
        if not deltas and (piece.tokens or piece.token_ids) and not piece.finish_reason:
            deltas = [{"content": ""}]
        said = []
        for delta in deltas:
            said.append(self._delta(piece, delta))
            piece.tokens, piece.token_ids = [], ()
        if piece.finish_reason:
            ending = self._delta(piece, {})
            said.append({**ending, "finish_reason": self._reason(piece), "stop_reason": piece.stop_reason})
        return said

    def whole(self, pieces: list[Piece]) -> Json:
        """Return a message."""
        piece = joined(pieces)
        reading = self.readings[piece.choice]
        message = _message([segment for each in pieces for segment in reading.read(each)])
        choice = {
            "index": piece.choice,
            "message": message,
            "logprobs": self._logprobs(piece) if self.logprobs else None,
            "finish_reason": self._reason(piece),
            "stop_reason": piece.stop_reason,
        }
        return {**choice, "token_ids": piece.token_ids} if self.with_ids else choice

    def once(self) -> Json:
        """Return what is told of the prompt."""
        told: Json = {"prompt_token_ids": self.prompt_ids} if self.with_ids else {}
        if self.tells_scores:
            told["prompt_logprobs"] = PromptTold(
                self.tokenizer, self.prompt_ids, self.scores[0], False, num_told=self.num_told
            ).by_id
        return told

    def _reason(self, piece: Piece) -> str:
        called = self.readings[piece.choice].num_calls
        return self.call_reason if called and piece.finish_reason == "stop" else piece.finish_reason

    def _delta(self, piece: Piece, delta: Json) -> Json:
        logprobs = self._logprobs(piece) if piece.tokens else None
        choice = {"index": piece.choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return {**choice, "token_ids": piece.token_ids} if self.with_ids else choice

    def _logprobs(self, piece: Piece) -> Json:
        return chat_logprobs(self.tokenizer, piece.tokens, as_ids=self.as_ids)


def _delta_of(segment: Segment) -> Json:
    if isinstance(segment, Content):
        return {"content": segment.text}
    if isinstance(segment, Reasoning):
        return {"reasoning_content": segment.text, "reasoning": segment.text}
    if isinstance(segment, CallArguments):
        return {"tool_calls": [{"index": segment.index, "function": {"arguments": segment.text}}]}
    return {"tool_calls": [{"index": segment.index, **_call(segment)}]}


def _call(start: CallStart, arguments: str = "") -> Json:
    return {"id": new_call_id(), "type": "function", "function": {"name": start.name, "arguments": arguments}}


def _message(segments: list[Segment]) -> Json:
    """All that a choice says; ``content`` is null where it calls and says nothing else."""
    content, reasoning, calls = "", "", list[Json]()
    for segment in joined_segments(segments):
        if isinstance(segment, Content):
            content += segment.text
        elif isinstance(segment, Reasoning):
            reasoning += segment.text
        elif isinstance(segment, CallStart):
            calls.append(_call(segment))
        else:
            calls[-1]["function"]["arguments"] += segment.text
    message: Json = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
    if reasoning:
        message.update(reasoning_content=reasoning, reasoning=reasoning)
    if calls:
        message["tool_calls"] = calls
    return message
