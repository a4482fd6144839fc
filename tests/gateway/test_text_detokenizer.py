"""Text comes in whole characters, and all of it is what decoding at once gives."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from tests.support.http_twin import Api, text_of
from tests.support.scripted_dispatcher import (
    EOS_ID,
    ids_of,
    says,
    small_tokenizer,
)

TEXTS = (
    "naïve 你好 🦀 👩‍👩‍👧 ह",
    "مرحبا بالعالم",
    "日本語のテキスト、한국어 텍스트",
    "tab\tnew\nline\r\n  spaces   \x00 end ",
)


def spelled(ids: tuple[int, ...], *, skip_special_tokens: bool = True) -> list[str]:
    """Return the text of each token in turn."""
    detokenizer = Detokenizer(small_tokenizer(), skip_special_tokens=skip_special_tokens)
    return [detokenizer.push(token_id) for token_id in ids]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_joined_are_the_text(text: str) -> None:
    pieces = spelled(ids_of(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, small_tokenizer().vocab_size - 1), max_size=40))
def test_any_tokens_read_like_their_bytes(ids: list[int]) -> None:
    raw = b"".join(small_tokenizer().token_bytes(token_id) for token_id in ids)
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    assert "".join(spelled(tuple(ids), skip_special_tokens=False)) == whole


def test_an_incomplete_character_at_the_end_is_left_out() -> None:
    ids = ids_of("ab🦀")
    assert "".join(spelled(ids[:-1])) == "ab"


def test_bytes_that_are_no_character_are_marked() -> None:
    crab, letter = ids_of("🦀"), ids_of("a")
    assert "".join(spelled((crab[0], *letter))) == "\ufffda"


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    ids = (*ids_of("a"), 1, *ids_of("b"))
    assert "".join(spelled(ids)) == "ab"
    assert "".join(spelled(ids, skip_special_tokens=False)) == "a<|im_start|>b"


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("per_update", [1, 3])
def test_a_stream_never_splits_a_character(text: str, per_update: int) -> None:
    """Replays llama.cpp #4036, llama-cpp-python #372, tensai #110."""
    script = says(text, end=EOS_ID, per_update=per_update)
    events = Api(script).chat_events()
    assert text_of(events) == text
    assert not any("\ufffd" in text_of([event]) for event in events)
    assert Api(script).chat().json()["choices"][0]["message"]["content"] == text


def test_the_end_token_isnt_text_even_if_special_tokens_are() -> None:
    body = Api(says("abc", end=EOS_ID)).chat(skip_special_tokens=False).json()
    assert body["choices"][0]["message"]["content"] == "abc"
