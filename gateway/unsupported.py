"""Fields that OpenAI's or other servers' clients know and that aren't built here yet.

They are refused, not ignored: an answer that silently drops a constraint is worse than an error.
A value that asks for nothing (null, empty, the default) passes. Fields that aren't listed and
unknown ones change no answer and are ignored.
"""

from collections.abc import Mapping

from gateway.errors import GatewayError

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "functions": (),
    "function_call": ("none", "auto"),
    "logits_processors": (),
    "use_beam_search": (),
    "best_of": (1,),
    "suffix": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "prompt_embeds": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "bad_words_token_ids": (),
    "logprob_token_ids": (),
    "return_prompt_text": (),
    "return_token_offsets": (),
    "return_assistant_tokens_mask": (),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "vllm_xargs": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}

UNSUPPORTED = frozenset(_NEUTRAL)
"""Their names."""


_OF_CHATS = ("chat_template", "documents", "tools", "tool_choice")
_OF_TEXTS = ("echo",)


def refuse_chat_fields(fields: Mapping[str, object]) -> None:
    """Raise ``GatewayError`` (400, ``unsupported_parameter``) if a text comes with what only a chat's template uses."""
    _refuse(_OF_CHATS, fields, "is for chats; leave it out, or send messages")


def refuse_text_fields(fields: Mapping[str, object]) -> None:
    """Raise ``GatewayError`` (400, ``unsupported_parameter``) if a chat comes with what is for texts alone."""
    _refuse(_OF_TEXTS, fields, "is for /v1/completions; leave it out")


def _refuse(names: tuple[str, ...], fields: Mapping[str, object], why: str) -> None:
    for name in names:
        if not _is_empty(fields.get(name)) and fields.get(name) not in ("none", "auto"):
            raise GatewayError(400, f"{name} {why}", code="unsupported_parameter", param=name)


def refuse_unsupported(fields: Mapping[str, object]) -> None:
    """Raise ``GatewayError`` (400, ``unsupported_parameter``) if a field of OpenAI's own routes asks for more."""
    refuse_fields({name: value for name, value in fields.items() if not _switched_off(name, fields)}, _NEUTRAL)


def refuse_fields(fields: Mapping[str, object], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Raise ``GatewayError`` (400, ``unsupported_parameter``) if a field asks for more than its neutral values do.

    Null, false, and what is empty ask for nothing.
    """
    for name, values in neutral.items():
        value = fields.get(name)
        if not _is_empty(value) and value not in values:
            raise GatewayError(
                400,
                f"{name} isn't supported by this server; leave it out",
                code="unsupported_parameter",
                param=name,
            )


def _is_empty(value: object) -> bool:
    """Say whether it asks for nothing; 0 isn't empty."""
    return value is None or value is False or value in ("", [], {})


def _switched_off(name: str, fields: Mapping[str, object]) -> bool:
    """Say whether another field makes it harmless: tools that may not be called aren't shown."""
    if name == "functions":
        return fields.get("function_call") == "none"
    return name == "best_of" and _keeps_all(fields)


def _keeps_all(fields: Mapping[str, object]) -> bool:
    """Say whether there are as many candidates as choices."""
    return fields.get("best_of") == fields.get("n")
