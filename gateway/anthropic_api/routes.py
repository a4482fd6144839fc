"""POST /v1/messages and POST /v1/messages/count_tokens: from the body to the job, and to a number."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.answer import Prepared
from gateway.anthropic_api.answer import MessageAnswer
from gateway.anthropic_api.body import NEUTRAL, CountBody, MessagesBody
from gateway.anthropic_api.chat_fields import NAMES, chat_body, prompt_fields
from gateway.blocks import Blocks
from gateway.body import parse, read_fields
from gateway.chat import plan_chat
from gateway.chat_prompt import chat_prompt
from gateway.foreign_fields import renamed
from gateway.known_fields import refuse_unknown
from gateway.requests import ChatBody, check_model
from gateway.services import Services
from gateway.tools import tool_use
from gateway.unsupported import refuse_fields


async def prepare_message(fields: Mapping[str, object], services: Services, label: str) -> Prepared:
    """See ``Prepare``."""
    refuse_fields(fields, NEUTRAL)
    refuse_unknown(fields, MessagesBody, services.settings, NEUTRAL)
    body = parse(MessagesBody, fields)
    with renamed(NAMES):
        chat, tools = chat_body(body)
        plan = await plan_chat(chat, tools, services, label)
    [reading] = plan.readings
    name = services.folder_model.name
    return Prepared(plan.job, lambda run: MessageAnswer(run, Blocks(reading), name), body.stream)


async def count_tokens(request: Request, services: Services) -> Response:
    """Answer with the tokens of the prompt that a message's body makes, of any length.

    Raises ``GatewayError`` as the route for messages does.
    """
    fields = await read_fields(request, services.settings)
    refuse_fields(fields, NEUTRAL)
    refuse_unknown(fields, CountBody, services.settings, NEUTRAL)
    body, model = parse(CountBody, fields), services.model
    check_model(body.model, model)
    with renamed(NAMES):
        given = prompt_fields(body)
        chat = parse(ChatBody, given)
        use = tool_use(chat, given["tools"])
        prompt = await chat_prompt(chat, model, services.settings, any_length=True, tools=use.shown)
    return JSONResponse({"input_tokens": len(prompt.token_ids)})
