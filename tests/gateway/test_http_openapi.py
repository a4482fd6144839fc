"""Answers, chunks of streams and errors are what OpenAI's own description of its API says."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gateway.generation import Generation
from gateway.http_settings import HttpSettings
from protocol.sampling import NO_LOGPROBS
from tests.support.http_twin import Api, error_of, text_of
from tests.support.openai_schema import check, check_event
from tests.support.scripted_dispatcher import EOS_ID, Step, says

CHAT = "CreateChatCompletionResponse"
CHAT_CHUNK = "CreateChatCompletionStreamResponse"
COMPLETION = "CreateCompletionResponse"
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
EACH: dict[str, Any] = {"stream_options": {"continuous_usage_stats": True}}

CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 3, "n": 2},
    {"stop": ["nice"]},
    {"stop": ["nice"], "logprobs": True, "top_logprobs": 1},
    {"max_tokens": 1},
    {"kvferry": True},
]
COMPLETED: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"logprobs": 0},
    {"logprobs": 3, "n": 2},
    {"stop": "nice"},
    {"stop": "nice", "logprobs": 1},
    {"prompt": ["abc", "xyz"]},
    {"prompt": [[5, 6], [7]], "n": 2, "logprobs": 2},
]


def talks(generation: Generation) -> Iterator[Step]:
    """Each choice says the same, the odd ones to the end, characters of several tokens among it."""
    asked = generation.sampling.logprobs
    num_top = None if asked == NO_LOGPROBS else asked
    for choice in range(generation.num_choices):
        end = EOS_ID if choice % 2 else None
        yield from says("Paris is nice — é 😀", choice=choice, end=end, num_top=num_top)


def checked(name: str, bodies: Sequence[object]) -> None:
    """Check them all."""
    assert bodies
    for body in bodies:
        check(name, body)


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_a_chat_is_as_described(fields: dict[str, Any]) -> None:
    body = Api(talks).chat(**fields).json()
    check(CHAT, body)
    assert len(body["choices"]) == fields.get("n", 1)
    assert all((choice["logprobs"] is not None) is ("logprobs" in fields) for choice in body["choices"])


@pytest.mark.parametrize("options", [{}, USAGE, EACH], ids=["plain", "usage", "usage-each"])
@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_each_chunk_of_a_chat_is_as_described(fields: dict[str, Any], options: dict[str, Any]) -> None:
    events = Api(talks).chat_events(**fields, **options)
    checked(CHAT_CHUNK, events)
    assert text_of(events) == Api(talks).chat(**fields).json()["choices"][0]["message"]["content"]
    assert bool(events[-1].get("usage")) is bool(options)


@pytest.mark.parametrize("fields", COMPLETED, ids=str)
def test_a_completion_is_as_described(fields: dict[str, Any]) -> None:
    body = Api(talks).complete(**fields).json()
    check(COMPLETION, body)
    prompt = fields.get("prompt", "abc")
    assert len(body["choices"]) == fields.get("n", 1) * (1 if isinstance(prompt, str) else len(prompt))
    assert all((choice["logprobs"] is not None) is ("logprobs" in fields) for choice in body["choices"])


@pytest.mark.parametrize("options", [{}, USAGE, EACH], ids=["plain", "usage", "usage-each"])
@pytest.mark.parametrize("fields", COMPLETED, ids=str)
def test_each_chunk_of_a_completion_is_as_described(fields: dict[str, Any], options: dict[str, Any]) -> None:
    events = Api(talks).complete_events(**fields, **options)
    checked(COMPLETION, events)
    assert text_of(events) == Api(talks).complete(**fields).json()["choices"][0]["text"]
    assert bool(events[-1].get("usage")) is bool(options)


def test_the_models_are_as_described() -> None:
    api = Api()
    check("ListModelsResponse", api.get("/v1/models").json())
    check("Model", api.get("/v1/models/toy").json())


def test_errors_are_as_described() -> None:
    locked = Api(settings=HttpSettings(api_keys=("sk-one",)))
    for response, status in (
        (Api().chat(messages=[]), 400),
        (Api().chat(temperature=3), 400),
        (Api().complete(prompt=[-1]), 400),
        (Api().chat(model="other"), 404),
        (Api().get("/v1/models/other"), 404),
        (Api().get("/v1/nothing"), 404),
        (locked.chat(), 401),
        (locked.get("/v1/models"), 401),
    ):
        error_of(response, status)
        check("ErrorResponse", response.json())


def test_an_error_within_a_stream_is_as_described() -> None:
    *chunks, last = Api([*says("Paris")[:1], RuntimeError("lost")]).chat_events()
    checked(CHAT_CHUNK, chunks)
    check("ErrorResponse", last)


def _changed(body: dict[str, Any], path: Sequence[str | int], value: object) -> dict[str, Any]:
    """Put `value` at a place of `body`."""
    *way, last = path
    place: Any = body
    for key in way:
        place = place[key]
    place[last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("created",), "now"),
        (("object",), "chat.completion.chunk"),
        (("choices",), None),
        (("choices", 0, "index"), 0.5),
        (("choices", 0, "finish_reason"), None),
        (("choices", 0, "finish_reason"), "ended"),
        (("choices", 0, "message", "content"), 7),
        (("choices", 0, "message"), {"role": "assistant", "content": ""}),
        (("choices", 0, "logprobs", "content", 0, "bytes"), "x"),
        (("choices", 0, "logprobs", "content", 0, "top_logprobs", 1, "logprob"), None),
        (("usage", "total_tokens"), None),
    ],
    ids=str,
)
def test_a_wrong_answer_is_found(path: Sequence[str | int], value: object) -> None:
    body = Api(talks).chat(logprobs=True, top_logprobs=2).json()
    check(CHAT, body)
    with pytest.raises(AssertionError, match=f"{CHAT}.*{path[0]}"):
        check(CHAT, _changed(body, path, value))


def test_null_is_taken_where_it_is_described_alone() -> None:
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "toy"}
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
    check(CHAT_CHUNK, {**chunk, "choices": [choice], "usage": None})
    for wrong in ({"delta": None}, {"index": None}, {"logprobs": {"content": None}}):
        with pytest.raises(AssertionError, match=r"choices\[0\]"):
            check(CHAT_CHUNK, {**chunk, "choices": [{**choice, **wrong}]})


def test_an_unknown_component_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no component"):
        check("Nothing", {})


def test_an_event_is_held_to_the_component_of_its_type() -> None:
    event = {"type": "response.output_text.delta", "item_id": "a", "output_index": 0, "content_index": 0, "delta": "b"}
    check_event({**event, "sequence_number": 1, "logprobs": []})
    check("ResponseStreamEvent", {**event, "sequence_number": 1, "logprobs": []})
    with pytest.raises(AssertionError, match=r"ResponseTextDeltaEvent: 'logprobs' is a required"):
        check_event({**event, "sequence_number": 1})
