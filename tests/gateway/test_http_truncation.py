"""Prompts that are cut to fewer tokens on request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of
from tests.support.scripted_dispatcher import ids_of, says, small_model

TEXT = "The quick brown fox jumps over the lazy dog."
IDS = ids_of(TEXT)
CHAT_IDS = ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
FORMS = pytest.mark.parametrize("prompt", [TEXT, list(IDS)], ids=["text", "ids"])


def sent(api: Api, path: str, **fields: Any) -> tuple[int, ...]:
    response = api.request("POST", path, json={"messages": HELLO, "prompt": TEXT, **fields})
    assert response.status_code == 200, response.text
    ids = api.dispatcher.generations[-1].prompt_ids
    assert response.json()["usage"]["prompt_tokens"] == len(ids)
    return ids


@FORMS
def test_a_completion_keeps_the_end_or_the_beginning(prompt: object) -> None:
    api = Api(says("abc"))
    assert sent(api, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=5) == IDS[-5:]
    assert sent(api, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=5, truncation_side="left") == IDS[-5:]
    assert sent(api, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=5, truncation_side="right") == IDS[:5]


def test_a_chat_keeps_the_end_or_the_beginning() -> None:
    api = Api(says("abc"))
    assert sent(api, CHAT, truncate_prompt_tokens=4) == CHAT_IDS[-4:]
    assert sent(api, CHAT, truncate_prompt_tokens=4, truncation_side="right") == CHAT_IDS[:4]


@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": None}, {"truncate_prompt_tokens": 10**30}])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_a_shorter_prompt_stays_whole(fields: dict[str, Any], side: str | None) -> None:
    api = Api(says("abc"))
    assert sent(api, COMPLETIONS, truncation_side=side, **fields) == IDS
    assert sent(api, CHAT, truncation_side=side, **fields) == CHAT_IDS


def test_each_of_several_prompts_is_cut() -> None:
    api = Api(says("abc"))
    api.complete(prompt=[TEXT, "abc abc abc"], truncate_prompt_tokens=2)
    assert {each.prompt_ids for each in api.dispatcher.generations} == {IDS[-2:], ids_of("abc abc abc")[-2:]}


@FORMS
@pytest.mark.parametrize(("max_tokens", "kept"), [(None, 64 - 16), (8, 64 - 8), (63, 1)])
def test_minus_one_keeps_as_much_as_leaves_room_for_the_answer(
    prompt: str | list[int], max_tokens: int | None, kept: int
) -> None:
    api = Api(says("abc"), model=small_model(max_model_len=64))
    ids = sent(api, COMPLETIONS, prompt=prompt * 100, truncate_prompt_tokens=-1, max_tokens=max_tokens)
    assert ids == (IDS * 100)[-kept:]


@pytest.mark.parametrize(
    ("fields", "kept"), [({}, 63), ({"max_tokens": 4}, 60), ({"max_tokens": 4, "max_completion_tokens": 9}, 55)]
)
def test_minus_one_in_a_chat_leaves_room_for_what_was_asked_or_one(fields: dict[str, Any], kept: int) -> None:
    api = Api(says("abc"), model=small_model(max_model_len=64))
    messages = [{"role": "user", "content": "abc " * 5000}]
    ids = sent(api, CHAT, messages=messages, truncate_prompt_tokens=-1, **fields)
    assert len(ids) == kept
    assert ids[-len(CHAT_IDS[-4:]) :] == CHAT_IDS[-4:]


def test_minus_one_keeps_a_short_prompt_whole() -> None:
    assert sent(Api(says("abc")), COMPLETIONS, truncate_prompt_tokens=-1) == IDS


def test_what_does_not_fit_even_so_is_refused() -> None:
    api = Api(model=small_model(max_model_len=64))
    error = error_of(api.complete(prompt=[5] * 100, truncate_prompt_tokens=64), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    error = error_of(api.complete(prompt=[5] * 100, truncate_prompt_tokens=-1, max_tokens=64), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert not api.dispatcher.generations
