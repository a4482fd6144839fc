"""What can be judged before a worker is refused in OpenAI's shape, and nothing is sent."""

import re
from typing import Any

import httpx
import pytest

from gateway.http_settings import HttpSettings
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of
from tests.support.scripted_dispatcher import says, small_model, small_tokenizer

VOCAB = small_tokenizer().vocab_size


def refused(api: Api, response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Check that nothing was sent, and return the error."""
    error = error_of(response, status)
    assert error["type"] == "invalid_request_error"
    assert api.dispatcher.generations == []
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"model": "toy"}',
        b'{"model": "toy", "messages": []}',
        b'{"model": "toy", "messages": "hi"}',
        b'{"model": "toy", "messages": [1]}',
        b"\xff\xfe",
        b'\xef\xbb\xbf{"model": "toy"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"model": "\\ud800"}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_a_body_that_is_no_request_is_refused(path: str, body: bytes) -> None:
    """Replays tt-inference-server #2771."""
    api = Api()
    refused(api, api.request("POST", path, content=body))


def test_the_content_type_does_not_matter() -> None:
    api = Api(says("abc"))
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    response = api.request("POST", CHAT, content=body, headers={"content-type": "text/plain"})
    assert response.status_code == 200


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "0"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "7"}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": "a" * 2000}, "stop"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"logit_bias": {str(VOCAB): 1}}, "logit_bias"),
    ({"logit_bias": {"1000000000": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 500}}, "logit_bias"),
    ({"logit_bias": {str(each): 1 for each in range(2000)}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "yes"}, "stream"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"return_tokens_as_token_ids": "yes"}, "return_tokens_as_token_ids"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("fields", "param"), SHARED, ids=lambda value: str(value)[:40])
def test_a_value_out_of_bounds_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    api = Api()
    prompt: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    error = refused(api, api.request("POST", path, json={**prompt, **fields}))
    assert error["param"].split(".")[0] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_chat_field_out_of_bounds_is_named(fields: dict[str, Any], param: str) -> None:
    api = Api()
    assert refused(api, api.chat(**fields))["param"] == param


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [-1], [[-1]], ["a", ""], ["a", 1], [1, "a"], [VOCAB], [1.5], 7, [True]]
)
def test_a_prompt_that_is_none_of_the_four_forms_is_refused(prompt: object) -> None:
    """Replays vllm #35231, vllm #51795."""
    api = Api()
    assert refused(api, api.complete(prompt=prompt))["param"] == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_beam_search", True),
        ("best_of", 2),
        ("suffix", "x"),
        ("audio", {"voice": "x"}),
        ("kv_transfer_params", {"remote_host": "10.0.0.1"}),
        ("chat_template", "{{ 1 }}"),
    ],
)
def test_a_field_that_is_not_built_is_refused_by_name(field: str, value: object) -> None:
    for path in (CHAT, COMPLETIONS):
        api = Api()
        body = {"messages": HELLO, "prompt": "hello", field: value}
        error = refused(api, api.request("POST", path, json=body))
        assert error["code"] == "unsupported_parameter"
        assert error["param"] == field


def test_an_image_is_refused_by_name() -> None:
    api = Api()
    part = {"type": "image_url", "image_url": {"url": "http://x"}}
    error = refused(api, api.chat(messages=[{"role": "user", "content": [part]}]))
    assert error["code"] == "unsupported_parameter"
    assert "image_url" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("empty", [{}, None])
def test_fields_that_ask_for_nothing_are_taken(path: str, empty: object) -> None:
    names = ["logit_bias", "stop", "tools", "functions", "response_format", "stream_options"]
    names += ["user", "metadata", "seed", "max_tokens", "temperature", "logprobs"]
    api = Api(says("abc"))
    body = {"messages": HELLO, "prompt": "hello", **dict.fromkeys(names, empty), "no_such": 1}
    assert api.request("POST", path, json=body).status_code == 200


def test_tools_that_may_not_be_called_are_taken() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert Api(says("abc")).chat(tools=[tool], tool_choice="none").status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_another_model_is_not_found(path: str, stream: bool) -> None:
    """Replays worker-vllm #57."""
    api = Api()
    body = {"model": "no-such", "messages": HELLO, "prompt": "hello", "stream": stream}
    error = refused(api, api.request("POST", path, json=body), 404)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_before_any_event(stream: bool) -> None:
    """Replays llama.cpp #14566."""
    api = Api(model=small_model(max_model_len=64))
    for response, param in (
        (api.chat(messages=[{"role": "user", "content": "a " * 200}], stream=stream), "messages"),
        (api.complete(prompt=[5] * 64, stream=stream), "prompt"),
        (api.complete(prompt="a " * 200, stream=stream), "prompt"),
        (api.complete(prompt="a " * 1_000_000, stream=stream), "prompt"),
    ):
        error = refused(api, response)
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert error["message"].startswith("This model's maximum context length is 64 tokens. The prompt is too long")
        found = re.search(r"prompt is too long: \D*(\d+) tokens > (\d+) maximum", error["message"])
        assert found
        assert int(found[1]) > int(found[2]) == 63, "as clients for Anthropic's read it"


def test_more_tokens_than_the_context_has_left_are_refused() -> None:
    api = Api(model=small_model(max_model_len=64))
    for response, param in (
        (api.complete(prompt=[5] * 60, max_tokens=5), "max_tokens"),
        (api.chat(max_completion_tokens=63), "max_completion_tokens"),
    ):
        error = refused(api, response)
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert error["message"].startswith("This model's maximum context length is 64 tokens")
        words = r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)"
        found = re.search(words, error["message"])
        assert found
        assert int(found[1]) + int(found[2]) > int(found[3]) == 64, "as clients for Anthropic's read it"


def test_prompts_times_choices_are_bounded() -> None:
    api = Api()
    assert refused(api, api.complete(prompt=["a"] * 65, n=2))["param"] == "prompt"


def test_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 1000

    api = Api(settings=HttpSettings(max_body_bytes=5000))
    assert refused(api, api.request("POST", CHAT, content=b" " * 5001), 413)["code"]
    assert refused(api, api.request("POST", CHAT, content=endless()), 413)["code"]
