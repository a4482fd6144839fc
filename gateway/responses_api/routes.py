"""The routes below /v1/responses: from the body to the job, and what becomes of kept responses."""

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access_log import RequestRecord, record_of
from gateway.answer import Json, Prepared
from gateway.blocks import Blocks
from gateway.body import invalid, parse
from gateway.chat import plan_chat
from gateway.foreign_fields import renamed
from gateway.generate import generate
from gateway.known_fields import refuse_unknown
from gateway.responses_api.answer import ResponseAnswer
from gateway.responses_api.background import ROUTE, Background, Errand
from gateway.responses_api.body import NEUTRAL, ResponsesBody
from gateway.responses_api.chat_fields import NAMES, chat_body
from gateway.responses_api.event_log import EventLog
from gateway.responses_api.head import ResponseHead, asked_of
from gateway.responses_api.items import input_items
from gateway.responses_api.replay import Replay
from gateway.responses_api.shelf import Kept, key_of
from gateway.run import Run
from gateway.services import Services
from gateway.sse import BodyStream
from gateway.unsupported import refuse_fields

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
"""Items in one page of a list."""

MAX_NUMBER_CHARS = 9
"""Of an event's number."""


class ResponseRoutes:
    """What the routes do, for one app."""

    def __init__(self, services: Services, background: Background) -> None:
        self._services = services
        self._background = background

    async def create(self, request: Request) -> Response:
        """Answer a new response: whole, streamed, or at once while it runs on."""
        return await generate(request, self._services, partial(self._prepare, _owner(request)))

    async def show(self, request: Request, response_id: str) -> Response:
        """Answer a kept response, or its events from one on."""
        owner, shelf = _owner(request), self._background.shelf
        kept = await shelf.find(owner, response_id)
        if not _is_streamed(request.query_params):
            return JSONResponse(kept.response)
        if not kept.streamed:
            raise invalid("stream", "only responses that were asked for with background and stream true")
        replay = Replay(shelf, owner, response_id, _starting_after(request.query_params))
        return BodyStream(replay.events(), self._services.settings, replay.nudge)

    async def cancel(self, request: Request, response_id: str) -> Response:
        """End a response that runs in the background."""
        return JSONResponse(await self._background.cancel(_owner(request), response_id))

    async def delete(self, request: Request, response_id: str) -> Response:
        """Forget a kept response."""
        await self._background.drop(_owner(request), response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def items(self, request: Request, response_id: str) -> Response:
        """List what a kept response was asked with."""
        kept = await self._background.shelf.find(_owner(request), response_id)
        return JSONResponse(_page(kept.input, request.query_params))

    async def _prepare(self, owner: str, fields: Mapping[str, object], services: Services, label: str) -> Prepared:
        """See ``Prepare``."""
        refuse_fields(fields, NEUTRAL)
        refuse_unknown(fields, ResponsesBody, services.settings, NEUTRAL)
        body = parse(ResponsesBody, fields)
        _check_background(body)
        items, before = input_items(body.input), list[Json]()
        if body.previous_response_id is not None:
            before = await self._background.shelf.before(owner, body.previous_response_id)
        with renamed(NAMES):
            chat, tools = chat_body(body, fields, [*before, *items])
            plan = await plan_chat(chat, tools, services, label)
        head = ResponseHead(asked_of(body, services.folder_model.name))

        async def keep(response: Json) -> None:
            if body.store and not body.background:
                await self._background.shelf.keep_if_possible(owner, Kept(response, items, before))

        def answer(run: Run) -> ResponseAnswer:
            return ResponseAnswer(run, head, Blocks(plan.readings[0]), services.folder_model.tokenizer, keep)

        async def aside(record: RequestRecord, within_ms: int) -> Response:
            own = record.hand_over(ROUTE)
            run = Run(plan.job, services.folder_model.tokenizer, own, services.metrics, within_ms)
            kept = Kept(head.response("in_progress"), items, before, streamed=body.stream)
            events = EventLog(self._background.shelf.store, key_of(owner, head.id)) if body.stream else None
            errand = Errand(owner, head, kept, run, answer(run), own, services, events)
            try:
                response = await self._background.start(errand)
            except BaseException:
                record.handed_over = False
                raise
            if events is None:
                return JSONResponse(response)
            return BodyStream(events.live(), services.settings, events.nudge)

        return Prepared(plan.job, answer, body.stream, aside if body.background else None)


def _owner(request: Request) -> str:
    return record_of(request.scope).owner


def _check_background(body: ResponsesBody) -> None:
    if body.background and not body.store:
        raise invalid("background", "only with store true: else nobody could ask for the answer")


def _page(items: list[Json], query: Mapping[str, str]) -> Json:
    """Return one page of a list, as OpenAI's lists are. Raises ``GatewayError`` (400)."""
    limit, order, after = _limit(query), query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise invalid("order", "asc or desc")
    listed = items if order == "asc" else items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(listed) if item["id"] == after]
        if not places:
            raise invalid("after", "no item of this response has this id")
        listed = listed[places[0] + 1 :]
    page = listed[:limit]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {
        "object": "list",
        "data": page,
        "first_id": ends[0],
        "last_id": ends[1],
        "has_more": len(listed) > len(page),
    }


def _is_streamed(query: Mapping[str, str]) -> bool:
    given = query.get("stream", "").lower()
    if given not in ("true", "1", "false", "0", ""):
        raise invalid("stream", "true or false")
    return given in ("true", "1")


def _starting_after(query: Mapping[str, str]) -> int:
    """The number of an event; -1 if none is named. Raises ``GatewayError`` (400)."""
    given = query.get("starting_after", "-1")
    if given != "-1" and not (given.isascii() and given.isdecimal() and len(given) <= MAX_NUMBER_CHARS):
        raise invalid("starting_after", "the number of an event")
    return int(given)


def _limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(DEFAULT_LIMIT))
    is_short = given.isascii() and given.isdecimal() and len(given) <= len(str(MAX_LIMIT))
    if not is_short or not 1 <= int(given) <= MAX_LIMIT:
        raise invalid("limit", f"a whole number from 1 to {MAX_LIMIT}")
    return int(given)
