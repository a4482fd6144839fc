"""Log probabilities line up with the text, in both shapes."""

from typing import Any

import pytest

from gateway.generation import Update
from gateway.logprobs import token_text
from protocol.sampling import TokenLogprob
from tests.support.http_twin import Api, text_of
from tests.support.scripted_dispatcher import EOS_ID, NO_TOKEN, ids_of, says, small_tokenizer

CRAB = "a🦀b 你"


def entries_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join a chat stream's entries."""
    parts = [event["choices"][0]["logprobs"] for event in events if event["choices"]]
    return [entry for part in parts if part for entry in part["content"]]


def test_a_chat_has_one_entry_a_token() -> None:
    """Replays vllm #4795."""
    body = Api(says("abc", num_top=0)).chat(logprobs=True).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == len(ids_of("abc"))
    assert "".join(entry["token"] for entry in entries) == "abc"
    assert all(entry["top_logprobs"] == [] for entry in entries)
    assert all(entry["logprob"] == -1.0 for entry in entries)


def test_alternatives_are_named_sorted_and_contain_the_chosen_value() -> None:
    body = Api(says("abc", num_top=20)).chat(logprobs=True, top_logprobs=20).json()
    for entry in body["choices"][0]["logprobs"]["content"]:
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        same = [each for each in entry["top_logprobs"] if each["token"] == entry["token"]]
        assert same[0]["logprob"] == entry["logprob"]


def test_special_and_unused_ids_have_a_name() -> None:
    """Replays vllm #9463, vllm #17421."""
    names = [token_text(small_tokenizer(), token_id) for token_id in (EOS_ID, 10**6)]
    assert names == [("<|im_end|>", list(b"<|im_end|>")), ("token_id:1000000", None)]


def test_a_part_of_a_character_is_written_as_bytes() -> None:
    body = Api(says(CRAB, num_top=1)).chat(logprobs=True, top_logprobs=1).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == CRAB
    assert any(entry["token"].startswith("bytes:\\xf0") for entry in entries)


@pytest.mark.parametrize("per_update", [1, 2, 4])
@pytest.mark.parametrize("stop", [None, "zzz", "b 你 and more"])
def test_in_a_stream_each_piece_is_the_text_of_its_entries(per_update: int, stop: str | None) -> None:
    events = Api(says(CRAB, num_top=0, per_update=per_update)).chat_events(logprobs=True, stop=stop)
    assert text_of(events) == CRAB
    assert len(entries_of(events)) == len(ids_of(CRAB))
    for event in events:
        raw = b"".join(bytes(entry["bytes"]) for entry in entries_of([event]))
        assert raw.decode() == text_of([event])


def test_entries_count_what_usage_counts() -> None:
    api = Api(says("abc xyz", end=EOS_ID, num_top=0))
    events = api.chat_events(logprobs=True, stream_options={"include_usage": True})
    assert len(entries_of(events)) == events[-1]["usage"]["completion_tokens"]
    api = Api(says([ids_of(char)[0] for char in "ABCDEF"], num_top=0))
    body = api.chat(logprobs=True, stop="CD").json()
    assert len(body["choices"][0]["logprobs"]["content"]) == body["usage"]["completion_tokens"] == 4


def test_minus_infinity_becomes_a_number() -> None:
    step = Update(0, 0, ids_of("a"), (TokenLogprob(float("-inf")),), "length", NO_TOKEN)
    [entry] = Api([step]).chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert entry["logprob"] == -9999.0


def test_completions_have_parallel_lists() -> None:
    body = Api(says(CRAB, num_top=2)).complete(logprobs=2).json()
    part = body["choices"][0]["logprobs"]
    num_tokens = len(ids_of(CRAB))
    assert {len(values) for values in part.values()} == {num_tokens}
    assert part["text_offset"][:2] == [0, 1]
    assert part["text_offset"] == sorted(part["text_offset"])
    assert all(token in top for token, top in zip(part["tokens"], part["top_logprobs"], strict=True))
    assert set(part["token_logprobs"]) == {-1.0}


def test_completions_without_alternatives_report_the_chosen_token() -> None:
    part = Api(says("abc", num_top=0)).complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert [list(top) for top in part["top_logprobs"]] == [[token] for token in part["tokens"]]


def test_a_streamed_completion_says_the_same() -> None:
    whole = Api(says(CRAB, num_top=2)).complete(logprobs=2).json()["choices"][0]
    events = Api(says(CRAB, num_top=2)).complete_events(logprobs=2)
    assert text_of(events) == whole["text"]
    parts = [event["choices"][0]["logprobs"] for event in events]
    joined: dict[str, list[Any]] = {key: [] for key in whole["logprobs"]}
    for part in parts:
        for key, values in (part or {}).items():
            joined[key] += values
    assert joined == whole["logprobs"]


def test_without_the_wish_there_are_none() -> None:
    body = Api(says("abc")).complete().json()
    assert body["choices"][0]["logprobs"] is None
