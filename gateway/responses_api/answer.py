"""A response as OpenAI's clients read it, streamed and not."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.answer import Json, event, run_headers
from gateway.blocks import Began, Block, Blocks, Ended, Grew, Kind, Step
from gateway.choices_answer import KEEPALIVE
from gateway.errors import GatewayError
from gateway.logprobs import chat_logprobs
from gateway.responses_api.head import ResponseHead
from gateway.responses_api.output import item_id, item_of, part_of
from gateway.run import Run
from gateway.tokenizer import TextTokenizer
from gateway.transcript import Piece

Keep = Callable[[Json], Awaitable[None]]
"""Keeps a response that has ended, if it is to be kept. Raises nothing: whoever waits for it has the answer."""


@dataclass(slots=True)
class ResponseAnswer:
    """An ``Answer`` of one choice. Events are numbered from 0; the last one has the whole response."""

    run: Run
    head: ResponseHead
    blocks: Blocks
    tokenizer: TextTokenizer
    keep: Keep
    keepalive: bytes = field(default=KEEPALIVE, init=False)
    _num_events: int = field(default=0, init=False)
    _cut_off: bool = field(default=False, init=False)
    _logprobs: dict[int, list[Json]] = field(default_factory=dict, init=False)
    _waiting: list[Json] = field(default_factory=list, init=False)

    def headers(self) -> dict[str, str]:
        """See ``Answer``."""
        return run_headers(self.run)

    async def whole(self, choices: Sequence[list[Piece]]) -> Json:
        """See ``Answer``."""
        [pieces] = choices
        for piece in pieces:
            self._read(piece)
        return await self.ended()

    async def opening(self) -> bytes:
        """See ``Answer``."""
        response = self.head.response("in_progress")
        return b"".join(self._event(f"response.{name}", response=response) for name in ("created", "in_progress"))

    def events(self, pieces: Sequence[Piece]) -> bytes:
        """See ``Answer``."""
        steps = [each for piece in pieces for each in self._read(piece)]
        return b"".join([told for step, logprobs in steps for told in self._step(step, logprobs)])

    async def ending(self) -> bytes:
        """See ``Answer``."""
        return self.closing(await self.ended())

    async def failed(self, error: GatewayError) -> bytes:
        """See ``Answer``. A run may fail before anything was said."""
        opening = b"" if self._num_events else await self.opening()
        output = [self._item(block, "incomplete") for block in self.blocks.all]
        response = self.head.response("failed", output, self._usage(), error=error)
        await self.keep(response)
        return opening + self._event("response.failed", response=response)

    def closing(self, response: Json) -> bytes:
        """Return the event that ends a stream with this response."""
        return self._event(f"response.{response['status']}", response=response)

    async def ended(self) -> Json:
        """Return the response after the last piece, kept if it is to be."""
        output = [self._item(block, self._status(block)) for block in self.blocks.all]
        reason = "max_output_tokens" if self._cut_off else None
        status = "incomplete" if self._cut_off else "completed"
        response = self.head.response(status, output, self._usage(), incomplete=reason)
        await self.keep(response)
        return response

    def _read(self, piece: Piece) -> list[tuple[Step, list[Json]]]:
        """What a piece changes, each with the log probabilities of the text that it adds.

        Those of a text that is still held back wait for it; those of what turns out to be no text are dropped.
        """
        self._cut_off = bool(piece.finish_reason) and piece.finish_reason != "stop"
        self._waiting += self._scored(piece)
        told: list[tuple[Step, list[Json]]] = []
        for step in self.blocks.read(piece):
            logprobs: list[Json] = []
            if isinstance(step, Grew) and step.block.kind is Kind.TEXT:
                logprobs, self._waiting = self._waiting, []
                self._logprobs.setdefault(step.block.number, []).extend(logprobs)
            elif isinstance(step, Grew):
                self._waiting = []
            told.append((step, logprobs))
        return told

    def _scored(self, piece: Piece) -> list[Json]:
        if not piece.tokens:
            return []
        entries = chat_logprobs(self.tokenizer, piece.tokens)["content"]
        assert isinstance(entries, list)
        return [{**_with_bytes(each), "top_logprobs": list(map(_with_bytes, each["top_logprobs"]))} for each in entries]

    def _step(self, step: Step, logprobs: list[Json]) -> list[bytes]:
        block = step.block
        place = {"item_id": item_id(block, self.head.id), "output_index": block.number}
        if isinstance(step, Began):
            return self._began(block, place)
        if isinstance(step, Ended):
            return self._block_ended(block, place)
        if block.kind is Kind.CALL:
            return [self._event("response.function_call_arguments.delta", **place, delta=step.text)]
        if block.kind is Kind.REASONING:
            return [self._event("response.reasoning_text.delta", **place, content_index=0, delta=step.text)]
        return [self._event("response.output_text.delta", **place, content_index=0, delta=step.text, logprobs=logprobs)]

    def _began(self, block: Block, place: Json) -> list[bytes]:
        item = item_of(block, self.head.id, "in_progress", None)
        told = [self._event("response.output_item.added", output_index=block.number, item=item)]
        if block.kind is not Kind.CALL:
            part = part_of(block.kind, "", [])
            told.append(self._event("response.content_part.added", **place, content_index=0, part=part))
        return told

    def _block_ended(self, block: Block, place: Json) -> list[bytes]:
        if block.kind is Kind.CALL:
            given = {"name": block.name, "arguments": block.text}
            told = [self._event("response.function_call_arguments.done", **place, **given)]
        else:
            logprobs = self._logprobs.get(block.number, [])
            inner = {**place, "content_index": 0}
            if block.kind is Kind.REASONING:
                told = [self._event("response.reasoning_text.done", **inner, text=block.text)]
            else:
                told = [self._event("response.output_text.done", **inner, text=block.text, logprobs=logprobs)]
            part = part_of(block.kind, block.text, logprobs)
            told.append(self._event("response.content_part.done", **inner, part=part))
        item = self._item(block, self._status(block))
        return [*told, self._event("response.output_item.done", output_index=block.number, item=item)]

    def _item(self, block: Block, status: str) -> Json:
        return item_of(block, self.head.id, status, self._logprobs.get(block.number, []))

    def _status(self, block: Block) -> str:
        return "incomplete" if self._cut_off and block is self.blocks.all[-1] else "completed"

    def _usage(self) -> Json:
        """Count tokens so far."""
        num_prompt, num_output = self.run.job.num_prompt_tokens, self.run.num_tokens
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": self.run.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self.blocks.num_reasoning_tokens},
            "total_tokens": num_prompt + num_output,
        }

    def _event(self, kind: str, **fields: object) -> bytes:
        body = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event(body, kind)


def _with_bytes(entry: Json) -> Json:
    """A token without bytes of its own has none here, where null isn't allowed."""
    return {**entry, "bytes": entry["bytes"] or []}
