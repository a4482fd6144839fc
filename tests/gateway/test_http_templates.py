"""Chat templates from requests and from the server's flag, and documents."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway import request_template
from gateway.errors import ModelFolderError
from gateway.http_settings import HttpSettings
from gateway.main import http_settings
from gateway.requests import MAX_TEMPLATE_CHARS
from gateway.served_model import load_served_model
from gateway.settings import GatewaySettings
from gateway.tokenizer import TextTokenizer
from runtime.settings import SettingsError, add_flags, read
from tests.support.http_twin import COMPLETIONS, HELLO, Api, error_of
from tests.support.scripted_dispatcher import ids_of, says, small_model, small_tokenizer

TRUSTING = HttpSettings(trust_request_chat_template=True)
LONG = "abc " * 1100
DOCUMENTS = [{"title": "fox", "text": "quick"}, {"title": "dog", "text": "lazy"}]
WITH_DOCUMENTS = "{% for d in documents or [] %}{{ d.title }} {% endfor %}{{ messages[0].content }}"


def prompt_of(api: Api, **fields: Any) -> tuple[int, ...]:
    response = api.chat(**fields)
    assert response.status_code == 200, response.text
    return api.dispatcher.generations[-1].prompt_ids


def settings_of(*argv: str) -> GatewaySettings:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, GatewaySettings)
    return read(GatewaySettings, parser.parse_args(argv), {})


def folder(path: Path) -> Path:
    """A model's folder with a template that says nothing but `model`."""
    (path / "tokenizer.json").write_text(small_tokenizer().to_json())
    (path / "config.json").write_text(json.dumps({"vocab_size": 400, "max_position_embeddings": 512}))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>"}))
    (path / "chat_template.jinja").write_text("model")
    return path


def test_a_requests_template_is_refused_by_name_unless_it_is_trusted() -> None:
    api = Api(says("abc"))
    error = error_of(api.chat(chat_template="{{ 1 }}"), 400)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "chat_template")
    assert "--trust-request-chat-template" in error["message"]
    assert not api.dispatcher.generations
    assert api.chat(chat_template="").status_code == 200
    assert not http_settings(settings_of()).trust_request_chat_template
    assert http_settings(settings_of("--trust-request-chat-template")).trust_request_chat_template


def test_a_trusted_template_takes_the_place_of_the_models() -> None:
    api = Api(says("abc"), settings=TRUSTING)
    assert prompt_of(api, chat_template="abc {{ messages[0].content }}") == ids_of("abc hello")
    kwargs = {"mood": "fox"}
    assert prompt_of(api, chat_template="{{ mood }}", chat_template_kwargs=kwargs) == ids_of("fox")
    tokens = api.request("POST", "/tokenize", json={"messages": HELLO, "chat_template": "xyz"}).json()["tokens"]
    assert tuple(tokens) == ids_of("xyz")


def test_a_model_without_a_template_can_have_a_requests() -> None:
    api = Api(says("abc"), settings=TRUSTING, model=small_model(template=None))
    assert prompt_of(api, chat_template="abc") == ids_of("abc")


def test_a_requests_template_knows_the_models_special_tokens(tmp_path: Path) -> None:
    api = Api(says("abc"), settings=TRUSTING, model=load_served_model(folder(tmp_path), "toy"))
    assert prompt_of(api, chat_template="{{ bos_token }}abc") == (0, *ids_of("abc"))


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ 1",
        "{% for a in b %}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if a %}" * 3000 + "{% endif %}" * 3000,
        "x" * (MAX_TEMPLATE_CHARS + 1),
        7,
    ],
    ids=lambda source: str(source)[:12],
)
def test_a_template_that_cannot_be_compiled_is_refused_by_name(source: object) -> None:
    api = Api(says("abc"), settings=TRUSTING)
    error = error_of(api.chat(chat_template=source), 400)
    assert error["param"] == "chat_template"
    assert len(error["message"]) < 1000
    assert api.chat().status_code == 200


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ range(10 ** 9) }}"])
def test_a_trusted_template_is_in_the_sandbox_too(source: str) -> None:
    assert "template" in error_of(Api(settings=TRUSTING).chat(chat_template=source), 400)["message"]


