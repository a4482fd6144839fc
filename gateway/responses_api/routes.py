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
from gateway.foreign_fields import renamed, unsupported
from gateway.generate import generate
from gateway.known_fields import refuse_unknown
from gateway.responses_api.answer import ResponseAnswer
from gateway.responses_api.background import ROUTE, Background, Errand
from gateway.responses_api.body import NEUTRAL, ResponsesBody
from gateway.responses_api.chat_fields import NAMES, chat_body
from gateway.responses_api.head import ResponseHead, asked_of
from gateway.responses_api.items import input_items
from gateway.responses_api.shelf import Kept
from gateway.run import Run
from gateway.services import Services
from gateway.unsupported import refuse_fields

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
"""Items in one page of a list."""


class ResponseRoutes:
    """What the routes do, for one app."""

    def __init__(self, services: Services, background: Background) -> None:
        self._services = services
        self._background = background

    async def create(self, request: Request) -> Response:
        """Answer a new response: whole, streamed, or at once while it runs on."""
        return await generate(request, self._services, partial(self._prepare, _owner(request)))

    async def show(self, request: Request, response_id: str) -> Response:
        """Answer a kept response."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise unsupported("stream", "streams of responses that were asked for before")
        kept = await self._background.shelf.find(_owner(request), response_id)
        return JSONResponse(kept.response)

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

        async def aside(record: RequestRecord, within_ms: int) -> Json:
            own = record.hand_over(ROUTE)
            run = Run(plan.job, services.folder_model.tokenizer, own, services.metrics, within_ms)
            kept = Kept(head.response("in_progress"), items, before)
            errand = Errand(owner, head, kept, run, answer(run), own, services)
            try:
                return await self._background.start(errand)
            except BaseException:
                record.handed_over = False
                raise

        return Prepared(plan.job, answer, body.stream, aside if body.background else None)


def _owner(request: Request) -> str:
    return record_of(request.scope).owner


def _check_background(body: ResponsesBody) -> None:
    if body.background and not body.store:
        raise invalid("background", "only with store true: else nobody could ask for the answer")
    if body.background and body.stream:
        raise unsupported("background", "streams of responses in the background")


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


def _limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(DEFAULT_LIMIT))
    is_short = given.isascii() and given.isdecimal() and len(given) <= len(str(MAX_LIMIT))
    if not is_short or not 1 <= int(given) <= MAX_LIMIT:
        raise invalid("limit", f"a whole number from 1 to {MAX_LIMIT}")
    return int(given)
