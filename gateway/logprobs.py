"""Log probabilities in OpenAI's two shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.tokenizer import TextTokenizer
from protocol.sampling import TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON doesn't have."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """An accepted token; its text begins ``offset`` characters into the choice's text."""

    token_id: int
    logprob: TokenLogprob
    offset: int


def token_text(tokenizer: TextTokenizer, token_id: int, *, as_ids: bool = False) -> tuple[str, list[int] | None]:
    """Return a token's text and bytes; part of a character is written ``bytes:\\xf0\\x9f``.

    With ``as_ids`` each text is ``token_id:7``.
    """
    raw = tokenizer.token_bytes(token_id)
    if as_ids or not raw:
        return f"token_id:{token_id}", list(raw) or None
    try:
        return raw.decode("utf-8"), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)


def chat_logprobs(
    tokenizer: TextTokenizer, tokens: Sequence[ScoredToken], *, as_ids: bool = False
) -> dict[str, object]:
    """One entry a token, its likeliest alternatives in falling order."""
    return {"content": [_chat_entry(tokenizer, token, as_ids) for token in tokens], "refusal": None}


def _chat_entry(tokenizer: TextTokenizer, token: ScoredToken, as_ids: bool) -> dict[str, object]:
    pairs = zip(token.logprob.top_ids, token.logprob.top_logprobs, strict=True)
    return {
        **_named(tokenizer, token.token_id, token.logprob.logprob, as_ids),
        "top_logprobs": [_named(tokenizer, token_id, value, as_ids) for token_id, value in pairs],
    }


def _named(tokenizer: TextTokenizer, token_id: int, logprob: float, as_ids: bool) -> dict[str, object]:
    text, raw = token_text(tokenizer, token_id, as_ids=as_ids)
    return {"token": text, "logprob": max(logprob, FLOOR), "bytes": raw}


def completion_logprobs(
    tokenizer: TextTokenizer, tokens: Sequence[ScoredToken], *, as_ids: bool = False
) -> dict[str, object]:
    """Parallel lists; the chosen token is always among its own alternatives."""
    return {
        "text_offset": [token.offset for token in tokens],
        "token_logprobs": [max(token.logprob.logprob, FLOOR) for token in tokens],
        "tokens": [token_text(tokenizer, token.token_id, as_ids=as_ids)[0] for token in tokens],
        "top_logprobs": [_top(tokenizer, token, as_ids) for token in tokens],
    }


def _top(tokenizer: TextTokenizer, token: ScoredToken, as_ids: bool) -> dict[str, float]:
    pairs = zip(token.logprob.top_ids, token.logprob.top_logprobs, strict=True)
    top = {token_text(tokenizer, token_id, as_ids=as_ids)[0]: max(value, FLOOR) for token_id, value in pairs}
    top.setdefault(token_text(tokenizer, token.token_id, as_ids=as_ids)[0], max(token.logprob.logprob, FLOOR))
    return top
