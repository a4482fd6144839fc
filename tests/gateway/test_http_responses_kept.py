"""Responses that are kept: shown, continued, listed, forgotten, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.http_settings import HttpSettings
from gateway.keys import Key, digest_of
from gateway.responses_api import shelf as shelf_module
from gateway.responses_api.background import Background
from gateway.responses_api.shelf import Shelf
from gateway.responses_api.store import MemoryStore, StoreAway
from tests.support.http_twin import Api, error_of
from tests.support.responses_twin import RESPONSES, ask, checked, respond, response_events, text_of
from tests.support.scripted_dispatcher import EOS_ID, says, small_model

CLOCK = {"type": "function", "name": "clock"}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"x": 1}}\n</tool_call>'


@dataclass
class AwayStore(MemoryStore):
    """A store that can be away."""

    is_away: bool = False

    def __post_init__(self) -> None:
        MemoryStore.__init__(self)

    async def put(self, key: str, entry: bytes) -> None:
        self._check()
        await super().put(key, entry)

    async def get(self, key: str) -> bytes | None:
        self._check()
        return await super().get(key)

    async def drop(self, key: str) -> bool:
        self._check()
        return await super().drop(key)

    async def lease(self, key: str) -> None:
        self._check()
        await super().lease(key)

    def _check(self) -> None:
        if self.is_away:
            raise StoreAway("told to be")


def prompts_of(api: Api) -> list[str]:
    return [small_model().tokenizer.decode(list(each.prompt_ids)) for each in api.dispatcher.generations]


def turns(*told: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in told) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_shown_as_it_was_told(stream: bool) -> None:
    api = Api(says("Paris", end=EOS_ID))
    told = response_events(api)[-1]["response"] if stream else respond(api)
    assert checked(api.get(f"{RESPONSES}/{told['id']}")) == told
    assert error_of(api.get(f"{RESPONSES}/{told['id']}?stream=true"), 400)["param"] == "stream"


def test_one_that_is_not_to_be_kept_is_not() -> None:
    api = Api(says("Paris"))
    told = respond(api, store=False)
    assert told["store"] is False
    error = error_of(api.get(f"{RESPONSES}/{told['id']}"), 404)
    assert (error["code"], error["type"]) == ("not_found", "invalid_request_error")


def test_a_conversation_goes_on_behind_a_response() -> None:
    api = Api(says("Paris", end=EOS_ID))
    first = respond(api, instructions="Be brief")
    second = respond(api, input="And Rome?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    respond(api, input="Thanks", previous_response_id=second["id"], store=False)
    one = (("user", "hello"), ("assistant", "Paris"), ("user", "And Rome?"))
    assert prompts_of(api)[1:] == [turns(*one), turns(*one, ("assistant", "Paris"), ("user", "Thanks"))]
    assert error_of(ask(api, previous_response_id="resp_none"), 404)["code"] == "not_found"


def test_a_call_is_answered_behind_a_response() -> None:
    api = Api(says(CALL, end=EOS_ID))
    first = respond(api, tools=[CLOCK])
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    respond(api, input=[result], previous_response_id=first["id"], tools=[CLOCK])
    assert prompts_of(api)[1].endswith(turns(("user", "hello"), ("assistant", CALL), ("tool", "noon")))


def test_a_call_that_was_cut_off_does_not_end_the_conversation() -> None:
    api = Api(says(CALL[: CALL.index("1}}")]))
    first = respond(api, tools=[CLOCK])
    assert first["status"] == "incomplete"
    assert respond(api, input="Again", previous_response_id=first["id"], tools=[CLOCK])


def test_what_it_was_asked_with_is_listed_in_pages() -> None:
    api = Api(says("Paris"))
    given = [{"role": "user", "content": f"number {number}"} for number in range(5)]
    path = f"{RESPONSES}/{respond(api, input=given)['id']}/input_items"

    def page(query: str = "") -> dict[str, Any]:
        response = api.get(f"{path}?{query}")
        assert response.status_code == 200
        listed: dict[str, Any] = response.json()
        assert listed["object"] == "list"
        return listed

    def texts(listed: dict[str, Any]) -> list[str]:
        return [item["content"][0]["text"] for item in listed["data"]]

    assert texts(page()) == [f"number {number}" for number in (4, 3, 2, 1, 0)]
    first = page("order=asc&limit=2")
    assert (texts(first), first["has_more"]) == (["number 0", "number 1"], True)
    rest = page(f"order=asc&after={first['last_id']}")
    assert (texts(rest), rest["has_more"]) == (["number 2", "number 3", "number 4"], False)
    assert page(f"order=asc&after={rest['last_id']}")["data"] == []
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")):
        assert error_of(api.get(f"{path}?{query}"), 400)["param"] == param


def test_a_response_can_be_forgotten() -> None:
    api = Api(says("Paris"))
    path = f"{RESPONSES}/{respond(api)['id']}"
    gone = api.request("DELETE", path)
    assert gone.json() == {"id": path.rpartition("/")[2], "object": "response", "deleted": True}
    for method, sub in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        error_of(api.request(method, path + sub), 404)


def test_one_key_cannot_touch_anothers() -> None:
    api = Api(says("Paris"), settings=HttpSettings(api_keys=("one", "two")))

    def call(key: str, method: str, path: str, **body: Any) -> Any:
        return api.request(method, path, headers={"authorization": f"Bearer {key}"}, json=body or None)

    told = call("one", "POST", RESPONSES, input="hello").json()
    path = f"{RESPONSES}/{told['id']}"
    for method, sub in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        error_of(call("two", method, path + sub), 404)
    error_of(call("two", "POST", RESPONSES, input="x", previous_response_id=told["id"]), 404)
    assert call("one", "GET", path).json() == told


def test_a_keys_mark_tells_nothing_of_it() -> None:
    key, other = Key("a", digest_of(b"one")), Key("a", digest_of(b"two"))
    assert key.owner == Key("b", digest_of(b"one")).owner != other.owner
    assert key.owner not in key.digest.hex()


def test_one_that_is_too_large_is_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "MAX_ENTRY_BYTES", 1300)
    api = Api(says("Paris"))
    small, large = respond(api), respond(api, input="x" * 300)
    assert text_of(large) == "Paris"
    assert api.get(f"{RESPONSES}/{small['id']}").status_code == 200
    error_of(api.get(f"{RESPONSES}/{large['id']}"), 404)


def test_without_its_store_a_response_is_told_all_the_same() -> None:
    store = AwayStore()
    api = Api(says("Paris"), background=Background(Shelf(store)))
    first = respond(api)
    store.is_away = True
    assert text_of(respond(api)) == "Paris"
    assert response_events(api)[-1]["type"] == "response.incomplete"
    ways: list[Callable[[], Any]] = [
        lambda: api.get(f"{RESPONSES}/{first['id']}"),
        lambda: api.request("DELETE", f"{RESPONSES}/{first['id']}"),
        lambda: ask(api, previous_response_id=first["id"]),
        lambda: ask(api, background=True),
    ]
    for way in ways:
        response = way()
        assert error_of(response, 503)["code"] == "store_away"
        assert response.headers["retry-after"]
    store.is_away = False
    assert checked(api.get(f"{RESPONSES}/{first['id']}")) == first
