"""A tokenizer for grammars whose tokens are single bytes."""

from functools import cache
from types import SimpleNamespace

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


@cache
def byte_tokenizer() -> LLTokenizer:
    """Id ``n`` is byte ``n``; 256 is the end."""
    names = [bytes([number]) for number in range(256)] + [b"</s>"]

    class Plain(SimpleNamespace):
        def __call__(self, text: bytes | str) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    plain = Plain(eos_token_id=256, bos_token_id=None, tokens=names, special_token_ids=[256])
    return LLTokenizer(TokenizerWrapper(plain))


def takes(grammar: str, text: str) -> bool:
    """Whether a text is one of a grammar's."""
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    assert not matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode()))) and matcher.is_accepting()
