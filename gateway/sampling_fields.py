"""The fields that both endpoints share, and what they mean to the workers."""

import secrets
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.body import Body, invalid
from gateway.grammars.asked import StructuredFields
from gateway.http_settings import HttpSettings
from gateway.served_model import ServedModel
from gateway.transcript import TextSettings
from protocol.sampling import Sampling

MAX_LOGIT_BIAS = 1024
"""Entries of a bias; they travel with each attempt of a request."""

MAX_STOP_CHARS = 1024
"""Length of one stop string; so much text can be held back."""

MAX_STOP_TOKEN_IDS = 256
"""Further ids that end a choice; they travel with each attempt of a request."""

MAX_ALLOWED_IDS = 16384
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 128
"""They travel with each attempt of a request."""

LEAST_TEMPERATURE = 1e-3
"""A lower one is 0: it would leave to chance but which of equally likely tokens comes."""

_SEEDS = 1 << 64


def _few(value: object) -> object:
    """Bound a mapping before each entry is looked at."""
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} entries")
    return value


def _not_none(value: int) -> int:
    """Refuse to keep no token at all."""
    if value == 0:
        raise ValueError("a number of tokens from 1, or -1 for as many as fit")
    return value


def _as_list(value: object) -> object:
    """Take one text as a list of it."""
    return [value] if isinstance(value, str) else value


BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
LogitBias = Annotated[dict[str, float], BeforeValidator(_few)]
StopStrings = Annotated[
    list[str], Field(fail_fast=True), BeforeValidator(_as_list, json_schema_input_type=list[str] | str)
]
StopTokenIds = Annotated[list[int], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)]
AllowedIds = Annotated[list[int], Field(fail_fast=True, min_length=1, max_length=MAX_ALLOWED_IDS)]
BadWords = Annotated[list[BadWord], Field(fail_fast=True, max_length=MAX_BAD_WORDS)]
Truncation = Annotated[int, Field(ge=-1), AfterValidator(_not_none)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Body):
    """What a stream reports beside its pieces."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_kvferry: bool = False


class TruncationFields(Body):
    """How much of a prompt is read."""

    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] = "left"


class SamplingFields(StructuredFields, TruncationFields):
    """How tokens are chosen and shown. A field that is absent or null has OpenAI's default."""

    model: str | None = None
    n: Annotated[int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-(1 << 63), lt=_SEEDS)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: StopTokenIds = Field(default_factory=list)
    allowed_token_ids: AllowedIds | None = None
    bad_words: BadWords = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = None
    kvferry: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a last chunk reports usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def include_kvferry(self) -> bool:
        """Whether the answer says, at its end, where the request has been."""
        return self.kvferry or (self.stream_options is not None and self.stream_options.include_kvferry)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk reports usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


def text_settings(fields: SamplingFields, settings: HttpSettings, *, logprobs: bool) -> TextSettings:
    """Return what the text side needs.

    Raises ``GatewayError`` (400): too many stop strings, an empty or an overlong one.
    """
    stop = fields.stop
    if len(stop) > settings.max_stop:
        raise invalid("stop", f"at most {settings.max_stop} stop strings")
    if not all(0 < len(each) <= MAX_STOP_CHARS for each in stop):
        raise invalid("stop", f"a stop string has 1 to {MAX_STOP_CHARS} characters")
    return TextSettings(
        stop=tuple(stop),
        include_stop=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=logprobs,
        token_ids=fields.return_token_ids,
    )


def sampling_of(
    fields: SamplingFields, model: ServedModel, *, max_tokens: int, logprobs: int, grammar: str = ""
) -> Sampling:
    """Return what the workers need. Raises ``GatewayError`` (400) for ids out of the vocabulary."""
    if fields.min_tokens > max_tokens:
        raise invalid("min_tokens", f"more than max_tokens, which is {max_tokens}")
    for name in ("stop_token_ids", "allowed_token_ids"):
        if not all(0 <= token_id < model.vocab_size for token_id in getattr(fields, name) or ()):
            raise invalid(name, f"token ids are 0 to {model.vocab_size - 1}")
    seed = secrets.randbits(64) if fields.seed is None else fields.seed % _SEEDS
    return Sampling(
        temperature=fields.temperature if fields.temperature >= LEAST_TEMPERATURE else 0.0,
        top_p=fields.top_p,
        top_k=max(fields.top_k, 0),
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=_logit_bias(fields.logit_bias, model.vocab_size),
        seed=seed,
        min_tokens=fields.min_tokens,
        max_tokens=max_tokens,
        eos_ids=model.eos_ids,
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        logprobs=logprobs,
        allowed_ids=tuple(sorted(set(fields.allowed_token_ids or ()))),
        bad_words=_bad_words(fields.bad_words, model),
        grammar=grammar,
    )


def _bad_words(words: list[str], model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """Each as it is tokenized at a text's beginning and behind a space."""
    texts = [text for word in words for text in (word, f" {word.lstrip()}")]
    found = [model.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return tuple(dict.fromkeys(ids for ids in found if ids))


def _logit_bias(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in biases.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= len(str(vocab_size))
        if not is_id or int(key) >= vocab_size:
            raise invalid("logit_bias", f"keys are token ids from 0 to {vocab_size - 1}")
        if not -100 <= value <= 100:
            raise invalid("logit_bias", "values are from -100 to 100")
        pairs.append((int(key), value))
    return tuple(pairs)
