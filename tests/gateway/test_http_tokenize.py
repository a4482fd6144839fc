"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from gateway.http_settings import HttpSettings
from gateway.served_model import ServedModel
from gateway.tokenizer import TextTokenizer
from tests.support.http_twin import HELLO, Api, error_of
from tests.support.scripted_dispatcher import EOS_ID, ids_of, says, small_model, small_tokenizer

LOCKED = HttpSettings(api_keys=("right",))
VOCAB = small_tokenizer().vocab_size
CHAT_TEXT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def tokenize(api: Api, **fields: Any) -> httpx.Response:
    return api.request("POST", "/tokenize", json=fields)


def detokenize(api: Api, tokens: object, **fields: Any) -> httpx.Response:
    return api.request("POST", "/detokenize", json={"tokens": tokens, **fields})


def model_with_bos() -> ServedModel:
    """The small model, whose tokenizer writes an end-of-text before each text."""
    inner = Tokenizer.from_str(small_tokenizer().to_json())
    inner.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    model = small_model()
    return ServedModel("toy", TextTokenizer(inner), model.template, (EOS_ID,), VOCAB, 512, 1_700_000_000)


def test_a_text_becomes_its_ids() -> None:
    body = tokenize(Api(), prompt="hello world").json()
    ids = list(ids_of("hello world"))
    assert body == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}


def test_an_empty_text_has_no_ids() -> None:
    assert tokenize(Api(), prompt="").json()["count"] == 0


def test_a_chat_becomes_the_ids_that_a_request_for_an_answer_would_have() -> None:
    """Replays vllm #27486, abetlen/llama-cpp-python #1501: usage and the tokenizer's route say the same."""
    api = Api(says("abc"), model=model_with_bos())
    body = tokenize(api, model="toy", messages=HELLO).json()
    assert body["tokens"] == list(ids_of(CHAT_TEXT))
    assert body["count"] == api.chat().json()["usage"]["prompt_tokens"]
    assert tuple(body["tokens"]) == api.dispatcher.generations[0].prompt_ids


def test_special_tokens_are_added_to_texts_and_not_to_chats_unless_asked() -> None:
    api = Api(model=model_with_bos())
    assert tokenize(api, prompt="abc").json()["tokens"] == [0, *ids_of("abc")]
    assert tokenize(api, prompt="abc", add_special_tokens=False).json()["tokens"] == [*ids_of("abc")]
    assert tokenize(api, messages=HELLO, add_special_tokens=True).json()["tokens"] == [0, *ids_of(CHAT_TEXT)]


