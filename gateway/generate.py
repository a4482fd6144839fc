"""What all routes that generate do with a request: read, prepare, run, answer."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access_log import record_of
from gateway.answer import Prepare, whole
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

    Raises ``GatewayError`` for whatever goes wrong before the first token, and ``ClientGone``.
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
        return JSONResponse(await prepared.aside(record, within_ms))
    run = Run(prepared.job, services.folder_model.tokenizer, record, services.metrics, within_ms)
    await until_gone(request.receive, run.start(services.dispatcher))
    answer = prepared.answer(run)
    if prepared.stream:
        return EventStream(answer, services)
    try:
        body = await until_gone(request.receive, whole(answer))
    finally:
        run.close("client disconnected")
    return JSONResponse(body, headers=answer.headers())
