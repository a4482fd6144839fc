"""POST /v1/chat/completions: from the body to the job."""

import asyncio
from collections.abc import Mapping

from gateway.body import invalid, parse
from gateway.chat_messages import template_messages
from gateway.errors import GatewayError
from gateway.requests import (
    ChatBody,
    Job,
    check_common,
    check_max_tokens,
    check_num_logprobs,
    check_room,
)
from gateway.responses import ChatShape
from gateway.sampling_fields import sampling_of, text_settings
from gateway.served_model import ServedModel
from gateway.services import Services
from gateway.structured import checked_grammar
from gateway.tokenizer import LONG_TEXT_CHARS
from protocol.sampling import NO_LOGPROBS


async def prepare_chat(fields: Mapping[str, object], services: Services, label: str) -> tuple[Job, ChatShape, bool]:
    """(job, shape, stream). Raises ``GatewayError`` for whatever can be judged before a worker."""
    model, settings = services.model, services.settings
    body = parse(ChatBody, fields)
    check_common(body, settings, model)
    num_top = _num_top(body)
    if num_top > 0:
        check_num_logprobs("top_logprobs", num_top, settings)
    grammar = await checked_grammar(body, services)
    text = text_settings(body, settings, logprobs=body.logprobs)
    prompt_ids = await _prompt_ids(body, model)
    room = check_room(len(prompt_ids), model, "messages")
    max_tokens = _max_tokens(body, room, model)
    sampling = sampling_of(body, model, max_tokens=max_tokens, logprobs=num_top, grammar=grammar)
    job = Job(
        prompts=(prompt_ids,),
        num_choices=body.n,
        sampling=sampling,
        text=text,
        cache_salt=body.cache_salt or "",
        label=label,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
        include_kvferry=body.include_kvferry,
    )
    return job, ChatShape(model.tokenizer, body.logprobs), body.stream


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


async def _prompt_ids(body: ChatBody, model: ServedModel) -> tuple[int, ...]:
    template = model.template
    if template is None:
        raise GatewayError(400, "This model has no chat template; use /v1/completions")
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message", "only with add_generation_prompt false")
    messages = template_messages(body.messages, knows_developer=template.knows_developer)
    num_chars = sum(len(str(message["content"])) for message in messages)
    if num_chars <= LONG_TEXT_CHARS:
        return _render(body, messages, model)
    return await asyncio.to_thread(_render, body, messages, model)


def _render(body: ChatBody, messages: list[dict[str, object]], model: ServedModel) -> tuple[int, ...]:
    assert model.template is not None
    text = model.template.render(
        messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )
    check_room(model.tokenizer.fewest_tokens(text), model, "messages", at_least=True)
    return model.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
