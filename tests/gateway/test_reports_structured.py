"""Public bug reports, replayed: tools and structured output, on real workers whose model would say anything."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.front_rig import all_done
from tests.support.http_twin import HELLO, Api, error_of
from tests.support.scripted_dispatcher import EOS_ID, says
from tests.support.serving import ONE, Serving, joined, served

STREAMS = pytest.mark.parametrize("stream", [False, True])
SHORT: dict[str, Any] = {"type": "string", "maxLength": 6}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Paris"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name":"clock","arguments":{}}\n</tool_call>'
WITHIN_S = 2.0


def schema_format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def says_exactly(text: str) -> dict[str, Any]:
    """As a grammar of the client's own, which tools don't get in the way of."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 200}


# -- tools -------------------------------------------------------------------------------------------


@STREAMS
def test_calls_of_one_answer_have_their_own_indices(stream: bool) -> None:
    """Replays dynamo #4723: all had index 0, and clients glued their arguments together."""

    async def work(s: Serving) -> None:
        said = await s.chatted(tools=TOOLS, stream=stream, **says_exactly(f"{CALL}\n{OTHER}"))
        assert said["calls"] is not None
        named = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in said["calls"]]
        assert named == [("get_weather", {"city": "Paris"}), ("clock", {})]
        assert len({call["id"] for call in said["calls"]}) == 2
        assert said["finish_reason"] == "tool_calls"

    served(work)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")],
    ids=["auto", "required", "named"],
)
def test_a_call_ends_the_same_streamed_and_not(choice: object, reason: str) -> None:
    """Replays vllm #25054."""
    forced = says_exactly(CALL) if choice == "auto" else {"max_tokens": 400}

    async def work(s: Serving) -> None:
        for seed in range(4):
            for stream in (False, True):
                fields = {"temperature": 1, "seed": seed, "parallel_tool_calls": False, **forced}
                said = await s.chatted(tools=TOOLS, tool_choice=choice, stream=stream, **fields)
                assert said["calls"]
                assert said["finish_reason"] == reason
                [call] = said["calls"]
                if choice == NAMED:
                    assert call["function"]["name"] == "clock"
                assert isinstance(json.loads(call["function"]["arguments"]), dict)

    served(work)


@STREAMS
def test_tools_that_may_not_be_called_are_not_and_a_call_cut_off_is_no_whole_one(stream: bool) -> None:
    """Replays FastFlowLM #728."""

    async def work(s: Serving) -> None:
        begged = await s.chatted(tools=TOOLS, tool_choice="none", stream=stream, **says_exactly(CALL))
        assert not begged["calls"]
        assert (begged["text"], begged["finish_reason"]) == (CALL, "stop")
        forced: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        whole = await s.chatted(**forced, stream=stream, max_tokens=200)
        assert (len(whole["calls"]), whole["finish_reason"]) == (1, "tool_calls")
        num_tokens = whole["usage"]["completion_tokens"]
        for max_tokens in (1, 3, num_tokens // 2, num_tokens - 10, num_tokens - 1):
            cut = await s.chatted(**forced, stream=stream, max_tokens=max_tokens)
            assert cut["finish_reason"] == "length"

    served(work)


@STREAMS
@pytest.mark.parametrize("answer", ["It is noon.", "{}", "<tool", ""])
def test_a_plain_answer_has_no_empty_list_of_calls(answer: str, stream: bool) -> None:
    """Replays vllm #44104, page-assist #614: clients took it for a call."""
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    response = Api(says(answer, end=EOS_ID)).chat(messages=history, tools=TOOLS, stream=stream)
    assert response.status_code == 200
    assert "tool_calls" not in response.text


# -- structured output -------------------------------------------------------------------------------


SCHEMAS: dict[str, dict[str, Any]] = {
    "ref": {
        "type": "object",
        "properties": {"car": {"$ref": "#/$defs/Kind"}},
        "required": ["car"],
        "additionalProperties": False,
        "$defs": {"Kind": {"enum": ["sedan", "SUV"]}},
    },
    "ref in an array": {
        "type": "array",
        "items": {"$ref": "#/$defs/Kind"},
        "minItems": 2,
        "maxItems": 3,
        "$defs": {"Kind": {"$ref": "#/$defs/Inner"}, "Inner": {"enum": ["sedan", 3, None]}},
    },
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4},
    "pattern and both lengths": {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 4},
    "format and length": {"type": "string", "format": "date", "maxLength": 10},
    "format and too small a length": {"type": "string", "format": "date", "maxLength": 4},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^2"},
    "length alone": {"type": "string", "minLength": 2, "maxLength": 5},
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_a_schema_says_is_kept_to_or_refused(kind: str) -> None:
    """Replays vllm #15236, llama.cpp #8073 ($ref to an enum), vllm #45599 (a length beside a pattern was ignored)."""
    schema = SCHEMAS[kind]
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)

    async def work(s: Serving) -> int:
        fields = {"temperature": 1, "max_tokens": 100, **schema_format(schema)}
        calls = [s.chat(seed=seed, **fields) for seed in range(20)]
        await all_done(calls)
        for call in calls:
            if call.status == 200:
                said = joined(call, "chat")
                assert said["finish_reason"] == "stop"
                assert validator.is_valid(json.loads(said["text"])), said["text"]
            else:
                assert (call.status, call.error["param"]) == (400, "response_format")
        return calls[0].status

    status = served(work)
    assert status == 200 or kind.startswith("format and")


