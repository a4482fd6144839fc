"""POST /v1/chat/completions, streamed and not."""

from tests.support.http_twin import Api, events_of, text_of
from tests.support.scripted_dispatcher import EOS_ID, ids_of, says


def test_an_answer_is_the_text_of_its_tokens() -> None:
    api = Api(says("Paris is nice", end=EOS_ID))
    body = api.chat().json()
    assert body["object"] == "chat.completion"
    assert body["id"] == "chatcmpl-req0"
    assert body["model"] == "toy"
    [choice] = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Paris is nice",
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None


def test_usage_counts_prompt_and_answer() -> None:
    api = Api(says("Paris", end=EOS_ID))
    api.dispatcher.num_cached_tokens = 3
    usage = api.chat().json()["usage"]
    num_prompt = len(ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
    num_answer = len(ids_of("Paris")) + 1
    assert usage == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_stream_says_the_same_in_pieces() -> None:
    api = Api(says("Paris is nice", end=EOS_ID))
    events = api.chat_events()
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == "Paris is nice"
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert events[-1]["choices"][0]["delta"] == {}
    assert "usage" not in events[-1]


def test_usage_comes_on_a_chunk_of_its_own() -> None:
    """Replays llama.cpp #15443."""
    api = Api(says("Paris"))
    events = api.chat_events(stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == len(ids_of("Paris"))
    assert not any(event.get("usage") for event in events[:-1])


def test_usage_so_far_comes_with_each_chunk_on_request() -> None:
    api = Api(says("abc xyz"))
    events = api.chat_events(stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(ids_of("abc xyz"))


def test_the_headers_name_the_path_and_the_request() -> None:
    for stream in (False, True):
        response = Api(says("Paris")).chat(stream=stream)
        assert response.headers["x-kvferry-path"] == "split"
        assert response.headers["x-kvferry-request-id"] == "req0"


def test_the_clients_label_is_echoed_and_handed_on() -> None:
    api = Api(says("Paris"))
    response = api.request(
        "POST",
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hello"}]},
        headers={"x-request-id": "mine"},
    )
    assert response.headers["x-request-id"] == "mine"
    assert api.dispatcher.generations[0].label == "mine"


def test_each_choice_of_a_stream_has_a_role_and_one_end() -> None:
    steps = [
        step for trio in zip(*(says("abc xyz", choice=choice) for choice in range(3)), strict=True) for step in trio
    ]
    events = events_of(Api(steps).chat(stream=True, n=3, max_tokens=5))
    for choice in range(3):
        parts = [part for event in events for part in event["choices"] if part["index"] == choice]
        assert parts[0]["delta"]["role"] == "assistant"
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]
        assert text_of(events, choice) == "abc xyz"


def test_a_choice_that_ends_early_says_so_at_once() -> None:
    """Replays openai-python #434."""
    steps = [*says("abc", choice=1, end=EOS_ID), *says("hello world", choice=0)]
    events = events_of(Api(steps).chat(stream=True, n=2))
    ends = [
        (place, part["index"])
        for place, event in enumerate(events)
        for part in event["choices"]
        if part["finish_reason"]
    ]
    assert [index for _, index in ends] == [1, 0]
    assert ends[0][0] < len(events) - 2


def test_one_token_is_a_whole_answer() -> None:
    [token_id] = ids_of("a")
    body = Api(says([token_id])).chat(max_tokens=1).json()
    assert body["choices"][0]["message"]["content"] == "a"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 1


def test_an_end_token_at_once_is_an_empty_answer() -> None:
    body = Api(says([], end=EOS_ID)).chat().json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 1
