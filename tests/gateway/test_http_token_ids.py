"""Token ids beside the text: of prompts, of answers, and in place of log probabilities' texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_twin import Api, text_of
from tests.support.scripted_dispatcher import EOS_ID, ids_of, says, small_tokenizer

CHAT_IDS = list(ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
CRAB = "\U0001f980"


def ids_in(events: list[dict[str, Any]], choice: int = 0) -> list[int]:
    """Join what a stream tells of one choice's ids."""
    parts = [part for event in events for part in event["choices"] if part["index"] == choice]
    return [token_id for part in parts for token_id in part["token_ids"]]


def test_a_chats_answer_has_the_ids_of_prompt_and_choices() -> None:
    script = [*says("abc xyz", end=EOS_ID), *says("Paris", choice=1)]
    body = Api(script).chat(n=2, return_token_ids=True).json()
    assert body["prompt_token_ids"] == CHAT_IDS
    assert [each["token_ids"] for each in body["choices"]] == [[*ids_of("abc xyz"), EOS_ID], [*ids_of("Paris")]]
    assert sum(len(each["token_ids"]) for each in body["choices"]) == body["usage"]["completion_tokens"]


def test_a_chats_stream_has_the_prompts_ids_once_and_the_choices_as_they_come() -> None:
    events = Api(says("abc xyz", end=EOS_ID)).chat_events(return_token_ids=True)
    assert events[0]["prompt_token_ids"] == CHAT_IDS
    assert not any("prompt_token_ids" in event for event in events[1:])
    assert ids_in(events) == [*ids_of("abc xyz"), EOS_ID]
    assert text_of(events) == "abc xyz"


def test_a_completions_choices_have_the_ids_of_their_own_prompts() -> None:
    body = Api(says("Paris")).complete(prompt=["abc", "xyz"], return_token_ids=True).json()
    assert [each["prompt_token_ids"] for each in body["choices"]] == [[*ids_of("abc")], [*ids_of("xyz")]]
    assert [each["token_ids"] for each in body["choices"]] == [[*ids_of("Paris")]] * 2
    assert "prompt_token_ids" not in body


def test_a_completions_choices_of_one_prompt_have_the_same_prompt() -> None:
    script = [*says("abc"), *says("xyz", choice=1)]
    body = Api(script).complete(prompt="hello", n=2, return_token_ids=True).json()
    assert [each["prompt_token_ids"] for each in body["choices"]] == [[*ids_of("hello")]] * 2


@pytest.mark.parametrize("per_update", [1, 2, 100])
def test_a_completions_stream_has_each_prompts_ids_once(per_update: int) -> None:
    api = Api(says("abc xyz", end=EOS_ID, per_update=per_update))
    events = api.complete_events(prompt=["abc", "xyz"], return_token_ids=True)
    for choice, prompt in enumerate(("abc", "xyz")):
        parts = [part for event in events for part in event["choices"] if part["index"] == choice]
        assert parts[0]["prompt_token_ids"] == [*ids_of(prompt)]
        assert not any("prompt_token_ids" in part for part in parts[1:])
        assert ids_in(events, choice) == [*ids_of("abc xyz"), EOS_ID]


def test_ids_come_with_their_token_where_its_text_is_held_back() -> None:
    events = Api(says(CRAB)).chat_events(return_token_ids=True)
    assert len([event for event in events if event["choices"][0]["token_ids"]]) == len(ids_of(CRAB))
    assert (ids_in(events), text_of(events)) == ([*ids_of(CRAB)], CRAB)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_end_where_a_stop_string_does(stream: bool) -> None:
    api = Api(says("abc xyz hello", per_update=100))
    fields: dict[str, Any] = {"stop": "xyz", "return_token_ids": True}
    if stream:
        events = api.complete_events(stream_options={"include_usage": True}, **fields)
        ids, usage = ids_in(events), events[-1]["usage"]
    else:
        body = api.complete(**fields).json()
        ids, usage = body["choices"][0]["token_ids"], body["usage"]
    assert ids == [*ids_of("abc xyz hello")][: usage["completion_tokens"]]
    assert 0 < len(ids) < len(ids_of("abc xyz hello"))


def test_usage_with_each_chunk_goes_along() -> None:
    events = Api(says("abc")).chat_events(return_token_ids=True, stream_options={"continuous_usage_stats": True})
    assert events[0]["prompt_token_ids"] == CHAT_IDS
    assert all(event["usage"]["prompt_tokens"] == len(CHAT_IDS) for event in events)


def test_log_probabilities_go_along() -> None:
    body = Api(says("abc xyz", num_top=1)).chat(logprobs=True, top_logprobs=1, return_token_ids=True).json()
    [choice] = body["choices"]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


def test_nobody_gets_ids_without_asking() -> None:
    api = Api(says("abc"))
    answers = [api.chat(), api.chat(stream=True), api.complete(), api.complete(stream=True, return_token_ids=False)]
    assert not any(b"token_ids" in answer.content for answer in answers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_log_probabilities_name_tokens_by_id_on_request(stream: bool) -> None:
    api = Api(says("abc" + CRAB, num_top=2))
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    bodies = api.chat_events(**fields) if stream else [api.chat(**fields).json()]
    parts = [part["logprobs"] for body in bodies for part in body["choices"] if part["logprobs"]]
    entries = [entry for part in parts for entry in part["content"]]
    ids = ids_of("abc" + CRAB)
    assert [entry["token"] for entry in entries] == [f"token_id:{each}" for each in ids]
    assert [bytes(entry["bytes"]) for entry in entries] == [small_tokenizer().token_bytes(each) for each in ids]
    assert all(top["token"].startswith("token_id:") for entry in entries for top in entry["top_logprobs"])


def test_a_completions_log_probabilities_name_tokens_by_id_on_request() -> None:
    body = Api(says("abc xyz", num_top=1)).complete(logprobs=1, return_tokens_as_token_ids=True).json()
    told = body["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{each}" for each in ids_of("abc xyz")]
    assert all(set(top) == {token} for top, token in zip(told["top_logprobs"], told["tokens"], strict=True))


def test_the_wish_for_ids_of_tokens_says_nothing_without_log_probabilities() -> None:
    assert Api(says("abc")).chat(return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"] is None
