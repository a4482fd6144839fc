"""POST /v1/embeddings: a vector for each text."""

import asyncio
import base64
import struct
import time
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.access_log import RequestRecord, record_of
from gateway.answer import encode
from gateway.body import invalid, parse, read_fields
from gateway.completions import split_prompts
from gateway.deadline import deadline_ms, is_hurried, left_ms
from gateway.disconnect import until_gone
from gateway.errors import GatewayError
from gateway.generation import Generation, Stream
from gateway.known_fields import refuse_unknown
from gateway.requests import Prompt, check_model, check_room, label_of
from gateway.sampling_fields import TruncationFields
from gateway.served_model import ServedModel
from gateway.services import Services
from gateway.truncation import cut, is_cut
from gateway.updates import updates_of
from protocol.sampling import Sampling

MAX_INPUTS = 2048
MAX_AT_ONCE = 32
"""Of one request's inputs that workers have at the same time: others' requests come between them."""


class EmbeddingBody(TruncationFields):
    """The body. ``input`` has the four forms of a completion's prompt."""

    input: Prompt
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    pooling: Literal["last", "mean"] = "last"
    add_special_tokens: bool = True
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None


async def embed(request: Request, services: Services) -> Response:
    """Answer with the vectors, of length 1. Raises ``GatewayError`` and ``ClientGone``."""
    record = record_of(request.scope)
    within_ms = deadline_ms(request.scope["headers"], services.settings.request_timeout_s)
    record.hurried = is_hurried(request.scope["headers"])
    fields = await read_fields(request, services.settings)
    record.label = record.label or label_of(fields)
    refuse_unknown(fields, EmbeddingBody, services.settings)
    body, model = parse(EmbeddingBody, fields), services.model
    check_model(body.model, model)
    if body.dimensions is not None:
        raise GatewayError(
            400,
            "dimensions: this model's vectors can't be cut short; leave it out",
            code="unsupported_parameter",
            param="dimensions",
        )
    given = split_prompts(body.input, "input")
    if len(given) > MAX_INPUTS:
        raise invalid("input", f"at most {MAX_INPUTS}")
    inputs = [await _ids_of(each, body, model) for each in given]
    record.num_prompt_tokens = sum(map(len, inputs))
    await services.reserve_tokens(record, record.num_prompt_tokens)
    run = _Embedding(body, record, services, within_ms)
    try:
        vectors = await until_gone(request.receive, run.all(inputs))
        record.first_token = time.monotonic()
    finally:
        run.cancel()
    answer = await asyncio.to_thread(_answer, body, model.name, vectors, record.num_prompt_tokens)
    return Response(answer, media_type="application/json")


async def _ids_of(text: str | list[object], body: EmbeddingBody, model: ServedModel) -> tuple[int, ...]:
    if isinstance(text, str):
        if not is_cut(body):
            check_room(model.tokenizer.fewest_tokens(text), model, "input", at_least=True)
        ids = await model.tokenizer.encode_aside(text, add_special_tokens=body.add_special_tokens)
    else:
        ids = tuple(each for each in text if type(each) is int and 0 <= each < model.vocab_size)
        if len(ids) != len(text):
            raise invalid("input", f"token ids are integers from 0 to {model.vocab_size - 1}")
    ids = cut(ids, body, model, 1)
    check_room(len(ids), model, "input")
    return ids


class _Embedding:
    """One request's vectors on their way."""

    def __init__(self, body: EmbeddingBody, record: RequestRecord, services: Services, within_ms: int) -> None:
        self._body = body
        self._record = record
        self._services = services
        self._within_ms = within_ms
        self._streams: list[Stream] = []

    async def all(self, inputs: list[tuple[int, ...]]) -> list[bytes]:
        """The vectors in order. Raises what the first that failed raised."""
        turns = asyncio.Semaphore(MAX_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(ids, turns)) for ids in inputs]
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    def cancel(self) -> None:
        """End what hasn't ended, and note where it all was."""
        for stream in self._streams:
            if not stream.over:
                stream.cancel("client disconnected")
        record = self._record
        record.num_cached_tokens = sum(stream.num_cached_tokens for stream in self._streams)
        record.journeys = [stream.journey() for stream in self._streams]
        record.num_attempts = max((stream.num_attempts for stream in self._streams), default=0)
        if self._streams:
            record.request_id, record.path = self._streams[0].request_id, self._streams[0].path

    async def _one(self, ids: tuple[int, ...], turns: asyncio.Semaphore) -> bytes:
        body = self._body
        async with turns:
            stream = await self._services.dispatcher.submit(
                Generation(
                    prompt_ids=ids,
                    num_choices=1,
                    sampling=Sampling(max_tokens=1, pooling=body.pooling),
                    cache_salt=body.cache_salt or "",
                    label=self._record.label,
                    deadline_ms=left_ms(self._within_ms, self._record.started),
                )
            )
            self._streams.append(stream)
            async for update in updates_of(stream):
                return update.vector
            raise RuntimeError("a prompt's vector didn't come")


def _answer(body: EmbeddingBody, model: str, vectors: list[bytes], num_tokens: int) -> str:
    def written(vector: bytes) -> str | list[float]:
        return (
            base64.b64encode(vector).decode()
            if body.encoding_format == "base64"
            else list(struct.unpack(f"<{len(vector) // 4}f", vector))
        )

    data = [{"object": "embedding", "index": i, "embedding": written(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return encode({"object": "list", "data": data, "model": model, "usage": usage})
