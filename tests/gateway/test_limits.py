"""Limits of keys: over HTTP, together with other gateways, and alone while their store is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import httpx
import pytest

from gateway import limiter
from gateway.app import App, create_app
from gateway.errors import from_code
from gateway.generation import Update
from gateway.http_settings import HttpSettings
from gateway.key_ring import KeyRing
from gateway.keys import Key, digest_of
from gateway.limiter import Limiter
from gateway.limits import (
    CONCURRENCY,
    LEASE_S,
    MINUTE_MS,
    REQUESTS,
    TOKENS,
    Limits,
    StoreAwayError,
    StoreBusyError,
    Verdict,
    rate_headers,
)
from gateway.memory_limits import MemoryLimits
from protocol.errors import Code
from protocol.sampling import TokenLogprob
from runtime.logs import get_logger
from tests.support.front_rig import Call
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of, events_of, run
from tests.support.scripted_dispatcher import ScriptedDispatcher, Step, ids_of, says, small_model

SECRET = "kvf-alice"
SETTINGS = HttpSettings(write_timeout_s=0.01)


class Ring(KeyRing):
    """Knows one key, and its limits."""

    def __init__(self, **limits: int) -> None:
        super().__init__()
        self.asks = True
        self.key = Key("alice", digest_of(SECRET.encode()), Limits(**limits))

    def find(self, key: bytes) -> Key | None:
        return self.key if digest_of(key) == self.key.digest else None


class Store(MemoryLimits):
    """A store that can be away, and counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.num_calls = 0

    def _called(self) -> None:
        self.num_calls += 1
        if self.away:
            raise StoreAwayError("away")

    async def enter(self, name: str, limits: Limits, lease: str) -> Verdict:
        self._called()
        return await super().enter(name, limits, lease)

    async def take(self, name: str, limits: Limits, num_tokens: int) -> Verdict:
        self._called()
        return await super().take(name, limits, num_tokens)

    async def leave(self, name: str, limits: Limits, lease: str, num_tokens: int) -> Verdict:
        self._called()
        return await super().leave(name, limits, lease, num_tokens)

    async def renew(self, held: Mapping[str, Collection[str]]) -> None:
        self._called()
        await super().renew(held)

    async def warm(self) -> None:
        self._called()


def api_with(script: list[Step], limiter: Limiter | None = None, **limits: int) -> Api:
    return Api(script, keys=Ring(**limits), limiter=limiter, key=SECRET)


def limited(response: httpx.Response, kind: str, retry_after: tuple[int, int]) -> str:
    """Check a refusal and return its message."""
    error = error_of(response, 429)
    assert (error["code"], error["type"], error["param"]) == ("rate_limit_exceeded", kind, None)
    assert retry_after[0] <= int(response.headers["retry-after"]) <= retry_after[1]
    assert SECRET not in response.text
    return str(error["message"])


def key_of(**limits: int) -> Key:
    return Ring(**limits).key


def test_requests_beyond_the_minutes_are_refused_with_the_time_to_come_back() -> None:
    api = api_with(says("abc"), requests_per_minute=2)
    assert [api.chat().status_code, api.complete().status_code] == [200, 200]
    assert "2 requests a minute" in limited(api.chat(), "requests", (25, 30))
    assert len(api.dispatcher.generations) == 2
    assert 'kvferry_gateway_limited_total{limit="requests"} 1.0' in api.get_metrics()


def test_every_answer_of_a_limited_key_says_where_it_stands() -> None:
    api = api_with(says("abc"), requests_per_minute=10, tokens_per_minute=1000)
    for number, response in enumerate((api.get("/v1/models"), api.get("/no"), api.chat(temperature=9)), 1):
        headers = response.headers
        assert headers["x-ratelimit-limit-requests"] == "10"
        assert headers["x-ratelimit-remaining-requests"] == str(10 - number)
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert headers["x-ratelimit-remaining-tokens"] == "1000"
        assert headers["x-ratelimit-reset-tokens"] == "0ms"
    assert "x-ratelimit-limit-requests" not in api.get("/live").headers
    assert "x-ratelimit-limit-requests" not in api.get("/v1/models", headers={"authorization": "Bearer no"}).headers


