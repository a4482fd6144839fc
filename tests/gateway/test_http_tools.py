"""Tools in a chat: what the model is shown, what it is held to, and what a client gets, streamed and not."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.model_style import model_style
from gateway.served_model import ServedModel
from tests.support.byte_tokenizer import takes
from tests.support.http_twin import Api
from tests.support.scripted_dispatcher import EOS_ID, TEMPLATE, ids_of, says, small_model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
KNOWS_TOOLS = "{% if tools %}{{ '<tools>' + (tools | tojson) + '</tools>' }}{% endif %}<tool_call>" + TEMPLATE


def calls_of(events: list[dict[str, Any]], choice: int = 0) -> list[dict[str, Any]]:
    """Calls that a stream's deltas add up to, checked to name each once."""
    calls: list[dict[str, Any]] = []
    for event in events:
        for said in event["choices"]:
            for delta in said["delta"].get("tool_calls", ()) if said["index"] == choice else ():
                if "id" in delta:
                    assert delta["index"] == len(calls)
                    calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
                else:
                    calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def prompt_of(api: Api) -> str:
    [generation] = api.dispatcher.generations
    return small_model().tokenizer.decode(list(generation.prompt_ids))


def grammar_of(**fields: Any) -> str:
    api = Api(says("x"))
    assert api.chat(**fields).status_code == 200
    return api.dispatcher.generations[0].sampling.grammar


def names_and_arguments(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("text", [CALL, f"{CALL}\n{OTHER}", f"Let me see.\n{CALL}"], ids=["one", "two", "words"])
def test_calls_are_told_the_same_streamed_and_not(text: str) -> None:
    """Replays dynamo #4723."""
    body = Api(says(text, end=EOS_ID)).chat(tools=TOOLS).json()
    [choice] = body["choices"]
    wanted = [("get_weather", {"city": "Paris"}), ("clock", {})][: text.count("<tool_call>")]
    assert names_and_arguments(choice["message"]["tool_calls"]) == wanted
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ("Let me see.\n" if text.startswith("Let") else None)
    events = Api(says(text, end=EOS_ID)).chat_events(tools=TOOLS)
    streamed = calls_of(events)
    assert names_and_arguments(streamed) == wanted
    assert len({call["id"] for call in streamed}) == len(wanted)
    content = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert content == (choice["message"]["content"] or "")
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_without_a_call_has_no_calls() -> None:
    """Replays vllm #44104, page-assist #614."""
    for text in ("Just words.", "", "<tool_call>no json</tool_call>"):
        message = Api(says(text, end=EOS_ID)).chat(tools=TOOLS).json()["choices"][0]["message"]
        assert message["content"] == text
        assert "tool_calls" not in message
        events = Api(says(text, end=EOS_ID)).chat_events(tools=TOOLS)
        assert not calls_of(events)
        assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_call_that_is_cut_off_is_no_whole_one() -> None:
    """Replays FastFlowLM #728."""
    cut = CALL[: CALL.index("Par")]
    for stream in (False, True):
        api = Api(says(cut))
        fields = {"tools": TOOLS, "max_tokens": len(ids_of(cut))}
        if stream:
            events = api.chat_events(**fields)
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        else:
            assert api.chat(**fields).json()["choices"][0]["finish_reason"] == "length"


def test_with_none_no_tool_is_shown_or_read() -> None:
    """Replays FastFlowLM #728."""
    api = Api(says(CALL, end=EOS_ID))
    [choice] = api.chat(tools=TOOLS, tool_choice="none").json()["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert "get_weather" not in prompt_of(api)
    assert api.dispatcher.generations[0].sampling.grammar == ""


def test_a_template_that_knows_tools_is_given_them() -> None:
    model = small_model(template=KNOWS_TOOLS)
    api = Api(says("x"), model=model)
    assert api.chat(tools=TOOLS).status_code == 200
    assert "<tools>" + json.dumps(TOOLS) + "</tools>" in prompt_of(api)
    assert api.chat(tools=TOOLS, tool_choice="none").status_code == 200


def test_a_template_that_knows_none_is_told_in_words() -> None:
    api = Api(says("x"))
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [],
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    assert api.chat(messages=history, tools=TOOLS).status_code == 200
    prompt = prompt_of(api)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n")
    assert '"description": "Tells the weather"' in prompt
    assert '<tool_call>\n{"name": "clock", "arguments": {"x": 1}}\n</tool_call>' in prompt
    api = Api(says("x"))
    api.chat(tools=TOOLS)
    assert prompt_of(api).startswith("<|im_start|>system\nYou may call functions.")


def test_auto_holds_the_model_to_nothing() -> None:
    assert grammar_of(tools=TOOLS) == ""
    assert grammar_of(tools=TOOLS, tool_choice="auto") == ""


def test_required_is_a_call_of_any_and_as_many_as_may_be() -> None:
    grammar = grammar_of(tools=TOOLS, tool_choice="required")
    for text in (CALL, OTHER, f"{CALL}\n{OTHER}"):
        assert takes(grammar, text.replace('{"city": "Paris"}', '{"city":"Paris"}'))
    for wrong in ("Hello", CALL.replace("city", "town"), CALL.replace("get_weather", "clocks"), CALL[:-2]):
        assert not takes(grammar, wrong.replace(': "Paris"', ':"Paris"'))
    alone = grammar_of(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert takes(alone, OTHER)
    assert not takes(alone, f"{OTHER}\n{OTHER}")


def test_a_named_function_is_the_only_one() -> None:
    """Replays vllm #25054."""
    grammar = grammar_of(tools=TOOLS, tool_choice=NAMED)
    assert takes(grammar, OTHER)
    assert not takes(grammar, CALL.replace('": "Paris', '":"Paris'))
    for stream in (False, True):
        api = Api(says(OTHER, end=EOS_ID))
        fields = {"tools": TOOLS, "tool_choice": NAMED}
        last = api.chat_events(**fields)[-1] if stream else api.chat(**fields).json()
        assert last["choices"][0]["finish_reason"] == "stop"


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_where_some_are_allowed_and_one_must_be_called_it_is_one_of_those() -> None:
    """All are shown, so that the prompt's beginning stays the same whatever is allowed in a turn."""
    fields = {"tools": TOOLS, "tool_choice": allowed("required", "clock")}
    grammar = grammar_of(**fields)
    assert takes(grammar, f"{OTHER}\n{OTHER}")
    for wrong in ("Hello", CALL.replace('": "Paris', '":"Paris')):
        assert not takes(grammar, wrong)
    api = Api(says(OTHER, end=EOS_ID))
    assert api.chat(**fields).json()["choices"][0]["finish_reason"] == "tool_calls"
    assert "get_weather" in prompt_of(api)
    both = grammar_of(tools=TOOLS, tool_choice=allowed("required", "clock", "get_weather"), parallel_tool_calls=False)
    assert both == grammar_of(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)


def test_where_some_are_allowed_and_none_must_be_called_the_others_are_not_shown() -> None:
    api = Api(says("x"))
    assert api.chat(tools=TOOLS, tool_choice=allowed("auto", "clock")).status_code == 200
    assert api.dispatcher.generations[0].sampling.grammar == ""
    assert '"name": "clock"' in prompt_of(api)
    assert "get_weather" not in prompt_of(api)
    grammar = grammar_of(tools=TOOLS, tool_choice=allowed("auto", "clock"), response_format={"type": "json_object"})
    assert takes(grammar, OTHER)
    assert not takes(grammar, CALL.replace('": "Paris', '":"Paris'))


def test_tools_and_a_format_leave_both_open() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    grammar = grammar_of(tools=TOOLS, response_format=wanted)
    assert takes(grammar, '{"a":1}')
    assert takes(grammar, OTHER)
    assert not takes(grammar, "Hello")
    forced = grammar_of(tools=TOOLS, tool_choice=NAMED, response_format=wanted)
    assert not takes(forced, '{"a":1}')


def test_one_call_counts_where_they_may_not_be_parallel() -> None:
    text = f"{CALL}\n{OTHER}"
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    [choice] = Api(says(text, end=EOS_ID)).chat(**fields).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert len(calls_of(Api(says(text, end=EOS_ID)).chat_events(**fields))) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "clock", "no")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "clock")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": allowed("auto", "clock")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": "clock"}, "tools"),
    ],
)
def test_what_names_no_tool_is_refused(fields: dict[str, Any], param: str) -> None:
    response = Api().chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_parameters_that_cannot_be_kept_to_are_refused_where_they_must_be() -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    error = Api().chat(tools=[odd], tool_choice="required").json()["error"]
    assert error["param"] == "tools"
    assert "not" in error["message"]
    assert Api(says("x")).chat(tools=[odd]).status_code == 200
    text = {"type": "function", "function": {"name": "odd", "parameters": {"type": "string"}}}
    assert "object" in Api().chat(tools=[text], tool_choice="required").json()["error"]["message"]


