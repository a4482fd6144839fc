"""Routes beside generation, keys, and errors of the server itself."""

import asyncio
import json
import logging
import re

import httpx
import pytest

from gateway.errors import GatewayError, from_code
from gateway.health import Health, Reason
from gateway.http_settings import HttpSettings
from protocol.errors import Code
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of, events_of, run, until
from tests.support.scripted_dispatcher import ids_of, says, small_model

NO_PREFILL = Reason("no_prefill_worker", "no prefill worker is ready")
LOCKED = HttpSettings(api_keys=("first-key", "second-key"))


def test_the_model_is_listed_and_described() -> None:
    api = Api()
    [card] = api.get("/v1/models").json()["data"]
    assert card["id"] == "toy"
    assert card["object"] == "model"
    assert card["created"] == 1_700_000_000
    assert card["max_model_len"] == 512
    assert api.get("/v1/models/toy").json() == card
    assert error_of(api.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


def test_health_says_which_paths_can_generate_and_what_is_missing() -> None:
    api = Api()
    api.dispatcher.state = Health("degraded", ("fallback",), 0, 2, reasons=(NO_PREFILL,))
    response = api.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "status": "degraded",
        "paths": ["fallback"],
        "prefill_workers": 0,
        "decode_workers": 2,
        "model": "toy",
        "draining": False,
        "reasons": [{"code": "no_prefill_worker", "message": "no prefill worker is ready"}],
    }
    assert api.get("/ready").json() == {
        "status": "ready",
        "bus": "connected",
        "paths": ["fallback"],
        "reasons": [{"code": "no_prefill_worker", "message": "no prefill worker is ready"}],
    }


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_both_are_503_when_no_path_can_generate(path: str) -> None:
    api = Api()
    api.dispatcher.state = Health("unavailable", (), 1, 0)
    response = api.get(path)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["status"] == {"/health": "unavailable", "/ready": "not_ready"}[path]
    assert api.get("/live").status_code == 200


def test_a_gateway_that_drains_is_alive_and_healthy_and_not_ready() -> None:
    api = Api()
    api.dispatcher.state = Health("ok", ("split",), 1, 1, draining=True)
    assert [api.get(path).status_code for path in ("/live", "/health", "/ready")] == [200, 200, 503]
    assert api.get("/ready").json()["status"] == "draining"


def test_a_gateway_whose_bus_is_away_is_not_ready() -> None:
    api = Api()
    api.dispatcher.state = Health("ok", ("split",), 1, 1, connected=False)
    response = api.get("/ready")
    assert response.status_code == 503
    assert response.json()["bus"] == "away"
    assert api.get("/live").status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_ping_is_answered_as_health_is(method: str) -> None:
    api = Api(settings=LOCKED)
    assert api.request(method, "/ping").json() == api.get("/health").json()
    api.dispatcher.state = Health("unavailable", (), 1, 0)
    response = api.request(method, "/ping")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_the_load_is_the_requests_that_are_open_beside_the_question() -> None:
    go_on = asyncio.Event()
    api = Api([*says("abc xyz")[:1], go_on, *says("abc xyz")[1:]])

    async def load(client: httpx.AsyncClient) -> int:
        number: int = (await client.get("/load")).json()["server_load"]
        return number

    async def work() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://test") as client:
            assert await load(client) == 0
            calls = [asyncio.ensure_future(client.post(CHAT, json={"messages": HELLO})) for _ in range(3)]
            await until(lambda: len(api.dispatcher.streams) == 3)
            assert await load(client) == 3
            go_on.set()
            await asyncio.gather(*calls)
            assert await load(client) == 0

    run(work())


def test_the_version_is_named() -> None:
    assert isinstance(Api().get("/version").json()["version"], str)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_an_unknown_route_or_method_has_the_same_shape_of_error(method: str, path: str, status: int) -> None:
    assert error_of(Api().request(method, path), status)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/toy", "/openapi.json", "/nothing"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "first-key", "Basic first-key", "Bearer"])
def test_a_route_without_a_valid_key_is_refused(path: str, header: str | None) -> None:
    api = Api(settings=LOCKED)
    response = api.get(path, headers={"authorization": header} if header else {})
    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_two_keys_in_one_request_are_refused() -> None:
    headers = [("authorization", "Bearer first-key"), ("authorization", "Bearer first-key")]
    error_of(Api(settings=LOCKED).get("/v1/models", headers=headers), 401)


def test_generation_needs_a_key_before_the_body_is_read() -> None:
    api = Api(settings=LOCKED)
    for path in (CHAT, COMPLETIONS):
        error_of(api.request("POST", path, content=b"not json"), 401)


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key"])
def test_any_of_the_keys_opens(header: str) -> None:
    response = Api(settings=LOCKED).get("/v1/models", headers={"authorization": header})
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ping", "/live", "/ready", "/metrics", "/load", "/version"])
def test_probes_need_no_key(path: str) -> None:
    assert Api(settings=LOCKED).get(path).status_code == 200


