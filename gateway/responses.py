"""The JSON that clients get: whole answers and chunks, for both endpoints."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.generation import Journey
from gateway.logprobs import completion_logprobs
from gateway.run import Run
from gateway.tokenizer import TextTokenizer
from gateway.transcript import Piece

Json = dict[str, Any]


class Shape(Protocol):
    """How one endpoint words a choice."""

    @property
    def id_prefix(self) -> str:
        """Start of an answer's id."""

    @property
    def whole_object(self) -> str:
        """Kind of an unstreamed answer."""

    @property
    def chunk_object(self) -> str:
        """Kind of a stream's events."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far that the model said to itself, of all choices."""

    def opening(self, choice: int) -> Json | None:
        """Return what a stream says of a choice before its first piece."""

    def piece(self, piece: Piece) -> list[Json]:
        """Return what a stream says of a piece; after a choice's last one its finish reason."""

    def whole(self, pieces: list[Piece]) -> Json:
        """Return a choice in an unstreamed answer, from all its pieces."""

    def once(self) -> Json:
        """Return what an answer, or a stream's first event, says beside its choices."""


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """POST /v1/completions: the same form streamed and not.

    ``prompt_ids``, one prompt for each choice, are told, and choices' own ids with them, unless they are None.
    """

    tokenizer: TextTokenizer
    logprobs: bool
    as_ids: bool = False
    prompt_ids: Sequence[Sequence[int]] | None = None
    id_prefix: str = "cmpl-"
    whole_object: str = "text_completion"
    chunk_object: str = "text_completion"

    def opening(self, choice: int) -> Json | None:
        """Return nothing."""
        return None

    @property
    def num_reasoning_tokens(self) -> int:
        """None: all text is the answer."""
        return 0

    def piece(self, piece: Piece) -> list[Json]:
        """Return text; a finish reason comes without."""
        said = []
        if piece.text or ((piece.tokens or piece.token_ids) and not piece.finish_reason):
            said.append(self._choice(piece, piece.text, bool(piece.tokens), None))
            piece.tokens, piece.token_ids = [], ()
        if piece.finish_reason:
            ending = self._choice(piece, "", bool(piece.tokens), piece.finish_reason)
            said.append({**ending, "stop_reason": piece.stop_reason})
        return said

    def whole(self, pieces: list[Piece]) -> Json:
        """Return all text."""
        piece = joined(pieces)
        choice = self._choice(piece, piece.text, self.logprobs, piece.finish_reason)
        return {**choice, "stop_reason": piece.stop_reason}

    def once(self) -> Json:
        """Return nothing: each choice has its own prompt."""
        return {}

    def _choice(self, piece: Piece, text: str, logprobs: bool, finish_reason: str | None) -> Json:
        told = completion_logprobs(self.tokenizer, piece.tokens, as_ids=self.as_ids) if logprobs else None
        choice = {"index": piece.choice, "text": text, "logprobs": told, "finish_reason": finish_reason}
        if self.prompt_ids is not None:
            choice["token_ids"] = piece.token_ids
            if piece.num_tokens == len(piece.token_ids):  # its first
                choice["prompt_token_ids"] = self.prompt_ids[piece.choice]
        return choice


@dataclass(frozen=True, slots=True)
class Answer:
    """What all bodies of one answer have in common."""

    run: Run
    shape: Shape
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: list[Json]) -> Json:
        """Return an unstreamed answer."""
        answer = {**self._head(self.shape.whole_object), "choices": choices, "usage": self.usage()}
        answer.update(self.shape.once())
        if self.run.job.include_kvferry:
            answer["kvferry"] = self.kvferry()
        return answer

    def chunk_head(self) -> Json:
        """Return what all events of a stream begin with."""
        return self._head(self.shape.chunk_object)

    def chunk(self, choices: list[Json]) -> Json:
        """Return one event of a stream; the last one, after all choices, has none."""
        job = self.run.job
        chunk = {**self.chunk_head(), "choices": choices}
        if job.continuous_usage or (job.include_usage and not choices):
            chunk["usage"] = self.usage()
        if job.include_kvferry and not choices:
            chunk["kvferry"] = self.kvferry()
        return chunk

    def kvferry(self) -> Json:
        """Return where the request has been; one with several prompts has ``requests``, one of these each."""
        journeys = [_journey_json(journey) for journey in self.run.journeys()]
        return journeys[0] if len(journeys) == 1 else {"requests": journeys}

    def usage(self) -> Json:
        """Count tokens so far; ``cached_tokens`` are prompt tokens whose compute was skipped."""
        num_prompt, num_output = self.run.job.num_prompt_tokens, self.run.num_tokens
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": self.run.num_cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.shape.num_reasoning_tokens},
        }

    def headers(self) -> dict[str, str]:
        """Return what is known as soon as the first token is."""
        return {"x-kvferry-request-id": self.run.request_id, "x-kvferry-path": self.run.path}

    def _head(self, name: str) -> Json:
        return {
            "id": f"{self.shape.id_prefix}{self.run.request_id}",
            "object": name,
            "created": self.created,
            "model": self.model,
        }


def _journey_json(journey: Journey) -> Json:
    attempts = [
        {"path": each.path, "prefill": each.prefill, "decode": each.decode, "reason": each.reason}
        for each in journey.tries
    ]
    return {"request_id": journey.request_id, "attempts": attempts, "phases_ms": journey.phases_ms}


def joined(pieces: list[Piece]) -> Piece:
    """Return all pieces of one choice as one."""
    last = pieces[-1]
    return Piece(
        last.choice,
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.tokens],
        last.num_tokens,
        last.finish_reason,
        last.stop_reason,
        tuple(token_id for piece in pieces for token_id in piece.token_ids),
    )