def test_a_key_without_limits_has_no_such_headers_and_asks_no_store() -> None:
    store = Store()
    response = api_with(says("abc"), Limiter(store)).chat()
    assert response.status_code == 200
    assert [name for name in response.headers if name.startswith("x-ratelimit")] == []
    assert store.num_calls == 0


@pytest.mark.parametrize(
    ("debt_ms", "shown"),
    [(0, "0ms"), (120.2, "121ms"), (1000, "1s"), (6500, "6.5s"), (59_999, "1m0s"), (90_500, "1m30.5s")],
)
def test_times_are_written_as_openai_writes_them(debt_ms: float, shown: str) -> None:
    headers = rate_headers(Limits(requests_per_minute=60), Verdict(requests_debt_ms=debt_ms))
    assert headers["x-ratelimit-reset-requests"] == shown
    assert int(headers["x-ratelimit-remaining-requests"]) == max(0, int((MINUTE_MS - debt_ms) / 1000))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_charged_what_it_used_in_the_end(stream: bool) -> None:
    api = api_with(says("abc"), tokens_per_minute=1000)
    num_prompt, num_output = 5, len(ids_of("abc"))
    response = api.complete(prompt=[7] * num_prompt, max_tokens=400, stream=stream)
    assert response.headers["x-ratelimit-remaining-tokens"] == str(1000 - num_prompt - 400)
    if stream:
        events_of(response)
    left = int(api.get("/v1/models").headers["x-ratelimit-remaining-tokens"])
    assert 0 <= left - (1000 - num_prompt - num_output) <= 5  # what has grown back meanwhile


def test_prompts_and_choices_are_reserved_all_together() -> None:
    api = api_with([*says("abc"), *says("abc", choice=1)], tokens_per_minute=1000)
    prompts = [[7] * 10, [8] * 10]
    assert api.complete(prompt=prompts, n=2, max_tokens=50).headers["x-ratelimit-remaining-tokens"] == "780"


def test_a_request_larger_than_a_minutes_worth_takes_all_there_is() -> None:
    response = api_with(says("abc"), tokens_per_minute=10).complete(prompt=[7] * 100, max_tokens=300)
    assert response.status_code == 200
    assert response.headers["x-ratelimit-remaining-tokens"] == "0"


def test_tokens_that_are_not_there_are_refused_before_any_worker_hears_of_it() -> None:
    hold = asyncio.Event()

    async def work() -> None:
        app = app_with([hold, *says("abc")], tokens_per_minute=100)
        first = call(app, prompt="a", max_tokens=80)
        while not dispatcher_of(app).streams:
            await asyncio.sleep(0)
        second = await call(app, prompt="a", max_tokens=80).done()
        assert (second.status, second.error["type"]) == (429, "tokens")
        assert "100 tokens a minute" in second.error["message"]
        hold.set()
        await first.done()
        assert first.status == 200
        third = await call(app, prompt="a", max_tokens=80).done()
        assert third.status == 200

    run(work())


def app_with(script: Sequence[Step], **limits: int) -> App:
    """For several calls at once."""
    return create_app(ScriptedDispatcher(script), small_model(), SETTINGS, None, Ring(**limits))


def dispatcher_of(app: App) -> ScriptedDispatcher:
    services = app.services
    assert isinstance(services.dispatcher, ScriptedDispatcher)
    return services.dispatcher


def call(app: App, path: str = COMPLETIONS, **fields: Any) -> Call:
    headers = {"authorization": f"Bearer {SECRET}"}
    return Call(app, "POST", path, json.dumps({"messages": HELLO, **fields}).encode(), headers)


@pytest.mark.parametrize(
    "failure", [from_code(Code.QUEUE_FULL, "full"), from_code(Code.ENGINE, "broken"), ValueError("a bug")]
)
def test_a_request_that_failed_before_its_first_token_costs_no_tokens(failure: Exception) -> None:
    api = api_with([failure], tokens_per_minute=1000)
    assert api.complete(max_tokens=400).status_code >= 429
    assert api.get("/v1/models").headers["x-ratelimit-remaining-tokens"] == "1000"