def test_the_description_names_the_bodies_fields() -> None:
    paths = Api().get("/openapi.json").json()["paths"]
    body = paths[CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in body["properties"]
    assert not set(re.findall(r"#/(?:\$defs|components/schemas)/(?!Error)\w+", json.dumps(paths)))
    options = body["properties"]["stream_options"]["anyOf"]
    assert [part.get("title") for part in options[0]["anyOf"]] == ["StreamOptions", None]
    assert {"type": "null"} in options
    assert body["properties"]["messages"]["items"]["required"] == ["role"]
    text, chat = paths["/tokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert (text["required"], chat["required"]) == (["prompt"], ["messages"])
    tokens = paths["/detokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert tokens["properties"]["tokens"]["type"] == "array"
    assert set(paths["/ping"]) == {"get", "post"}
    assert "/load" in paths


@pytest.mark.parametrize(
    ("code", "status", "retry"),
    [(Code.QUEUE_FULL, 429, "1"), (Code.NO_WORKER, 503, "1"), (Code.NEVER_FITS, 400, None)],
)
def test_a_refusal_keeps_its_status_and_says_when_to_come_back(code: Code, status: int, retry: str | None) -> None:
    for stream in (False, True):
        api = Api()
        api.dispatcher.refusal = from_code(code, "not now")
        response = api.chat(stream=stream)
        assert error_of(response, status)["code"] == code
        assert response.headers.get("retry-after") == retry


def test_an_error_that_comes_again_says_that_it_will() -> None:
    response = Api([from_code(Code.ENGINE, "broken")]).chat()
    assert error_of(response, 500)["code"] == "engine_failed"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_is_a_plain_status(stream: bool) -> None:
    api = Api([from_code(Code.TRANSFER, "lost")])
    error_of(api.chat(stream=stream), 503)
    assert api.dispatcher.streams[0].cancelled


def test_an_error_in_mid_stream_is_an_event_and_the_stream_ends() -> None:
    api = Api([*says("abc xyz")[:2], from_code(Code.WORKER_LOST, "gone")])
    events = events_of(api.chat(stream=True))
    assert events[-1] == {"error": {"message": "gone", "type": "server_error", "param": None, "code": "worker_lost"}}
    assert api.dispatcher.streams[0].cancelled


def test_an_error_after_the_first_token_is_a_status_when_not_streamed() -> None:
    api = Api([*says("abc xyz")[:2], GatewayError(504, "late", type="server_error", code="x")])
    assert error_of(api.chat(), 504)["code"] == "x"


@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_is_a_500_that_tells_nothing_and_is_logged(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    api = Api([ValueError("secret")])
    with caplog.at_level(logging.ERROR):
        error = error_of(api.chat(stream=stream), 500)
    assert error["code"] == "internal_error"
    assert "secret" not in error["message"]
    assert "secret" in caplog.text


def test_updates_that_stop_early_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        error_of(Api(says("abc xyz")[:2]).chat(), 500)


def test_one_failing_prompt_ends_the_request_and_the_others() -> None:
    api = Api(
        lambda generation: (
            [from_code(Code.NO_SPACE, "full")] if generation.prompt_ids == ids_of("xyz") else says("hello world")[:-1]
        )
    )
    error_of(api.complete(prompt=["abc", "xyz"]), 429)
    assert all(stream.cancelled for stream in api.dispatcher.streams)


def test_metrics_count_requests_tokens_and_ends() -> None:
    api = Api(says("abc xyz"), model=small_model())
    api.chat()
    api.chat(temperature=9)
    api.get("/nothing/at/all")
    lines = api.get("/metrics").text.splitlines()
    num_tokens = float(len(ids_of("abc xyz")))
    for line in (
        f'kvferry_gateway_requests_total{{route="{CHAT}",status="200"}} 1.0',
        f'kvferry_gateway_requests_total{{route="{CHAT}",status="400"}} 1.0',
        'kvferry_gateway_requests_total{route="none",status="404"} 1.0',
        'kvferry_gateway_paths_total{path="split"} 1.0',
        f"kvferry_gateway_output_tokens_total {num_tokens}",
        'kvferry_gateway_choices_total{finish_reason="length"} 1.0',
        'kvferry_gateway_first_token_seconds_count{path="split"} 1.0',
        f"kvferry_gateway_between_tokens_seconds_count {num_tokens - 1}",
        "kvferry_gateway_requests_running 1.0",
    ):
        assert line in lines


def test_each_request_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Api(says("abc")).chat()
    [record] = [each for each in caplog.records if each.getMessage() == "request"]
    fields = record.__dict__["fields"]
    assert fields["route"] == CHAT
    assert fields["status"] == 200
    assert fields["request_id"] == "req0"
    assert fields["path"] == "split"
    assert fields["attempts"] == 1
    assert fields["tokens"] == len(ids_of("abc"))
    assert fields["finish"] == "length"
