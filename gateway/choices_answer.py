"""The JSON that chat and text completions have in common: choices, usage, and what stands around them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answer import Json, encode, event, run_headers
from gateway.errors import GatewayError
from gateway.generation import Journey
from gateway.responses import Shape
from gateway.run import Run
from gateway.transcript import Piece

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"


@dataclass(slots=True)
class ChoicesAnswer:
    """An ``Answer`` of choices, which ``shape`` words. A stream's error is an event with ``error``, then [DONE]."""

    run: Run
    shape: Shape
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    keepalive: bytes = field(default=KEEPALIVE, init=False)
    _before: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.shape.scores = self.run.scores.of_prompts

    async def whole(self, choices: Sequence[list[Piece]]) -> Json:
        """See ``Answer``."""
        told, once = await asyncio.to_thread(self._told, choices) if self.shape.scores else self._told(choices)
        answer = {**self._head(self.shape.whole_object), "choices": told, "usage": self.usage(), **once}
        if self.run.job.include_kvferry:
            answer["kvferry"] = self.kvferry()
        return answer

    def _told(self, choices: Sequence[list[Piece]]) -> tuple[list[Json], Json]:
        """All choices, and what is said once; with scores of long prompts it takes tenths of a second."""
        return [self.shape.whole(pieces) for pieces in choices], self.shape.once()

    async def opening(self) -> bytes:
        """See ``Answer``."""
        return await asyncio.to_thread(self._opening) if self.shape.scores else self._opening()

    def _opening(self) -> bytes:
        said = [self.shape.opening(choice) for choice in range(self.run.num_choices)]
        opened = [choice for choice in said if choice is not None]
        events = [self._event(choice) for choice in opened]
        if once := self.shape.once():
            events[0] = event({**self.chunk([opened[0]]), **once})
        return b"".join(events)

    def events(self, pieces: Sequence[Piece]) -> bytes:
        """See ``Answer``."""
        return b"".join([self._event(choice) for piece in pieces for choice in self.shape.piece(piece)])

    async def ending(self) -> bytes:
        """See ``Answer``."""
        job = self.run.job
        return event(self.chunk([])) + DONE if job.include_usage or job.include_kvferry else DONE

    async def failed(self, error: GatewayError) -> bytes:
        """See ``Answer``."""
        return event(error.body()) + DONE

    def chunk(self, choices: list[Json]) -> Json:
        """Return one event of a stream; the last one, after all choices, has none."""
        job = self.run.job
        chunk = {**self._head(self.shape.chunk_object), "choices": choices}
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
        """See ``Answer``."""
        return run_headers(self.run)

    def _event(self, choice: Json) -> bytes:
        if self.run.job.continuous_usage:
            return event(self.chunk([choice]))
        if not self._before:
            self._before = b"data: " + encode(self._head(self.shape.chunk_object))[:-1].encode() + b',"choices":['
        return self._before + encode(choice).encode() + b"]}\n\n"

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
