"""POST /v1/chat/completions: from the body to the job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.answer import Prepared
from gateway.body import invalid, parse
from gateway.chat_prompt import chat_prompt
from gateway.chat_reading import ChatReading, ReadingRules
from gateway.chat_shape import ChatShape
from gateway.choices_answer import ChoicesAnswer
from gateway.known_fields import refuse_unknown
from gateway.requests import (
    ChatBody,
    Job,
    check_common,
    check_max_tokens,
    check_num_logprobs,
    check_room,
    prompt_logprobs,
)
from gateway.sampling_fields import sampling_of, text_settings
from gateway.served_model import ServedModel
from gateway.services import Services
from gateway.structured import chat_grammar
from gateway.tools import ToolUse, tool_use
from gateway.truncation import cut, is_cut
from gateway.unsupported import refuse_text_fields
from protocol.sampling import NO_LOGPROBS


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A chat that was checked. ``readings`` are those of its choices, in order."""

    job: Job
    use: ToolUse
    readings: list[ChatReading]


async def prepare_chat(fields: Mapping[str, object], services: Services, label: str) -> Prepared:
    """See ``Prepare``. Raises ``GatewayError`` for whatever can be judged before a worker."""
    model = services.model
    refuse_text_fields(fields)
    refuse_unknown(fields, ChatBody, services.settings)
    body = parse(ChatBody, fields)
    plan = await plan_chat(body, fields.get("tools"), services, label)
    shape = ChatShape(
        model.tokenizer,
        body.logprobs,
        plan.readings,
        body.return_tokens_as_token_ids,
        plan.job.prompts[0],
        with_ids=body.return_token_ids,
        tells_scores=body.prompt_logprobs is not None,
        num_told=body.prompt_logprobs or 0,
        call_reason="stop" if plan.use.is_named else "tool_calls",
    )
    return Prepared(plan.job, lambda run: ChoicesAnswer(run, shape, model.name), body.stream)


async def plan_chat(body: ChatBody, tools: object, services: Services, label: str) -> ChatPlan:
    """What a chat is to be, whatever words its answer has. ``tools`` are the body's as they came.

    Raises ``GatewayError`` for whatever can be judged before a worker.
    """
    model, settings = services.model, services.settings
    check_common(body, settings, model)
    num_top = _num_top(body)
    if num_top > 0:
        check_num_logprobs("top_logprobs", num_top, settings)
    scored = prompt_logprobs(body, settings)
    use = tool_use(body, tools)
    prompt = await chat_prompt(body, model, settings, any_length=is_cut(body), tools=use.shown)
    prompt_ids = cut(prompt.token_ids, body, model, body.max_completion_tokens or body.max_tokens or 1)
    grammar = await chat_grammar(body, use, services, starts_inside=prompt.starts_inside)
    text = replace(
        text_settings(body, settings, logprobs=body.logprobs),
        shown_ids=frozenset(model.style.special_ids(model.tokenizer).values()),
    )
    room = check_room(len(prompt_ids), model, "messages")
    max_tokens = _max_tokens(body, room, model)
    job = Job(
        prompts=(prompt_ids,),
        num_choices=body.n,
        sampling=sampling_of(body, model, max_tokens=max_tokens, logprobs=num_top, grammar=grammar),
        text=text,
        cache_salt=body.cache_salt or "",
        label=label,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
        include_kvferry=body.include_kvferry,
        prompt_logprobs=scored,
    )
    return ChatPlan(job, use, readings(body, use, model, starts_inside=prompt.starts_inside))


def readings(body: ChatBody, use: ToolUse, model: ServedModel, *, starts_inside: bool) -> list[ChatReading]:
    """One for each choice."""
    rules = ReadingRules(parallel=use.parallel, shows_reasoning=body.include_reasoning)
    with_tools = bool(use.shown)
    return [
        ChatReading(model.style.reader(with_tools=with_tools, starts_inside=starts_inside), rules)
        for _ in range(body.n)
    ]


def _num_top(body: ChatBody) -> int:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise invalid("top_logprobs", "only with logprobs true")
    return NO_LOGPROBS


def _max_tokens(body: ChatBody, room: int, model: ServedModel) -> int:
    """Prefer the newer name; by default it is the rest of the context."""
    for param in ("max_completion_tokens", "max_tokens"):
        asked: int | None = getattr(body, param)
        if asked is not None:
            return check_max_tokens(asked, room, model, param)
    return room