# -- reasoning ----------------------------------------------------------------------------------------


def thinker(*, opened: bool = False) -> ServedModel:
    """A model whose template speaks of reasoning, or opens it."""
    template = TEMPLATE + "{# </think> #}" + ("{{ '<think>\n' }}" if opened else "")
    return replace(small_model(template=template), style=model_style(template))


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_told_apart_and_counted(opened: bool, stream: bool) -> None:
    words = "Hmm, France.\n"
    text = ("" if opened else "<think>\n") + f"{words}</think>\n\nParis"
    api = Api(says(text, end=EOS_ID), model=thinker(opened=opened))
    if stream:
        events = api.chat_events(stream_options={"include_usage": True})
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Paris"
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == words
        usage = events[-1]["usage"]
    else:
        body = api.chat().json()
        message, usage = body["choices"][0]["message"], body["usage"]
        assert message["content"] == "Paris"
        assert message["reasoning_content"] == message["reasoning"] == words
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    assert len(ids_of(words)) <= counted < usage["completion_tokens"]


def test_reasoning_that_is_not_wanted_is_left_out_and_counted() -> None:
    body = Api(says("<think>a b c</think>Paris", end=EOS_ID), model=thinker()).chat(include_reasoning=False).json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Paris", "refusal": None}
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_model_that_reasons_may_do_so_before_what_it_is_held_to() -> None:
    for opened in (False, True):
        api = Api(says("x"), model=thinker(opened=opened))
        assert api.chat(response_format={"type": "json_object"}).status_code == 200
        grammar = api.dispatcher.generations[0].sampling.grammar
        assert takes(grammar, ("" if opened else "<think>") + "a {} b</think>\n\n{}")
        assert takes(grammar, "{}") is not opened
        assert not takes(grammar, "<think>a {} b")
