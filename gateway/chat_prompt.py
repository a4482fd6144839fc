"""From a chat's messages to the token ids of its prompt."""

import asyncio

from gateway.body import invalid
from gateway.chat_messages import template_messages
from gateway.errors import GatewayError
from gateway.requests import TemplateFields, check_room
from gateway.served_model import ServedModel
from gateway.tokenizer import LONG_TEXT_CHARS


async def chat_ids(body: TemplateFields, model: ServedModel, *, any_length: bool = False) -> tuple[int, ...]:
    """Return the prompt's token ids; with ``any_length`` there may be more than the model's context has.

    Raises ``GatewayError`` (400): what the messages or the template refuse, and without ``any_length`` a text
    that can't fit.
    """
    template = model.template
    if template is None:
        raise GatewayError(400, "This model has no chat template; use /v1/completions")
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message", "only with add_generation_prompt false")
    messages = template_messages(body.messages, knows_developer=template.knows_developer)

    def ids() -> tuple[int, ...]:
        text = template.render(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
        )
        if not any_length:
            check_room(model.tokenizer.fewest_tokens(text), model, "messages", at_least=True)
        return model.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)

    num_chars = sum(len(str(message["content"])) for message in messages)
    return ids() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(ids)
