"""What a browser hears when a web page of another origin asks (CORS)."""

from __future__ import annotations

import argparse
import logging

import httpx
import pytest

from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings
from gateway.main import http_settings
from gateway.settings import GatewaySettings
from runtime.settings import SettingsError, add_flags, read, to_flags
from tests.support.http_twin import CHAT, HELLO, Api, error_of
from tests.support.scripted_dispatcher import says

PAGE = "https://app.example"
ALLOWED = HttpSettings(api_keys=("right",), allowed_origins=(PAGE, "http://localhost:3000"))
CORS = "access-control-"


def preflight(api: Api, origin: str = PAGE, method: str = "POST", path: str = CHAT) -> httpx.Response:
    asked = "authorization,content-type"
    headers = {"origin": origin, f"{CORS}request-method": method, f"{CORS}request-headers": asked}
    return api.request("OPTIONS", path, headers=headers)


def told(response: httpx.Response) -> dict[str, str]:
    return {name.removeprefix(CORS): value for name, value in response.headers.items() if name.startswith(CORS)}


def settings_of(*argv: str) -> GatewaySettings:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, GatewaySettings)
    return read(GatewaySettings, parser.parse_args(argv), {})


def test_by_default_nothing_is_said_of_origins() -> None:
    api = Api(says("abc"))
    response = api.request("POST", CHAT, json={"messages": HELLO}, headers={"origin": PAGE})
    assert response.status_code == 200
    assert told(response) == {}
    assert "vary" not in response.headers
    assert error_of(preflight(api), 405)["code"] == "method_not_allowed"


def test_a_preflight_of_an_allowed_page_needs_no_key_and_reaches_nothing() -> None:
    api = Api(settings=ALLOWED)
    response = preflight(api)
    assert response.status_code == 200
    assert told(response)["allow-origin"] == PAGE
    assert "POST" in told(response)["allow-methods"]
    assert told(response)["allow-headers"] == "authorization,content-type"
    assert "allow-credentials" not in told(response)
    assert not api.dispatcher.generations


def test_another_page_is_not_let_in() -> None:
    api = Api(settings=ALLOWED, key="right")
    response = preflight(api, "https://evil.example")
    assert response.status_code == 400
    assert "allow-origin" not in told(response)
    assert "allow-origin" not in told(api.get("/v1/models", headers={"origin": "https://evil.example"}))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_names_the_page_and_what_it_may_read(stream: bool) -> None:
    api = Api(says("abc"), settings=ALLOWED, key="right")
    body = {"messages": HELLO, "stream": stream}
    response = api.request("POST", CHAT, json=body, headers={"origin": PAGE})
    assert response.status_code == 200
    assert told(response)["allow-origin"] == PAGE
    assert "x-kvferry-request-id" in told(response)["expose-headers"]
    assert response.headers["vary"] == "Origin"


def test_errors_name_the_page_too() -> None:
    headers = {"origin": PAGE}
    locked = Api(settings=ALLOWED)
    broken = Api([ValueError("x")], settings=ALLOWED, key="right")
    refused = Api(settings=ALLOWED, key="right")
    refused.dispatcher.refusal = GatewayError(429, "full")
    for response, status in (
        (locked.request("POST", CHAT, json={"messages": HELLO}, headers=headers), 401),
        (broken.request("POST", CHAT, json={"messages": HELLO}, headers=headers), 500),
        (refused.request("POST", CHAT, json={"messages": HELLO}, headers=headers), 429),
        (refused.request("POST", CHAT, content=b"not json", headers=headers), 400),
        (refused.get("/nothing", headers=headers), 404),
    ):
        error_of(response, status)
        assert told(response)["allow-origin"] == PAGE


def test_a_preflight_is_in_the_log_and_the_metrics(caplog: pytest.LogCaptureFixture) -> None:
    api = Api(settings=ALLOWED)
    with caplog.at_level(logging.INFO):
        preflight(api)
    [record] = [each for each in caplog.records if each.getMessage() == "request"]
    assert (record.__dict__["fields"]["method"], record.__dict__["fields"]["status"]) == ("OPTIONS", 200)
    assert 'kvferry_gateway_requests_total{route="none",status="200"} 1.0' in api.get_metrics()


def test_a_preflight_that_might_be_two_requests_is_refused() -> None:
    headers = {"origin": PAGE, f"{CORS}request-method": "POST", "content-length": "0", "transfer-encoding": "chunked"}
    response = Api(settings=ALLOWED).request("OPTIONS", CHAT, headers=headers)
    assert error_of(response, 400)["code"] == "invalid_http"
    assert response.headers["connection"] == "close"


def test_every_page_may_ask_where_a_star_stands() -> None:
    api = Api(says("abc"), settings=HttpSettings(allowed_origins=("*",)))
    assert told(preflight(api))["allow-origin"] == "*"
    assert told(api.get("/v1/models", headers={"origin": "https://any.example"}))["allow-origin"] == "*"


def test_methods_headers_and_credentials_are_as_the_flags_say() -> None:
    flags = ["--allowed-origins", PAGE, "--allowed-methods", "post", "--allowed-headers", "Authorization"]
    api = Api(settings=http_settings(settings_of(*flags, "--allow-credentials")))
    asked = {"origin": PAGE, f"{CORS}request-method": "POST", f"{CORS}request-headers": "authorization"}
    response = api.request("OPTIONS", CHAT, headers=asked)
    assert response.status_code == 200
    assert told(response)["allow-methods"] == "POST"
    assert told(response)["allow-credentials"] == "true"
    assert preflight(api, method="DELETE").status_code == 400
    assert api.request("OPTIONS", CHAT, headers={**asked, f"{CORS}request-headers": "x-other"}).status_code == 400


@pytest.mark.parametrize(
    "argv",
    [
        [f"--allowed-origins={PAGE},http://localhost:3000"],
        [f"--allowed-origins={PAGE}", "--allowed-origins=http://LOCALHOST:3000"],
        [f'--allowed-origins=["{PAGE}", "http://localhost:3000"]'],
        [f'--allowed-origins=["{PAGE}"]', '--allowed-origins=["http://localhost:3000"]'],
    ],
)
def test_origins_come_with_commas_as_json_or_repeated(argv: list[str]) -> None:
    settings = settings_of(*argv)
    assert settings.allowed_origins == ALLOWED.allowed_origins
    assert settings_of(*to_flags(settings)) == settings


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--allowed-origins", "app.example"),
        ("--allowed-origins", f"{PAGE}/"),
        ("--allowed-origins", "null"),
        ("--allowed-origins", '["*"'),
        ("--allowed-origins", "[7]"),
        ("--allowed-origins", f'["{PAGE}"],{PAGE}'),
        ("--allowed-methods", "GET POST"),
        ("--allowed-headers", "a:b"),
    ],
)
def test_what_is_none_is_refused_at_the_start(flag: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{flag}: "):
        settings_of(f"{flag}={value}")


def test_every_origin_with_credentials_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="name the origins, or leave --allow-credentials out"):
        settings_of("--allowed-origins", "*", "--allow-credentials")
