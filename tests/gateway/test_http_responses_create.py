"""POST /v1/responses: what an answer says, streamed and not, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import from_code
from gateway.generation import Generation
from gateway.http_settings import HttpSettings
from gateway.model_style import model_style
from gateway.served_model import ServedModel
from protocol.errors import Code
from protocol.sampling import NO_LOGPROBS
from tests.support.byte_tokenizer import takes
from tests.support.http_twin import Api, error_of
from tests.support.openai_schema import check
from tests.support.responses_twin import RESPONSES, ask, rebuilt, respond, response_events, text_of
from tests.support.scripted_dispatcher import EOS_ID, TEMPLATE, Step, ids_of, late, says, small_model

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"type": "function", "name": "clock"}
TOOLS = [WEATHER, CLOCK]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
WITH_LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def thinker() -> ServedModel:
    """A model whose template speaks of reasoning."""
    template = TEMPLATE + "{# </think> #}"
    return replace(small_model(template=template), style=model_style(template))


def talks(text: str, *, ends: bool = True) -> Any:
    """Say `text`, with as many log probabilities as are asked for."""

    def script(generation: Generation) -> Iterator[Step]:
        asked = generation.sampling.logprobs
        yield from says(text, end=EOS_ID if ends else None, num_top=None if asked == NO_LOGPROBS else asked)

    return script


def prompt_for(**fields: Any) -> str:
    api = Api(says("x"))
    respond(api, **fields)
    [generation] = api.dispatcher.generations
    return small_model().tokenizer.decode(list(generation.prompt_ids))


def sampling_for(**fields: Any) -> Any:
    api = Api(says("x"))
    respond(api, **fields)
    return api.dispatcher.generations[0].sampling


def plain(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without ids, which are random."""
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


def test_an_answer_is_a_response() -> None:
    api = Api(says("Paris is nice", end=EOS_ID))
    api.dispatcher.num_cached_tokens = 3
    body = respond(api, metadata={"a": "b"}, user="me", instructions="Be brief")
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "toy")
    [item] = body["output"]
    part = {"type": "output_text", "text": "Paris is nice", "annotations": [], "logprobs": []}
    assert plain([item]) == [{"type": "message", "role": "assistant", "status": "completed", "content": [part]}]
    num_prompt = len(api.dispatcher.generations[0].prompt_ids)
    num_output = len(ids_of("Paris is nice")) + 1
    assert body["usage"] == {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_output,
    }
    echoed = {"metadata": {"a": "b"}, "user": "me", "instructions": "Be brief", "store": True, "temperature": 1.0}
    assert {name: body[name] for name in echoed} == echoed
    assert body["text"]["format"] == {"type": "text"}
    assert body["error"] is body["incomplete_details"] is body["previous_response_id"] is None


@pytest.mark.parametrize(
    ("text", "kinds", "fields"),
    [
        ("Paris é 😀", ["message"], {}),
        ("Paris", ["message"], WITH_LOGPROBS),
        ("Paris é 😀", ["message"], WITH_LOGPROBS),
        (CALL, ["function_call"], {"tools": TOOLS}),
        (f"So.\n{CALL}\n{OTHER}", ["message", "function_call", "function_call"], {"tools": TOOLS, **WITH_LOGPROBS}),
        ("<think>Hm.</think>Paris", ["reasoning", "message"], {}),
        ("<think>Hm.</think>Paris", ["reasoning", "message"], WITH_LOGPROBS),
        (f"<think>Hm.</think>{CALL}", ["reasoning", "function_call"], {"tools": TOOLS}),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_adds_up_to_the_same_response(text: str, kinds: list[str], fields: dict[str, Any], ends: bool) -> None:
    model = thinker()
    whole = respond(Api(talks(text, ends=ends), model=model), **fields)
    assert [item["type"] for item in whole["output"]] == kinds
    events = response_events(Api(talks(text, ends=ends), model=model), **fields)
    last = events[-1]["response"]
    assert rebuilt(events) == last["output"]
    assert plain(last["output"]) == plain(whole["output"])
    assert last["usage"] == whole["usage"]
    assert last["status"] == whole["status"] == ("completed" if ends or not text else "incomplete")
    assert events[0]["response"]["output"] == []
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}


def test_calls_and_reasoning_are_items() -> None:
    api = Api(says(f"<think>Hm.</think>So: {CALL}\n{OTHER}", end=EOS_ID), model=thinker())
    body = respond(api, tools=TOOLS)
    reasoning, words, call, other = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert words["content"][0]["text"] == "So: "
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
    assert call["call_id"] != other["call_id"]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert body["tools"][1] == {**CLOCK, "description": None, "parameters": None, "strict": None}


def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    body = respond(Api(says("Paris")), max_output_tokens=9)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["max_output_tokens"] == 9
    assert response_events(Api(says("Paris")))[-1]["type"] == "response.incomplete"


def test_log_probabilities_stand_with_their_text() -> None:
    text = "Paris is nice"
    part = respond(Api(talks(text)), **WITH_LOGPROBS)["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]).startswith(text)
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = response_events(Api(talks(text)), **WITH_LOGPROBS)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]
    assert all(event["delta"] == "".join(entry["token"] for entry in event["logprobs"]) for event in deltas)


def test_the_fields_reach_the_workers() -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_output_tokens": 9, "seed": 3, "presence_penalty": 1.0}
    sampling = sampling_for(**given)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.max_tokens, sampling.seed, sampling.presence_penalty) == (9, 3, 1.0)