@pytest.mark.parametrize(("headers", "left"), [({}, 1000), ({"x-kvferry-deadline-ms": "60000"}, 700)])
def test_a_prompt_is_paid_for_when_its_client_gave_it_too_little_time(headers: dict[str, str], left: int) -> None:
    api = api_with([from_code(Code.DEADLINE, "too late")], tokens_per_minute=1000)
    body = {"prompt": [7] * 300, "max_tokens": 100}
    assert api.request("POST", COMPLETIONS, json=body, headers=headers).status_code == 504
    assert left <= int(api.get("/v1/models").headers["x-ratelimit-remaining-tokens"]) <= left + 5


def test_a_client_that_leaves_during_the_prompt_pays_for_the_prompt() -> None:
    async def work() -> None:
        app = app_with([asyncio.Event()], tokens_per_minute=1000)
        gone = call(app, prompt=[7] * 300, max_tokens=100)
        while not dispatcher_of(app).streams:
            await asyncio.sleep(0)
        gone.leave()
        await gone.task
        left = await call(app, path="/v1/none").done()
        assert 700 <= int(left.headers["x-ratelimit-remaining-tokens"]) <= 705

    run(work())


@pytest.mark.parametrize("end", ["whole", "stream", "gone", "slow", "failed", "refused", "bad"])
def test_a_slot_is_held_to_the_end_of_an_answer_however_it_ends(end: str) -> None:
    go_on = asyncio.Event()
    updates = says("abc xyz")
    script: list[Step] = [*updates[:1], go_on, *updates[1:]]
    if end == "failed":
        script = [*updates[:1], go_on, from_code(Code.WORKER_LOST, "gone")]
    if end == "refused":
        script = [go_on, from_code(Code.NO_SPACE, "full")]

    async def work() -> None:
        app = app_with(script, concurrency=1)
        first = call(app, CHAT, stream=end not in ("whole", "refused"), temperature=9 if end == "bad" else 0)
        if end != "bad":
            while not dispatcher_of(app).streams:
                await asyncio.sleep(0)
            second = await call(app, CHAT).done()
            assert (second.status, second.error["type"], second.headers["retry-after"]) == (429, "requests", "1")
            assert "1 requests at a time" in second.error["message"]
        if end == "gone":
            first.leave()
        if end == "slow":
            first.reads.clear()
        go_on.set()
        await first.task
        third = await call(app, CHAT).done()
        assert third.status != 429 or end == "refused"
        assert third.json.get("error", {}).get("code") != "rate_limit_exceeded"

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_has_seen_the_end_may_come_again_at_once(stream: bool) -> None:
    """The slot is free before the last bytes leave."""

    async def work() -> None:
        app = app_with(says("abc"), concurrency=1)
        first = call(app, CHAT, stream=stream)
        mark = b"[DONE]" if stream else b"choices"
        while not any(mark in message.get("body", b"") for message in first.sent):
            await asyncio.sleep(0)
        assert (await call(app, CHAT).done()).status == 200
        await first.task

    run(work())


def test_two_gateways_share_a_limit_through_their_store() -> None:
    async def work() -> None:
        store, key = Store(), key_of(concurrency=2)
        one, two = Limiter(store), Limiter(store)
        first, second = await one.enter(key), await two.enter(key)
        assert (await one.enter(key)).verdict.refused_by == CONCURRENCY
        await two.leave(second, 0)
        assert (await one.enter(key)).verdict.refused_by == ""
        await one.leave(first, 0)

    run(work())


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test logs isn't held back in the next."""
    monkeypatch.setattr(limiter, "log", get_logger("gateway.limiter"))


