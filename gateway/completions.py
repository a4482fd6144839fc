"""POST /v1/completions: from the body to the job."""

from collections.abc import Mapping
from typing import Any

from gateway.answer import Prepared
from gateway.body import invalid, parse
from gateway.choices_answer import ChoicesAnswer
from gateway.completion_shape import CompletionShape
from gateway.known_fields import refuse_unknown
from gateway.requests import (
    DEFAULT_COMPLETION_TOKENS,
    CompletionBody,
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
from gateway.structured import checked_grammar
from gateway.truncation import cut, is_cut
from gateway.unsupported import refuse_chat_fields
from protocol.sampling import NO_LOGPROBS


async def prepare_completion(fields: Mapping[str, object], services: Services, label: str) -> Prepared:
    """See ``Prepare``. Raises ``GatewayError`` for whatever can be judged before a worker."""
    model, settings = services.model, services.settings
    refuse_chat_fields(fields)
    refuse_unknown(fields, CompletionBody, settings)
    body = parse(CompletionBody, fields)
    check_common(body, settings, model)
    num_top = NO_LOGPROBS if body.logprobs is None else body.logprobs
    check_num_logprobs("logprobs", num_top, settings)
    scored = prompt_logprobs(body, settings)
    if body.echo:
        scored = max(scored, num_top)
    grammar = await checked_grammar(body, services)
    text = text_settings(body, settings, logprobs=body.logprobs is not None)
    given = split_prompts(body.prompt)
    if len(given) * body.n > settings.max_choices:
        raise invalid("prompt", f"prompts times n are at most {settings.max_choices}")
    prompts = [await _ids_of(each, body, model) for each in given]
    job = Job(
        prompts=tuple(prompts),
        num_choices=body.n,
        sampling=sampling_of(
            body, model, max_tokens=_max_tokens(body, prompts, model), logprobs=num_top, grammar=grammar
        ),
        text=text,
        cache_salt=body.cache_salt or "",
        label=label,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
        include_kvferry=body.include_kvferry,
        prompt_logprobs=scored,
    )
    shape = CompletionShape(
        model.tokenizer,
        body.logprobs is not None,
        body.return_tokens_as_token_ids,
        [each for each in prompts for _ in range(body.n)],
        with_ids=body.return_token_ids,
        echoes=body.echo,
        tells_scores=body.prompt_logprobs is not None,
        skip_special_tokens=body.skip_special_tokens,
        num_choices=body.n,
        num_top=body.logprobs or 0,
        num_told=body.prompt_logprobs or 0,
    )
    return Prepared(job, lambda run: ChoicesAnswer(run, shape, model.name), body.stream)


def split_prompts(prompt: object, param: str = "prompt") -> list[str | list[object]]:
    """One entry a prompt: text, or a list of what should be token ids.

    Raises ``GatewayError`` (400): none of the four forms, no prompt at all, or an empty one.
    """
    given: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list):
        given = [prompt]  # the token ids of one prompt
    if not given or not all(isinstance(each, str | list) and each for each in given):
        raise invalid(param, "a text, texts, token ids or lists of token ids; none empty")
    return given


async def _ids_of(prompt: str | list[object], body: CompletionBody, model: ServedModel) -> tuple[int, ...]:
    max_tokens = body.max_tokens or DEFAULT_COMPLETION_TOKENS
    if isinstance(prompt, str):
        if not is_cut(body):
            check_room(model.tokenizer.fewest_tokens(prompt), model, "prompt", at_least=True)
        ids = await model.tokenizer.encode_aside(prompt, add_special_tokens=body.add_special_tokens)
        return cut(ids, body, model, max_tokens)
    prompt = cut(prompt, body, model, max_tokens)
    check_room(len(prompt), model, "prompt")
    ids = tuple(each for each in prompt if type(each) is int and 0 <= each < model.vocab_size)
    if len(ids) != len(prompt):
        raise invalid("prompt", f"token ids are integers from 0 to {model.vocab_size - 1}")
    return ids


def _max_tokens(body: CompletionBody, prompts: list[tuple[int, ...]], model: ServedModel) -> int:
    room = min(check_room(len(prompt), model, "prompt") for prompt in prompts)
    if body.max_tokens is None:
        return min(DEFAULT_COMPLETION_TOKENS, room)
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 only with echo true")
    return check_max_tokens(body.max_tokens, room, model, "max_tokens")