def test_items_become_the_messages_of_a_chat() -> None:
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Weather?"}, {"type": "input_text", "text": "Now"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "warm"}]},
        {"role": "developer", "content": "Be brief"},
        {"type": "message", "role": "user", "content": "Thanks"},
    ]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    told = [
        ("system", "Be kind"),
        ("user", "Weather?\nNow"),
        ("assistant", f"Let me see.\n{call}"),
        ("tool", "sunny"),
        ("tool", "warm"),
        ("system", "Be brief"),
        ("user", "Thanks"),
    ]
    wanted = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in told)
    assert prompt_for(input=items, instructions="Be kind") == f"{wanted}<|im_start|>assistant\n"


def test_tools_are_shown_and_held_to() -> None:
    assert '"name": "get_weather"' in prompt_for(tools=TOOLS)
    assert "get_weather" not in prompt_for(tools=TOOLS, tool_choice="none")
    assert sampling_for(tools=TOOLS).grammar == ""
    named = sampling_for(tools=TOOLS, tool_choice={"type": "function", "name": "clock"}).grammar
    assert takes(named, OTHER)
    assert not takes(named, f"{OTHER}\n{OTHER}")
    required = sampling_for(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).grammar
    assert takes(required, OTHER)
    assert not takes(required, "Hello")


def test_some_tools_may_be_allowed() -> None:
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}
    grammar = sampling_for(tools=TOOLS, tool_choice=some).grammar
    assert takes(grammar, OTHER)
    assert not takes(grammar, "Hello")
    assert "get_weather" not in prompt_for(tools=TOOLS, tool_choice={**some, "mode": "auto"})
    assert respond(Api(says(OTHER)), tools=TOOLS, tool_choice=some)["tool_choice"] == some


def test_an_answer_is_held_to_its_format() -> None:
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    grammar = sampling_for(text=wanted).grammar
    assert takes(grammar, '{"a":1}')
    assert not takes(grammar, "Hello")
    assert takes(sampling_for(text={"format": {"type": "json_object"}}).grammar, '{"b":1}')
    assert sampling_for(text={"format": {"type": "text"}, "verbosity": "low"}).grammar == ""
    assert respond(Api(says("x")), text=wanted)["text"]["format"] == wanted["format"]
    assert takes(sampling_for(structured_outputs={"choice": ["yes", "no"]}).grammar, "yes")


def test_a_long_conversation_is_cut_where_that_is_wanted() -> None:
    long = "hello " * 2000
    assert error_of(ask(Api(says("x")), input=long), 400)["param"] == "input"
    api = Api(says("x"))
    assert respond(api, input=long, truncation="auto", max_output_tokens=20)["truncation"] == "auto"
    assert len(api.dispatcher.generations[0].prompt_ids) == 512 - 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input.0"),
        ({"input": [{"type": 7}]}, "input.0.type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"type": "computer_call_output"}]}, "input.0"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{"}]}, "input.0.arguments"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input.0.output"),
        ({"input": [{"role": "user", "content": "x"}] * 4097}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 8193}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"include": ["everything"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({**WITH_LOGPROBS, "top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"n": 2}, "n"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "x" * 129}, "previous_response_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_or_not_built_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    api = Api(says("x"))
    error = error_of(ask(api, **fields), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    check("ErrorResponse", {"error": error})
    assert not api.dispatcher.generations


def test_hints_and_what_does_not_occur_here_change_nothing() -> None:
    given = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_key": "x",
        "safety_identifier": "y",
        "service_tier": "auto",
        "max_tool_calls": 3,
    }
    body = respond(Api(says("x"), settings=HttpSettings(strict=True)), **given)
    assert body["reasoning"] == given["reasoning"]
    assert body["max_tool_calls"] == 3
    error = error_of(ask(Api(says("x"), settings=HttpSettings(strict=True)), inputs="x"), 400)
    assert error["param"] == "inputs"


def test_a_run_that_fails_ends_a_stream_with_its_error() -> None:
    script = [*says("Paris")[:1], from_code(Code.WORKER_LOST, "gone")]
    last = response_events(Api(script))[-1]["response"]
    assert (last["status"], last["error"]) == ("failed", {"code": "server_error", "message": "gone"})
    assert error_of(ask(Api(script)), 503)["message"] == "gone"
    assert error_of(ask(Api([RuntimeError()])), 500)["type"] == "server_error"


def test_a_run_that_fails_before_its_first_token_does_so_in_a_stream_that_has_begun() -> None:
    at_once = HttpSettings(first_byte_hold_s=0.0)
    *_, last = response_events(Api(late(from_code(Code.WORKER_LOST, "gone")), settings=at_once))
    assert last["response"]["error"]["message"] == "gone"
    assert text_of(response_events(Api(late(*says("Paris")), settings=at_once))[-1]["response"]) == "Paris"


def test_other_methods_are_refused() -> None:
    assert error_of(Api().get(RESPONSES), 405)["code"] == "method_not_allowed"
    assert text_of(respond(Api(says("Paris")))) == "Paris"