def test_without_the_store_no_request_fails_and_each_gateway_limits_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store, key = Store(), key_of(concurrency=1, requests_per_minute=2, tokens_per_minute=100)
        one, two = Limiter(store), Limiter(store)
        store.away = True
        stays = [await each.enter(key) for each in (one, two)]
        assert [stay.verdict.refused_by for stay in stays] == ["", ""]
        assert one.alone
        assert (await one.enter(key)).verdict.refused_by == CONCURRENCY
        await one.take(stays[0], 60)
        await one.leave(stays[0], 60)
        next_one = await one.enter(key)
        await one.take(next_one, 60)
        assert next_one.verdict.refused_by == TOKENS
        await one.leave(next_one, 0)
        assert (await one.enter(key)).verdict.refused_by == REQUESTS
        assert store.num_calls == 2  # one for each gateway: then neither asks again by itself

    with caplog.at_level("INFO"):
        run(work())
    assert [record.getMessage() for record in caplog.records] == ["limits_alone"]  # and no more for ten seconds


def test_processes_of_one_gateway_share_a_limit_among_them_while_the_store_is_away() -> None:
    async def work() -> None:
        store, key = Store(), key_of(requests_per_minute=6, tokens_per_minute=100, concurrency=4)
        store.away = True
        parts = [Limiter(store, num_alone=2) for _ in range(2)]
        stays = [await each.enter(key) for each in parts for _ in range(3)]
        assert [stay.verdict.refused_by for stay in stays] == ["", "", CONCURRENCY] * 2
        for each, stay in ((parts[0], stays[0]), (parts[1], stays[3])):
            await each.take(stay, 1000)  # more than there is: all of its part
            assert (stay.verdict.refused_by, stay.num_taken) == ("", 50)
            await each.leave(stay, 10)
        assert [(await each.enter(key)).verdict.refused_by for each in parts] == ["", ""]
        for each, stay in ((parts[0], stays[1]), (parts[1], stays[4])):
            await each.take(stay, 45)
            assert stay.verdict.refused_by == TOKENS
            await each.take(stay, 40)
            assert stay.verdict.refused_by == ""
            await each.leave(stay, 40)
        assert [(await each.enter(key)).verdict.refused_by for each in parts] == [REQUESTS, REQUESTS]

    run(work())


def test_a_part_of_a_limit_is_never_nothing_and_no_limit_stays_none() -> None:
    assert Limits(1, 0, 5).part(2) == Limits(1, 0, 3)


def test_what_was_spent_and_held_counts_on_when_the_store_goes() -> None:
    async def work() -> None:
        store, key = Store(), key_of(concurrency=3, requests_per_minute=3, tokens_per_minute=100)
        one, two = Limiter(store), Limiter(store)
        stay = await one.enter(key)
        await one.take(stay, 70)
        await two.enter(key)
        await one.enter(key)
        store.away = True
        other = await one.enter(key)
        assert other.verdict.refused_by == REQUESTS  # three were counted, though one went by the other gateway
        await one.take(stay, 60)
        assert stay.verdict.refused_by == TOKENS

    run(work())


