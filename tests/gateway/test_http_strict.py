"""Fields that nobody knows: ignored, or with --strict refused by name."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from gateway.http_settings import HttpSettings
from gateway.known_fields import HARMLESS
from gateway.main import http_settings
from gateway.requests import ChatBody, CompletionBody
from gateway.settings import GatewaySettings
from gateway.unsupported import UNSUPPORTED
from runtime.settings import read
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of
from tests.support.scripted_dispatcher import says

STRICT = HttpSettings(strict=True)
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "toy", "messages": HELLO},
    COMPLETIONS: {"model": "toy", "prompt": "hello"},
    "/tokenize": {"model": "toy", "prompt": "hello"},
    "/detokenize": {"model": "toy", "tokens": [5]},
}
ROUTES = pytest.mark.parametrize("path", BODIES)
GENERATION = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def ask(api: Api, path: str, **fields: Any) -> Any:
    return api.request("POST", path, json={**BODIES[path], **fields})


@ROUTES
def test_an_unknown_field_is_refused_by_name_where_told_and_else_ignored(path: str) -> None:
    assert ask(Api(says("abc")), path, temprature=0, no_such=1).status_code == 200
    api = Api(says("abc"), settings=STRICT)
    error = error_of(ask(api, path, temprature=0, no_such=1), 400)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "temprature")
    assert "temprature" in error["message"]
    assert not api.dispatcher.generations
    assert ask(api, path).status_code == 200


@GENERATION
def test_fields_that_clients_send_and_that_change_nothing_are_known(path: str) -> None:
    values: dict[str, Any] = dict.fromkeys(HARMLESS, "x")
    assert ask(Api(says("abc"), settings=STRICT), path, **values).status_code == 200


@pytest.mark.parametrize(("path", "model"), [(CHAT, ChatBody), (COMPLETIONS, CompletionBody)])
def test_every_field_of_ours_is_known(path: str, model: type[ChatBody] | type[CompletionBody]) -> None:
    api = Api(says("abc"), settings=STRICT)
    for name in model.model_fields:
        response = ask(api, path, **{name: [[]]})
        assert "isn't known" not in response.text


@GENERATION
def test_what_is_not_built_keeps_its_own_words(path: str) -> None:
    api = Api(says("abc"), settings=STRICT)
    for name in UNSUPPORTED:
        response = ask(api, path, **{name: {"a": 1}})
        assert "isn't known" not in error_of(response, 400)["message"]


@ROUTES
def test_an_unknown_field_that_says_nothing_is_ignored(path: str) -> None:
    assert ask(Api(says("abc"), settings=STRICT), path, no_such=None, no_other={}).status_code == 200


def test_a_field_of_another_route_is_unknown() -> None:
    assert error_of(ask(Api(settings=STRICT), CHAT, prompt="x"), 400)["param"] == "prompt"
    assert error_of(ask(Api(settings=STRICT), COMPLETIONS, messages=HELLO), 400)["param"] == "messages"


def test_a_long_name_is_cut() -> None:
    error = error_of(ask(Api(settings=STRICT), CHAT, **{"x" * 5000: 1}), 400)
    assert len(error["param"]) == 256
    assert len(error["message"]) < 500


def test_it_is_off_unless_told() -> None:
    settings = read(GatewaySettings, argparse.Namespace(), {})
    assert not http_settings(settings).strict
    settings = read(GatewaySettings, argparse.Namespace(), {"KVFERRY_STRICT": "true"})
    assert http_settings(settings).strict
