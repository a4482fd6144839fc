"""What all routes that generate do with a request: read, prepare, run, answer."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access_log import record_of
from gateway.answer import Answer, Json, Prepare, Prepared, whole
from gateway.body import read_fields
from gateway.deadline import deadline_ms, is_hurried
from gateway.disconnect import until_gone
from gateway.requests import label_of
from gateway.run import Run
from gateway.services import Services
from gateway.sse import EventStream
from gateway.unsupported import refuse_unsupported


async def generate(request: Request, services: Services, prepare: Prepare) -> Response:
    """Answer a request for tokens.

    Raises ``GatewayError`` for whatever goes wrong before the first token, and ``ClientGone``. A stream whose first
    token takes longer than ``first_byte_hold_s`` begins without it: what goes wrong later is an event.
    """
    record = record_of(request.scope)
    within_ms = deadline_ms(request.scope["headers"], services.settings.request_timeout_s)
    record.hurried = is_hurried(request.scope["headers"])
    fields = await read_fields(request, services.settings)
    refuse_unsupported(fields)
    record.label = record.label or label_of(fields)
    prepared = await prepare(fields, services, record.label)
    record.num_prompt_tokens = prepared.job.num_prompt_tokens
    await services.reserve(record, prepared.job)
    if prepared.aside is not None:
        return await prepared.aside(record, within_ms)
    run = Run(prepared.job, services.folder_model.tokenizer, record, services.metrics, within_ms)
    answer = _stream if prepared.stream else _body
    return await answer(request, services, prepared, run)


async def _body(request: Request, services: Services, prepared: Prepared, run: Run) -> Response:
    """Answer with one body, when all is there."""

    async def work() -> tuple[Answer, Json]:
        await run.start(services.dispatcher)
        answer = prepared.answer(run)
        return answer, await whole(answer)

    try:
        answer, body = await until_gone(request.receive, work())
    finally:
        run.close("client disconnected")
    if not run.scores.of_prompts:
        return JSONResponse(body, headers=answer.headers())
    return await asyncio.to_thread(JSONResponse, body, headers=answer.headers())


async def _stream(request: Request, services: Services, prepared: Prepared, run: Run) -> Response:
    """Answer with a stream, when its first token is there or was waited for long enough."""
    starting = asyncio.ensure_future(run.start(services.dispatcher))
    try:
        await until_gone(request.receive, _held(starting, services.settings.first_byte_hold_s))
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    return EventStream(prepared.answer(run), services, starting)


async def _held(starting: asyncio.Future[None], hold_s: float) -> None:
    """Wait for the first token, but no longer than ``hold_s`` seconds. Raises what went wrong before it."""
    await asyncio.wait((starting,), timeout=hold_s)
    if starting.done():
        starting.result()