def test_when_the_store_is_back_it_hears_of_what_is_held_and_judges_again(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store, key = Store(), key_of(concurrency=2, tokens_per_minute=1000)
        one, two = Limiter(store), Limiter(store)
        early = await one.enter(key)
        await one.take(early, 100)
        store.away = True
        late = await one.enter(key)
        await one.take(late, 100)
        await one.leave(early, 40)
        await one._reach()
        assert one.alone
        store.away = False
        await one._reach()
        assert not one.alone
        others = [await two.enter(key) for _ in range(2)]
        # `late` has its slot; `early` ended while nobody could tell the store, which has heard of it now
        assert [each.verdict.refused_by for each in others] == ["", CONCURRENCY]
        await one.leave(late, 50)
        assert (await two.enter(key)).verdict.refused_by == ""

    with caplog.at_level("INFO"):
        run(work())
    assert [record.getMessage() for record in caplog.records if "limits" in record.getMessage()][-1] == "limits_shared"


def test_a_request_that_ends_while_its_lease_is_renewed_holds_nothing() -> None:
    class Slow(Store):
        async def renew(self, held: Mapping[str, Collection[str]]) -> None:
            await one.leave(stay, 0)
            await super().renew(held)

    stay: Any = None
    one = Limiter()

    async def work() -> None:
        nonlocal stay, one
        store, key = Slow(), key_of(concurrency=1)
        one = Limiter(store)
        stay = await one.enter(key)
        await one.renew()
        assert (await Limiter(store).enter(key)).verdict.refused_by == ""
        assert (await one.enter(key)).verdict.refused_by == CONCURRENCY

    run(work())


def test_who_hangs_up_while_the_store_is_told_of_the_end_leaves_no_slot_behind() -> None:
    class Slow(Store):
        async def leave(self, name: str, limits: Limits, lease: str, num_tokens: int) -> Verdict:
            asked.set()
            await go_on.wait()
            return await super().leave(name, limits, lease, num_tokens)

    asked, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        store, key = Slow(), key_of(concurrency=1, tokens_per_minute=100)
        one = Limiter(store)
        stay = await one.enter(key)
        await one.take(stay, 90)
        leaving = asyncio.ensure_future(one.leave(stay, 10))
        await asked.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        go_on.set()
        while (again := await Limiter(store).enter(key)).verdict.refused_by:
            await asyncio.sleep(0)
        assert 5_500 < again.verdict.tokens_debt_ms <= 6_000

    run(work())


def test_a_store_without_time_is_asked_again_and_hears_of_ends_it_missed() -> None:
    class Busy(Store):
        def _called(self) -> None:
            if self.away:
                raise StoreBusyError

    async def work() -> None:
        store, key = Busy(), key_of(concurrency=1)
        one, two = Limiter(store), Limiter(store)
        stay = await one.enter(key)
        store.away = True
        assert (await one.enter(key)).verdict.refused_by == CONCURRENCY  # the twin's word
        await one.leave(stay, 0)
        assert not one.alone
        store.away = False
        assert (await two.enter(key)).verdict.refused_by == CONCURRENCY
        await one.renew()
        assert (await two.enter(key)).verdict.refused_by == ""

    run(work())


def test_a_slot_is_held_for_as_long_as_the_store_is_away() -> None:
    async def work() -> None:
        now_s = 0.0
        store, key = Store(), key_of(concurrency=1)
        store.away = True
        one = Limiter(store, MemoryLimits(clock=lambda: now_s))
        await one.enter(key)
        for _ in range(3):
            now_s += LEASE_S * 0.9
            await one._reach()
        assert one.alone
        assert (await one.enter(key)).verdict.refused_by == CONCURRENCY

    run(work())


def test_leaving_twice_frees_and_charges_once() -> None:
    async def work() -> None:
        store, key = Store(), key_of(tokens_per_minute=100)
        one = Limiter(store)
        stay = await one.enter(key)
        await one.take(stay, 50)
        await one.leave(stay, 10)
        await one.leave(stay, 10)
        debt = (await one.enter(key)).verdict.tokens_debt_ms
        assert 5_500 < debt <= 6_000

    run(work())


def test_the_metrics_say_whether_keys_are_judged_alone() -> None:
    store = Store()
    store.away = True
    api = api_with(says("abc"), Limiter(store), requests_per_minute=5)
    assert "kvferry_gateway_limits_alone 0.0" in api.get_metrics()
    assert api.chat().status_code == 200
    assert "kvferry_gateway_limits_alone 1.0" in api.get_metrics()


def test_prompts_alone_are_paid_for() -> None:
    vector = Update(0, 0, (), (), "stop", -1, bytes(12))
    api = api_with([vector], tokens_per_minute=1000)
    assert api.request("POST", "/v1/embeddings", json={"input": [7] * 300}).status_code == 200
    assert 700 <= int(api.get("/v1/models").headers["x-ratelimit-remaining-tokens"]) <= 705
    scores = Update(0, 0, (7,) * 299, (TokenLogprob(-1.0),) * 299, "length", -1)
    api = api_with([scores], tokens_per_minute=1000)
    body = {"prompt": [7] * 300, "max_tokens": 0, "echo": True, "logprobs": 0}
    assert api.request("POST", COMPLETIONS, json=body).status_code == 200
    assert 700 <= int(api.get("/v1/models").headers["x-ratelimit-remaining-tokens"]) <= 705