def test_a_chats_options_are_those_of_a_request_for_an_answer() -> None:
    api = Api()
    shut = tokenize(api, messages=HELLO, add_generation_prompt=False).json()["tokens"]
    assert shut == list(ids_of("<|im_start|>user\nhello<|im_end|>\n"))
    open_end = [*HELLO, {"role": "assistant", "content": "The sum is"}]
    ids = tokenize(api, messages=open_end, add_generation_prompt=False, continue_final_message=True).json()["tokens"]
    assert ids == list(ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nThe sum is"))
    assert (
        error_of(tokenize(api, messages=HELLO, continue_final_message=True), 400)["param"] == "continue_final_message"
    )
    api = Api(model=small_model(template="{{ mood }}"))
    assert tokenize(api, messages=HELLO, chat_template_kwargs={"mood": "abc"}).json()["tokens"] == list(ids_of("abc"))


def test_the_vocabularys_own_writing_comes_on_request() -> None:
    body = tokenize(Api(), prompt="is Paris", return_token_strs=True).json()
    assert "".join(body["token_strs"]) == "is\u0120Paris"
    assert len(body["token_strs"]) == body["count"]
    assert tokenize(Api(), messages=HELLO, return_token_strs=True).json()["token_strs"][0] == "<|im_start|>"


def test_a_text_longer_than_the_context_is_counted_too() -> None:
    api = Api(model=small_model(max_model_len=8))
    assert tokenize(api, prompt="abc " * 5000).json()["count"] > 5000
    long = [{"role": "user", "content": "abc " * 5000}]
    assert tokenize(api, messages=long).json()["count"] > 5000


def test_the_context_is_that_which_is_served_now() -> None:
    api = Api()
    api.dispatcher.longest = 100
    assert tokenize(api, prompt="abc").json()["max_model_len"] == 100


def test_ids_become_the_text_that_they_came_from() -> None:
    text = "<|im_start|>user\nWhat is \u00fc \U0001f980?<|im_end|>"
    assert detokenize(Api(), list(ids_of(text)), model="toy").json() == {"prompt": text}
    assert detokenize(Api(), []).json() == {"prompt": ""}


def test_many_ids_come_and_go_too() -> None:
    text = "hello world " * 2000
    ids = tokenize(Api(), prompt=text).json()["tokens"]
    assert detokenize(Api(), ids).json()["prompt"] == text


def test_a_part_of_a_character_has_a_sign_in_its_place() -> None:
    assert detokenize(Api(), list(ids_of("\U0001f980"))[:1]).json()["prompt"] == "\ufffd"


@pytest.mark.parametrize("tokens", [[VOCAB], [-1], ["1"], [True], [1.5], [[1]], [None], "abc", 7, [5] * 2000 + [-1]])
def test_what_is_no_list_of_ids_is_refused_by_name(tokens: object) -> None:
    assert error_of(detokenize(Api(), tokens), 400)["param"] == "tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["abc"]}, "prompt"),
        ({"prompt": "abc", "messages": HELLO}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": HELLO, "return_token_strs": "yes"}, "return_token_strs"),
        ({"prompt": "abc", "add_special_tokens": 1}, "add_special_tokens"),
    ],
)
def test_a_field_at_fault_is_named(fields: dict[str, Any], param: str) -> None:
    assert error_of(tokenize(Api(), **fields), 400)["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body", [b"not json", b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000], ids=lambda body: repr(body[:8])
)
def test_what_is_no_request_gets_one_shape_of_error(path: str, body: bytes) -> None:
    error_of(Api().request("POST", path, content=body), 400)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_another_model_is_not_found(path: str) -> None:
    fields = {"model": "no-such", "prompt": "abc", "tokens": [1]}
    assert error_of(Api().request("POST", path, json=fields), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_they_need_a_key_before_the_body_is_read(path: str) -> None:
    error_of(Api(settings=LOCKED).request("POST", path, content=b"not json"), 401)
    assert Api(settings=LOCKED, key="right").request("POST", path, json={"prompt": "a", "tokens": [1]}).is_success


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_body_over_the_limit_or_too_slow_is_refused(path: str) -> None:
    async def slow() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    api = Api(settings=HttpSettings(max_body_bytes=50, body_timeout_s=0.01))
    error_of(api.request("POST", path, content=b" " * 51), 413)
    error_of(api.request("POST", path, content=slow()), 408)


def test_a_model_without_a_template_tokenizes_texts_alone() -> None:
    api = Api(model=small_model(template=None))
    assert tokenize(api, prompt="abc").is_success
    assert "no chat template" in error_of(tokenize(api, messages=HELLO), 400)["message"]


def test_tools_are_part_of_a_chat() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    alone = tokenize(Api(), messages=HELLO).json()["count"]
    assert tokenize(Api(), messages=HELLO, tools=[tool]).json()["count"] > alone
    assert tokenize(Api(), messages=HELLO, tools=[tool], tool_choice="none").json()["count"] == alone


def test_each_is_one_line_in_the_log_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        tokenize(Api(), prompt="marker of a prompt")
    [record] = [each for each in caplog.records if each.getMessage() == "request"]
    assert record.__dict__["fields"]["route"] == "/tokenize"
    assert "marker" not in str(record.__dict__)
