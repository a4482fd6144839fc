"""Keys open what they should and nothing else, and neither they nor prompts are ever logged or told."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.anthropic_errors import is_anthropic
from gateway.errors import from_code
from gateway.front import OPEN_ROUTES
from gateway.http_settings import HttpSettings
from gateway.key_ring import KeyRing
from gateway.keys import Key, digest_of
from gateway.limits import Limits
from gateway.settings import GatewaySettings
from protocol.errors import Code
from runtime.log_format import ROOT
from runtime.logs import setup_logs
from runtime.settings import SettingsError, read
from tests.support.dispatch_rig import run as run_virtual
from tests.support.front_rig import front
from tests.support.hostile import post, served
from tests.support.http_twin import CHAT, COMPLETIONS, Api, error_of, run
from tests.support.scripted_dispatcher import says

KEY = "kvf-the-right-key"
LOCKED = HttpSettings(api_keys=("another-key", KEY))
PROMPT = "marker of a prompt"
WRONG = "kvf-marker-of-a-wrong-key"


def every_route() -> list[tuple[str, str]]:
    """Of the API's own description, and some that it leaves out or that others serve.

    Without Anthropic's, which take keys in another header and have errors of their own: see test_http_messages.
    """
    paths = Api().get("/openapi.json").json()["paths"]
    described = [
        (method.upper(), path) for path, methods in paths.items() for method in methods if not is_anthropic(path)
    ]
    further = ["/openapi.json", "/docs", "/redoc", "/tokenize", "/detokenize", "/v1/embeddings", "/debug/ledger", "/"]
    twisted = [f"{path}/" for path in OPEN_ROUTES] + [
        "//health",
        "/health/../v1/models",
        "/HEALTH",
        "/v1/models?/health",
    ]
    return [*described, *(("GET", path) for path in (*further, *twisted))]


WITHOUT: dict[str, list[tuple[str, str]]] = {
    "no header": [],
    "a wrong key": [("authorization", f"Bearer {WRONG}")],
    "a wrong key, lower-case bearer": [("authorization", f"bearer {WRONG}")],
    "two headers, both right": [("authorization", f"Bearer {KEY}")] * 2,
    "two headers, the second right": [("authorization", f"Bearer {WRONG}"), ("authorization", f"Bearer {KEY}")],
    "two keys in one header": [("authorization", f"Bearer {KEY}, Bearer {KEY}")],
    "no scheme": [("authorization", KEY)],
    "another scheme": [("authorization", f"Basic {KEY}")],
    "nothing behind the scheme": [("authorization", "Bearer")],
    "half a key": [("authorization", f"Bearer {KEY[:-1]}")],
    "more than a key": [("authorization", f"Bearer {KEY}x")],
    "the key's case": [("authorization", f"Bearer {KEY.upper()}")],
    "another header": [("x-api-key", KEY)],
}


@pytest.mark.parametrize("headers", WITHOUT.values(), ids=list(WITHOUT))
def test_no_route_but_the_open_ones_answers_without_a_valid_key(headers: list[tuple[str, str]]) -> None:
    """Replays vllm #18893."""
    api = Api(settings=LOCKED)
    routes = every_route()
    assert len(routes) > 15
    for method, path in routes:
        response = api.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
        if path in OPEN_ROUTES:
            assert response.status_code == 200
            continue
        error = error_of(response, 401)
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error"), path
        assert response.headers["www-authenticate"] == "Bearer"
        assert KEY not in response.text
        assert WRONG not in response.text


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "])
def test_the_schemes_case_and_spaces_do_not_matter(header: str) -> None:
    response = Api(settings=LOCKED).get("/v1/models", headers={"authorization": header})
    assert response.status_code == 200


def test_a_key_in_the_address_or_the_body_is_none() -> None:
    api = Api(settings=LOCKED)
    error_of(api.get(f"/v1/models?api_key={KEY}"), 401)
    error_of(api.request("POST", CHAT, json={"api_key": KEY}), 401)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that this process logs at level debug, other libraries' included, in the shape of its stderr."""
    monkeypatch.setenv("KVFERRY_LOG_FORMAT", "json")
    stream = io.StringIO()
    before = logging.getLogger().level, logging.getLogger(ROOT).level
    handler = setup_logs("debug", "gateway", stream=stream)
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(before[0])
        logging.getLogger(ROOT).setLevel(before[1])


def tells_nothing(logs: io.StringIO, *answers: str) -> None:
    written = logs.getvalue()
    assert '"request"' in written
    for secret in (KEY, WRONG, PROMPT):
        assert secret not in written
    for answer in answers:
        assert KEY not in answer
        assert WRONG not in answer
    assert all(json.loads(line) for line in written.splitlines())


BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": PROMPT}]},
    {"messages": [{"role": "user", "content": PROMPT}], "stream": True},
    {"messages": [{"role": "user", "content": PROMPT}], "stop": [PROMPT]},
    {"messages": [{"role": PROMPT, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": PROMPT}]}]},
    {"messages": [{"role": "user", "content": 7, PROMPT: 1}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": PROMPT}}]}]},
    {"messages": [{"role": "user", "content": PROMPT * 1000}]},
    {"messages": PROMPT},
    {"messages": [PROMPT]},
    {"model": PROMPT, "messages": []},
    {"messages": [{"role": "user", "content": PROMPT}], "chat_template_kwargs": {"messages": PROMPT}},
    {"messages": [{"role": "user", "content": PROMPT}], "temperature": PROMPT},
    {"messages": [{"role": "user", "content": PROMPT}], "logit_bias": {PROMPT: 1}},
    {"messages": [{"role": "user", "content": PROMPT}], "tools": [PROMPT]},
    {"prompt": PROMPT, "suffix": PROMPT},
    {"prompt": [PROMPT, 7]},
    {PROMPT: PROMPT},
]


@pytest.mark.parametrize(
    "script",
    [says("abc"), [from_code(Code.WORKER_LOST, "gone")], [*says("abc")[:1], from_code(Code.ENGINE, "x")], [KeyError()]],
    ids=["good", "lost", "broken", "bug"],
)
def test_no_request_leaves_its_prompt_or_its_key_in_a_log(script: list[Any], logs: io.StringIO) -> None:
    answers = []
    for key in (KEY, WRONG):
        api = Api(script, keys=KeyRing([KEY]), key=key)
        for body in BODIES:
            answers += [api.request("POST", path, json=body).text for path in (CHAT, COMPLETIONS)]
        answers.append(api.request("POST", CHAT, content=f'{{"messages": "{PROMPT}'.encode()).text)
        answers.append(api.get(f"/v1/models/{PROMPT}?q={PROMPT}").text)
    tells_nothing(logs, *answers)


def test_the_answers_are_not_logged_either(logs: io.StringIO) -> None:
    Api(says("the quick brown fox")).chat()
    assert "quick" not in logs.getvalue()
    assert "request" in logs.getvalue()


def test_limits_and_a_broken_key_file_are_logged_by_name_alone(tmp_path: Path, logs: io.StringIO) -> None:
    file = tmp_path / "keys"
    now = [0.0]
    file.write_text(Key("alice", digest_of(KEY.encode()), Limits(requests_per_minute=1)).to_line())
    ring = KeyRing(file=file, clock=lambda: now[0])
    api = Api(says("abc"), keys=ring, key=KEY)
    answers = [api.chat().text, api.chat().text]
    file.write_text(f'{{"name": "{KEY}"')
    now[0] = 10.0
    answers.append(api.chat().text)
    tells_nothing(logs, *answers)
    assert '"key": "alice"' in logs.getvalue()
    assert "keys_refused" in logs.getvalue()
    assert digest_of(KEY.encode()).hex() not in logs.getvalue()


def test_the_dispatcher_and_its_workers_messages_keep_quiet_about_prompts(logs: io.StringIO) -> None:
    async def work() -> None:
        async with front(settings=HttpSettings(api_keys=(KEY,))) as f:
            p, d = await f.prefill(), await f.decode()
            messages = [{"role": "user", "content": PROMPT}]
            headers = {"authorization": f"Bearer {KEY}"}
            assert (await f.chat(headers, messages=messages).done()).status == 200
            d.habits.stall_decode_at = 2
            call = f.chat(headers, messages=messages)
            await f.rig.until(lambda: bool(d.held))
            d.die()
            p.die()
            await call.task
            await f.nothing_left()

    run_virtual(work())
    assert "request_ended" in logs.getvalue()
    tells_nothing(logs)


def test_what_is_no_http_is_not_logged_with_its_words(logs: io.StringIO) -> None:
    async def work() -> None:
        settings = HttpSettings(api_keys=(KEY,), header_timeout_s=0.1, max_header_bytes=4096)
        async with served(settings) as server:
            for request in (
                f"{PROMPT} {KEY}\r\n\r\n".encode(),
                f"GET /{WRONG} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n".encode(),
                post(PROMPT.encode() * 10, f"x-{PROMPT.replace(' ', '-')}: {KEY}", "content-length: 5", key=KEY),
                post(PROMPT.encode(), "connection: upgrade", f"upgrade: {WRONG}", key=WRONG),
                post(b"", f"x: {KEY * 500}", key=KEY),
            ):
                status, body = await server.ask(request)
                assert status >= 400
                assert KEY.encode() not in body
                await asyncio.sleep(0)

    run(work())
    tells_nothing(logs)


def test_settings_that_are_wrong_are_refused_without_the_key() -> None:
    with pytest.raises(SettingsError) as caught:
        read(GatewaySettings, argparse.Namespace(), {"KVFERRY_API_KEY": f"{KEY}\x00"})
    assert KEY not in str(caught.value)