def test_a_few_compiled_templates_are_kept() -> None:
    request_template._compiled.cache_clear()
    api = Api(says("abc"), settings=TRUSTING)
    for number in (1, 1, *range(2 * request_template.MAX_KEPT)):
        assert prompt_of(api, chat_template=f"abc{number}") == ids_of(f"abc{number}")
    info = request_template._compiled.cache_info()
    assert (info.hits, info.currsize) == (2, request_template.MAX_KEPT)


def test_documents_reach_a_template_that_uses_them() -> None:
    api = Api(says("abc"), model=small_model(template=WITH_DOCUMENTS))
    assert prompt_of(api, documents=DOCUMENTS) == ids_of("fox dog hello")
    assert prompt_of(api, documents=[]) == ids_of("hello")
    assert prompt_of(api) == ids_of("hello")


def test_documents_that_would_be_left_out_are_refused() -> None:
    error = error_of(Api().chat(documents=DOCUMENTS), 400)
    assert error["param"] == "documents"
    assert "put them into a message" in error["message"]


@pytest.mark.parametrize("documents", ["abc", [7], ["abc"], [{}] * 2000, {"a": 1}])
def test_what_are_no_documents_is_refused_by_name(documents: object) -> None:
    api = Api(model=small_model(template=WITH_DOCUMENTS))
    assert error_of(api.chat(documents=documents), 400)["param"].split(".")[0] == "documents"


@pytest.mark.parametrize("field", [{"documents": DOCUMENTS}, {"chat_template": "abc"}])
@pytest.mark.parametrize("path", [COMPLETIONS, "/tokenize"])
def test_a_text_with_what_is_for_chats_is_refused_by_name(path: str, field: dict[str, Any]) -> None:
    response = Api(settings=TRUSTING).request("POST", path, json={"prompt": "hello", **field})
    error = error_of(response, 400)
    assert (error["code"], error["param"]) == ("unsupported_parameter", next(iter(field)))


@pytest.mark.parametrize(
    ("fields", "aside"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"messages": [{"role": "user", "content": LONG}]}, True),
        ({"messages": [{"role": "user", "content": "x", "name": LONG}]}, True),
        ({"messages": [{"role": "assistant", "reasoning_content": LONG}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}, True),
        ({"chat_template_kwargs": {"mood": LONG}}, True),
        ({"chat_template_kwargs": {"moods": [LONG]}}, True),
        ({"documents": DOCUMENTS}, True),
        ({"chat_template": "abc"}, True),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_may_take_long_is_rendered_in_a_thread(
    fields: dict[str, Any], aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(says("abc"), settings=TRUSTING, model=small_model(template=WITH_DOCUMENTS))
    seen: list[bool] = []
    encode = TextTokenizer.encode

    def noted(*args: Any, **options: Any) -> tuple[int, ...]:
        seen.append(threading.current_thread() is not threading.main_thread())
        return encode(*args, **options)

    monkeypatch.setattr(TextTokenizer, "encode", noted)
    api.chat(truncate_prompt_tokens=5, **fields)
    assert seen == [aside]


def test_a_file_takes_the_place_of_the_models_template(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}mine")
    settings = settings_of("--chat-template", str(file))
    assert prompt_of(Api(says("abc"), model=load_served_model(folder(tmp_path), "toy"))) == ids_of("model")
    model = load_served_model(tmp_path, "toy", template_file=Path(settings.chat_template))
    assert prompt_of(Api(says("abc"), model=model)) == (0, *ids_of("mine"))


def test_a_file_that_is_no_template_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--chat-template: .* can't be read"):
        settings_of("--chat-template", str(tmp_path / "none"))
    for content in (b"{% if %}", b"\xff", b" \n"):
        file = tmp_path / "bad.jinja"
        file.write_bytes(content)
        with pytest.raises(ModelFolderError, match=r"chat.template"):
            load_served_model(folder(tmp_path), "toy", template_file=file)
