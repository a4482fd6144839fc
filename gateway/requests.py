"""The two bodies that ask for tokens, and the job that a checked one becomes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.access_log import MAX_LABEL_CHARS
from gateway.body import Body, invalid
from gateway.body_schema import schema_of
from gateway.chat_messages import Message
from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings
from gateway.sampling_fields import SamplingFields
from gateway.served_model import ServedModel
from gateway.tools import ToolFields
from gateway.transcript import TextSettings
from protocol.errors import Code
from protocol.sampling import NO_LOGPROBS, Sampling

MaxTokens = Annotated[int, Field(ge=1)]

DEFAULT_COMPLETION_TOKENS = 16
MAX_TEMPLATE_KWARGS = 64
"""Variables for a template; none knows more than a handful."""

MAX_TEMPLATE_CHARS = 64 << 10
"""Length of a template in a request; those of models have up to 20,000."""

MAX_DOCUMENTS = 1024
"""Texts that a template puts beside the messages."""


def _few(value: object) -> object:
    """Bound a mapping before each entry is looked at."""
    if isinstance(value, dict) and len(value) > MAX_TEMPLATE_KWARGS:
        raise ValueError(f"at most {MAX_TEMPLATE_KWARGS} entries")
    return value


_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Prompt = Annotated[
    object,
    WithJsonSchema(
        {"anyOf": [part for each in (_TEXT, _IDS) for part in (each, {"type": "array", "items": each, "minItems": 1})]}
    ),
]
Messages = Annotated[
    list[object],
    Field(min_length=1),
    WithJsonSchema({"type": "array", "items": schema_of(Message), "minItems": 1}),
]
Documents = Annotated[list[dict[str, object]], Field(fail_fast=True, max_length=MAX_DOCUMENTS)]
TemplateKwargs = Annotated[dict[str, object], BeforeValidator(_few)]


class TemplateFields(Body):
    """How a chat becomes a prompt. ``messages`` are checked one by one, by ``chat_messages``."""

    messages: Messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] = ""
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    documents: Documents = Field(default_factory=list)


class ChatBody(TemplateFields, ToolFields, SamplingFields):
    """POST /v1/chat/completions."""

    include_reasoning: bool = True

    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None


class CompletionBody(SamplingFields):
    """POST /v1/completions. ``prompt`` has four forms, told apart by ``split_prompts``."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0)] | None = None
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """What a request asks for, checked: nothing is left to refuse but by the workers.

    Choice ``c`` of prompt ``p`` has index ``p * num_choices + c``. ``num_top`` alternatives are
    reported with each token where ``text.logprobs``, ``prompt_logprobs`` with each of the prompts.
    ``sampling.max_tokens`` 0: nothing but the prompts is wanted.
    """

    prompts: tuple[tuple[int, ...], ...]
    num_choices: int
    sampling: Sampling
    text: TextSettings
    cache_salt: str
    label: str
    include_usage: bool
    continuous_usage: bool
    include_kvferry: bool = False
    prompt_logprobs: int = NO_LOGPROBS

    @property
    def num_prompt_tokens(self) -> int:
        """Over all prompts."""
        return sum(map(len, self.prompts))


def label_of(fields: Mapping[str, object]) -> str:
    """The client's own name for the request in its body, cut as one in the header is; "" if there is none.

    Raises ``GatewayError`` (400) for what can't go back in a header.
    """
    given = fields.get("request_id", "")
    if not isinstance(given, str) or not given.isascii() or not given.isprintable():
        raise invalid("request_id", "a text of printable ASCII characters")
    return given[:MAX_LABEL_CHARS].strip()


def check_common(body: SamplingFields, settings: HttpSettings, model: ServedModel) -> None:
    """Raise ``GatewayError`` for another model (404), too many choices, a stray option (400)."""
    check_model(body.model, model)
    if body.n > settings.max_choices:
        raise invalid("n", f"at most {settings.max_choices}")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only with stream true")


def check_model(name: str | None, model: ServedModel) -> None:
    """Raise ``GatewayError`` (404) if ``name`` is another model's; None is this one."""
    if name is not None and name != model.name:
        raise GatewayError(
            404,
            f"The model {name[:256]!r} isn't served here, only {model.name!r}",
            code="model_not_found",
            param="model",
        )


def check_num_logprobs(param: str, number: int, settings: HttpSettings) -> None:
    """Raise ``GatewayError`` (400) if more alternatives are wanted than are reported."""
    if number > settings.max_logprobs:
        raise invalid(param, f"at most {settings.max_logprobs}")


def _context(model: ServedModel) -> str:
    """In OpenAI's words: clients tell this error from others by words of its message, not by its code.

    What follows is in Anthropic's words where these say the same, since clients of its read the numbers out of them.
    """
    return f"This model's maximum context length is {model.max_model_len} tokens"


def prompt_logprobs(body: SamplingFields, settings: HttpSettings) -> int:
    """Alternatives that are told of the prompt's tokens. Raises ``GatewayError`` (400): too many, or in a stream."""
    number = body.prompt_logprobs
    if number is None:
        return NO_LOGPROBS
    if number < 0:
        raise invalid("prompt_logprobs", f"-1 (all) isn't supported, {settings.max_logprobs} at most")
    check_num_logprobs("prompt_logprobs", number, settings)
    if body.stream:
        raise invalid("prompt_logprobs", "not with stream true")
    return number


def check_room(num_tokens: int, model: ServedModel, param: str, *, at_least: bool = False) -> int:
    """Tokens that can follow a prompt. Raises ``GatewayError`` (400) if not even one can."""
    room = model.max_model_len - num_tokens
    if room >= 1:
        return room
    raise GatewayError(
        400,
        f"{_context(model)}. The prompt is too long:{' at least' if at_least else ''} {num_tokens} tokens >"
        f" {model.max_model_len - 1} maximum, since at least one must follow. Shorten it",
        code=Code.TOO_LONG,
        param=param,
    )


def check_max_tokens(max_tokens: int, room: int, model: ServedModel, param: str) -> int:
    """``max_tokens``. Raises ``GatewayError`` (400) if prompt and answer don't fit together."""
    if max_tokens <= room:
        return max_tokens
    num_prompt = model.max_model_len - room
    raise GatewayError(
        400,
        f"{_context(model)}; input length and `max_tokens` exceed context limit:"
        f" {num_prompt} + {max_tokens} > {model.max_model_len}. Ask for {room} at most",
        code=Code.TOO_LONG,
        param=param,
    )