EXPRESSIONS = {
    "open": "(",
    "backwards": "[z-a]",
    "behind": "(?<=a)b",
    "nested": "(a+)+$",
    "long": "a?" * 100_000,
    "repeats": "(a{1000}){1000}",
    "deep": "(" * 5000 + "a" + ")" * 5000,
    "bomb": "(.*a.{12}b){9}",
}


@pytest.mark.parametrize("as_pattern", [False, True], ids=["regex", "pattern"])
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=list(EXPRESSIONS))
def test_an_expression_that_is_none_or_a_bomb_harms_nobody(expression: str, as_pattern: bool) -> None:
    """Replays vllm #17313, vllm #19270: it killed the server."""
    wanted = (
        schema_format({"type": "string", "pattern": expression})
        if as_pattern
        else {"structured_outputs": {"regex": expression}}
    )
    beside: dict[str, Any] = {"stream": True, "max_tokens": 60, "ignore_eos": True}

    async def work(s: Serving) -> None:
        calm = (await s.chatted(**beside))["text"]
        other = s.chat(**beside)
        await asyncio.sleep(0.001)
        began = time.monotonic()
        call = await s.chat(max_tokens=40, **wanted).done()
        assert time.monotonic() - began < WITHIN_S
        assert call.status in (200, 400)
        if call.status == 400:
            assert call.error["type"] == "invalid_request_error"
        assert joined(await other.done(), "chat")["text"] == calm

    served(work, *ONE)


@pytest.mark.parametrize("seed", range(5))
def test_an_object_that_is_asked_for_is_one_or_a_beginning(seed: int) -> None:
    """Replays llama.cpp #24096: free text came."""

    async def work(s: Serving) -> None:
        fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "temperature": 1, "seed": seed}
        prose = [{"role": "user", "content": "Write a poem, and nothing but the poem."}]
        for max_tokens in (3, 200):
            said = await s.chatted(messages=prose, max_tokens=max_tokens, **fields)
            assert said["text"].startswith("{")
            if said["finish_reason"] == "stop":
                assert isinstance(json.loads(said["text"]), dict)
            else:
                assert said["finish_reason"] == "length"

    served(work)


def test_keywords_that_cannot_be_kept_to_are_named() -> None:
    """Replays vllm #45599: dropping one silently is worse than refusing it."""
    for schema, keyword in (
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "no-such", "maxLength": 4}, "no-such"),
    ):
        error = error_of(Api().chat(**schema_format(schema)), 400)
        assert keyword in error["message"]
