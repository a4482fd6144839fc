"""POST /v1/messages and its tokens: a chat in Anthropic's words, streamed and not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.errors import from_code
from gateway.http_settings import HttpSettings
from gateway.model_style import model_style
from gateway.served_model import ServedModel
from protocol.errors import Code
from tests.support.byte_tokenizer import takes
from tests.support.http_twin import Api
from tests.support.scripted_dispatcher import EOS_ID, TEMPLATE, ids_of, late, says, small_model

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
TOOLS = [WEATHER, CLOCK]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
DELTAS = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}


def ask(api: Api, **fields: Any) -> httpx.Response:
    return api.request("POST", MESSAGES, json={"model": "toy", "max_tokens": 100, "messages": HELLO, **fields})


def message(api: Api, **fields: Any) -> dict[str, Any]:
    response = ask(api, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def events(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """Events of a stream, whose names are their types."""
    response = ask(api, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    *blocks, last = response.text.split("\n\n")
    assert last == ""
    told = []
    for block in blocks:
        name, data = block.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    return told


def rebuilt(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to, as clients build it."""
    assert [told[0]["type"], told[-2]["type"], told[-1]["type"]] == ["message_start", "message_delta", "message_stop"]
    body: dict[str, Any] = told[0]["message"]
    assert body["content"] == []
    texts: list[str] = []
    for event in told[1:-2]:
        index = event["index"]
        if event["type"] == "content_block_start":
            assert index == len(body["content"])
            body["content"].append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            texts[index] += event["delta"][DELTAS[event["delta"]["type"]]]
        else:
            block = body["content"][index]
            if block["type"] == "tool_use":
                block["input"] = json.loads(texts[index] or "{}")
            else:
                block[block["type"]] = texts[index]
    body.update(told[-2]["delta"])
    body["usage"] = told[-2]["usage"]
    return body


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Without the ids of calls, which are random."""
    calls = [block for block in body["content"] if block["type"] == "tool_use"]
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call.pop("id").startswith("toolu_") for call in calls)
    return body


def prompt_of(api: Api) -> str:
    [generation] = api.dispatcher.generations
    return small_model().tokenizer.decode(list(generation.prompt_ids))


def prompt_for(**fields: Any) -> str:
    api = Api(says("x"))
    message(api, **fields)
    return prompt_of(api)


def grammar_for(**fields: Any) -> str:
    api = Api(says("x"))
    message(api, **fields)
    return api.dispatcher.generations[0].sampling.grammar


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Check an error's form and return what it says."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    error: dict[str, Any] = body["error"]
    assert set(error) == {"type", "message"}
    return error


def thinker() -> ServedModel:
    """A model whose template speaks of reasoning, and can switch it off."""
    template = TEMPLATE + "{# </think> #}{% if enable_thinking is false %}{{ '<think></think>' }}{% endif %}"
    return replace(small_model(template=template), style=model_style(template))


def test_an_answer_is_a_message() -> None:
    api = Api(says("Paris is nice", end=EOS_ID))
    api.dispatcher.num_cached_tokens = 3
    num_prompt = len(ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
    assert message(api) == {
        "id": "msg_req0",
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": "Paris is nice"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": num_prompt - 3,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(ids_of("Paris is nice")) + 1,
        },
    }
    assert ask(api).headers["request-id"] == "req1"


@pytest.mark.parametrize(
    ("text", "kinds", "fields"),
    [
        ("Paris", ["text"], {}),
        ("", [], {}),
        (CALL, ["tool_use"], {"tools": TOOLS}),
        (f"Let me see.\n{CALL}\n{OTHER}", ["text", "tool_use", "tool_use"], {"tools": TOOLS}),
        ("<think>Hm.</think>Paris", ["thinking", "text"], {}),
        (f"<think>Hm.</think>{CALL}", ["thinking", "tool_use"], {"tools": TOOLS}),
    ],
)
def test_a_stream_adds_up_to_the_same_message(text: str, kinds: list[str], fields: dict[str, Any]) -> None:
    model = thinker()
    whole = plain(message(Api(says(text, end=EOS_ID), model=model), **fields))
    assert [block["type"] for block in whole["content"]] == kinds
    assert plain(rebuilt(events(Api(says(text, end=EOS_ID), model=model), **fields))) == whole


def test_calls_and_thinking_are_told_as_blocks() -> None:
    text = f"<think>Hm.</think>So: {CALL}"
    body = plain(message(Api(says(text, end=EOS_ID), model=thinker()), tools=TOOLS))
    assert body["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "So: "},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}},
    ]
    assert body["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_has_a_reason(stream: bool) -> None:
    def end(api: Api, **fields: Any) -> tuple[str, str | None]:
        body = rebuilt(events(api, **fields)) if stream else message(api, **fields)
        return body["stop_reason"], body["stop_sequence"]

    assert end(Api(says("abc", end=EOS_ID))) == ("end_turn", None)
    assert end(Api(says("abc"))) == ("max_tokens", None)
    assert end(Api(says("abc xyz")), stop_sequences=["x"]) == ("stop_sequence", "x")
    assert end(Api(says(CALL, end=EOS_ID)), tools=TOOLS) == ("tool_use", None)
    named = {"type": "tool", "name": "clock"}
    assert end(Api(says(OTHER, end=EOS_ID)), tools=TOOLS, tool_choice=named) == ("tool_use", None)
    assert end(Api(says(CALL, end=EOS_ID))) == ("end_turn", None)


def test_a_call_that_is_cut_off_has_no_input() -> None:
    cut = CALL[: CALL.index("Par")]
    body = message(Api(says(cut)), tools=TOOLS)
    assert body["stop_reason"] == "max_tokens"
    assert all(block["type"] != "tool_use" or block["input"] == {} for block in body["content"])


def test_the_fields_reach_the_workers() -> None:
    api = Api(says("x"))
    message(api, temperature=0.5, top_p=0.9, top_k=7, max_tokens=9, metadata={"user_id": "u"})
    sampling = api.dispatcher.generations[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 7, 9)


def test_messages_become_those_of_a_chat() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "In Paris."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "cold", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "Thanks"},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert (
        prompt_for(messages=history, system=system)
        == "".join(
            f"<|im_start|>{role}\n{text}<|im_end|>\n"
            for role, text in [
                ("system", "Be\nbrief"),
                ("user", "Weather?\nIn Paris."),
                ("assistant", f"Let me see.\n{call}"),
                ("tool", "sunny"),
                ("tool", "Error:\ncold"),
                ("tool", ""),
                ("user", "Thanks"),
            ]
        )
        + "<|im_start|>assistant\n"
    )
    assert prompt_for(system="Be brief").startswith("<|im_start|>system\nBe brief<|im_end|>\n")


def test_an_assistants_last_message_is_continued() -> None:
    told = prompt_for(messages=[*HELLO, {"role": "assistant", "content": "The capital"}])
    assert told.endswith("<|im_start|>assistant\nThe capital")


def test_tools_are_shown_and_held_to() -> None:
    assert '"name": "get_weather"' in prompt_for(tools=TOOLS)
    assert "get_weather" not in prompt_for(tools=TOOLS, tool_choice={"type": "none"})
    assert grammar_for(tools=TOOLS, tool_choice={"type": "auto"}) == ""
    any_one = grammar_for(tools=TOOLS, tool_choice={"type": "any"})
    assert takes(any_one, OTHER)
    assert takes(any_one, f"{OTHER}\n{OTHER}")
    assert not takes(any_one, "Hello")
    alone = grammar_for(tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert takes(alone, OTHER)
    assert not takes(alone, f"{OTHER}\n{OTHER}")
    named = grammar_for(tools=TOOLS, tool_choice={"type": "tool", "name": "clock"})
    assert takes(named, OTHER)
    assert not takes(named, CALL.replace('": "Paris', '":"Paris'))
    one = {"type": "auto", "disable_parallel_tool_use": True}
    body = message(Api(says(f"{CALL}\n{OTHER}", end=EOS_ID)), tools=TOOLS, tool_choice=one)
    assert [block["type"] for block in body["content"]] == ["tool_use"]


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_an_answer_is_held_to_a_schema(where: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted: dict[str, Any] = {"type": "json_schema", "schema": schema}
    grammar = grammar_for(**{where: {"format": wanted, "effort": "low"} if where == "output_config" else wanted})
    assert takes(grammar, '{"a":1}')
    assert not takes(grammar, "Hello")


def test_thinking_can_be_hidden_and_switched_off() -> None:
    text = "<think>Hm.</think>Paris"
    for thinking in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        api = Api(says(text, end=EOS_ID), model=thinker())
        assert message(api, thinking=thinking)["content"] == [{"type": "text", "text": "Paris"}]
        assert prompt_of(api).endswith("<think></think>") is (thinking["type"] == "disabled")
    shown = message(Api(says(text, end=EOS_ID), model=thinker()), thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block["type"] for block in shown["content"]] == ["thinking", "text"]


def test_tokens_are_counted_as_the_prompt_has_them() -> None:
    for fields in ({}, {"system": "Be brief", "tools": TOOLS}, {"messages": [{"role": "user", "content": "a" * 3000}]}):
        response = Api().request("POST", COUNT, json={"model": "toy", "messages": HELLO, **fields})
        told = response.json()
        assert set(told) == {"input_tokens"}
        if "messages" not in fields:
            assert told["input_tokens"] == message(Api(says("x")), **fields)["usage"]["input_tokens"]
    api = Api(says("x"))
    assert error_of(api.request("POST", COUNT, json={"model": "toy"}), 400)["message"].startswith("messages")
    assert not api.dispatcher.generations


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


def user(*blocks: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def called(given: object) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": given}]}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": user(IMAGE)}, "messages.0.content.0: blocks of type 'image'"),
        ({"messages": user({"type": "document"})}, "'document'"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]})},
            "messages.0.content.0.content.0: blocks of type 'image'",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "'server_tool_use'"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": user("x")}, "messages.0.content.0"),
        ({"messages": [7]}, "messages.0"),
        ({"messages": []}, "messages"),
        ({"messages": HELLO * 4097}, "at most 4096"),
        ({"messages": user(*[{"type": "text", "text": "x"}] * 8193)}, "at most 8192 blocks"),
        ({"messages": called(7)}, "messages.0.content.0.input"),
        ({"messages": called({})}, "tool_result"),
        ({"system": [IMAGE]}, "system.0"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "Ask for"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences: a stop string"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences: at most 16"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0: tools of type 'web_search_2025"),
        ({"tools": [{"name": "a", "input_schema": {}, "type": 5}]}, "tools.0.type"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "a", "content": {}})},
            "content.0.content",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "no"}}, "there is no tool"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: only with tools"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format"),
        ({"container": "c"}, "container isn't supported"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers isn't supported"),
        ({"context_management": {"edits": [1]}}, "context_management isn't supported"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_is_wrong_or_not_built_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    api = Api(says("x"))
    given = {"model": "toy", "max_tokens": 10, "messages": HELLO, **fields}
    error = error_of(api.request("POST", MESSAGES, json=given), 400)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert not api.dispatcher.generations


def test_errors_have_anthropics_types() -> None:
    assert error_of(ask(Api(), model="other"), 404)["type"] == "not_found_error"
    api = Api()
    api.dispatcher.refusal = from_code(Code.NO_WORKER, "no worker")
    response = ask(api)
    assert error_of(response, 503)["type"] == "overloaded_error"
    assert response.headers["retry-after"]
    assert error_of(ask(Api([RuntimeError()])), 500)["type"] == "api_error"
    assert error_of(api.get(MESSAGES), 405)["type"] == "invalid_request_error"
    assert error_of(api.get("/v1/messages/batches"), 404)["type"] == "not_found_error"
    small = Api(settings=HttpSettings(max_body_bytes=10))
    assert error_of(ask(small), 413)["type"] == "request_too_large"
    labelled = api.request("POST", MESSAGES, json={}, headers={"x-request-id": "mine"})
    assert labelled.json()["request_id"] == "mine"


def test_a_stream_that_fails_ends_in_an_error() -> None:
    told = events(Api([*says("Paris")[:1], from_code(Code.WORKER_LOST, "gone")]))
    assert told[0]["type"] == "message_start"
    assert told[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "gone"},
        "request_id": "req0",
    }


def test_a_stream_that_has_begun_before_its_first_token_says_ping() -> None:
    at_once = HttpSettings(first_byte_hold_s=0.0)
    told = events(Api(late(*says("Paris", end=EOS_ID)), settings=at_once))
    assert told[0] == {"type": "ping"}
    assert rebuilt(told[1:])["content"] == [{"type": "text", "text": "Paris"}]
    failed = events(Api(late(from_code(Code.WORKER_LOST, "gone")), settings=at_once))
    assert [event["type"] for event in failed] == ["ping", "error"]


def test_a_key_may_come_in_either_header() -> None:
    key = "kvf-the-right-key"
    locked = HttpSettings(api_keys=(key,))
    body = {"model": "toy", "max_tokens": 5, "messages": HELLO}

    def status(path: str, *headers: tuple[str, str]) -> int:
        return Api(says("x"), settings=locked).request("POST", path, json=body, headers=list(headers)).status_code

    for path in (MESSAGES, COUNT):
        assert status(path, ("x-api-key", key)) == 200
        assert status(path, ("authorization", f"Bearer {key}")) == 200
        assert status(path, ("x-api-key", "other")) == 401
        assert status(path, ("x-api-key", key), ("x-api-key", key)) == 401
        assert status(path, ("authorization", "Bearer other"), ("x-api-key", key)) == 401
        assert status(path) == 401
    assert status("/v1/chat/completions", ("x-api-key", key)) == 401
    refused = error_of(Api(settings=locked).request("POST", MESSAGES, json=body), 401)
    assert refused["type"] == "authentication_error"
    assert "x-api-key" in refused["message"]


def test_unknown_fields_are_refused_where_told() -> None:
    strict = HttpSettings(strict=True)
    error = error_of(ask(Api(says("x"), settings=strict), max_token=5), 400)
    assert "max_token " in error["message"]
    assert message(Api(says("x"), settings=strict), metadata={"user_id": "u"}, service_tier="auto")
