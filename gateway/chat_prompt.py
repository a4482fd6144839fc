"""From a chat's messages to the token ids of its prompt."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.body import invalid
from gateway.chat_messages import template_messages
from gateway.chat_template import ChatTemplate
from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings
from gateway.request_template import request_template
from gateway.requests import TemplateFields, check_room
from gateway.served_model import ServedModel
from gateway.tokenizer import LONG_TEXT_CHARS
from gateway.tool_prompt import with_tools_told


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt. ``starts_inside``: its end is the beginning of reasoning."""

    token_ids: tuple[int, ...]
    starts_inside: bool


async def chat_prompt(
    body: TemplateFields,
    model: ServedModel,
    settings: HttpSettings,
    *,
    any_length: bool = False,
    tools: Sequence[Mapping[str, object]] = (),
) -> ChatPrompt:
    """Return the prompt; with ``any_length`` there may be more tokens than the model's context has.

    Raises ``GatewayError`` (400): what the messages or the template refuse, and without ``any_length`` a text
    that can't fit.
    """
    template = await _template(body, model, settings)
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message", "only with add_generation_prompt false")
    messages = template_messages(body.messages, knows_developer=template.knows_developer)

    def prompt() -> ChatPrompt:
        text = template.render(
            messages if template.knows_tools else with_tools_told(messages, tools, model.style.tools),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
            documents=body.documents,
            tools=tools,
        )
        if not any_length:
            check_room(model.tokenizer.fewest_tokens(text), model, "messages", at_least=True)
        token_ids = model.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
        return ChatPrompt(token_ids, model.style.starts_inside(text))

    return prompt() if _is_small(body, messages) and not tools else await asyncio.to_thread(prompt)


def _is_small(body: TemplateFields, messages: list[dict[str, object]]) -> bool:
    """Say whether it takes little time. A client's template may not, nor what holds other values inside."""
    given = [*body.chat_template_kwargs.values(), *(value for message in messages for value in message.values())]
    if body.chat_template or body.documents or any(isinstance(value, list | dict) for value in given):
        return False
    return sum(len(value) for value in given if isinstance(value, str)) <= LONG_TEXT_CHARS


async def _template(body: TemplateFields, model: ServedModel, settings: HttpSettings) -> ChatTemplate:
    if body.chat_template:
        return await request_template(body.chat_template, model, settings)
    if model.template is None:
        raise GatewayError(400, "This model has no chat template; use /v1/completions")
    return model.template
