"""What both endpoints do with a request: read, prepare, run, answer."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access_log import record_of
from gateway.body import read_fields
from gateway.deadline import deadline_ms, is_hurried
from gateway.disconnect import until_gone
from gateway.requests import Job, label_of
from gateway.responses import Answer, Json, Shape
from gateway.run import Run
from gateway.services import Services
from gateway.sse import EventStream
from gateway.transcript import Piece
from gateway.unsupported import refuse_unsupported

Prepare = Callable[[Mapping[str, object], Services, str], Awaitable[tuple[Job, Shape, bool]]]


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
    job, shape, stream = await prepare(fields, services, record.label)
    record.num_prompt_tokens = job.num_prompt_tokens
    await services.reserve(record, job)
    run = Run(job, services.folder_model.tokenizer, record, services.metrics, within_ms)
    await until_gone(request.receive, run.start(services.dispatcher))
    answer = Answer(run, shape, services.folder_model.name)
    if stream:
        return EventStream(answer, services)
    try:
        body = await until_gone(request.receive, _whole(answer))
    finally:
        run.close("client disconnected")
    return JSONResponse(body, headers=answer.headers())


async def _whole(answer: Answer) -> Json:
    pieces: list[list[Piece]] = [[] for _ in range(answer.run.num_choices)]
    while batch := await answer.run.batch():
        for piece in batch:
            pieces[piece.choice].append(piece)
    return answer.whole([answer.shape.whole(each) for each in pieces])
