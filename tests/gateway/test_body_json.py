"""Bodies of many values: read in steps, to the same end as small ones, while everything else goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic_core import from_json

from gateway import body_json
from gateway.body_json import MAX_ASIDE, MAX_AT_ONCE, MAX_DEPTH, MAX_OBJECTS, BodyReader, has_many
from gateway.errors import GatewayError
from tests.support.http_twin import Api, error_of, run
from tests.support.scripted_dispatcher import says

MANY = json.dumps({"prompt": list(range(300_000))}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        *(b'{"a": [1, 2.5e3, -0, "x", null, true]}', b' {"a": {"a": {}}, "b": []}\n', b'{"a": 1, "a": 2}', b"[1e999]"),
        *('{"ü🦀": "\\ud83d\\ude00 é"}'.encode(), b'"\\\\ud800"', b"9" * 400, b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
    ],
)
def test_steps_lead_to_the_same_value(raw: bytes) -> None:
    assert BodyReader().in_steps(raw) == from_json(raw, allow_inf_nan=False)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"not json", b"[1,]", b"{'a': 1}", b'{"a" 1}', b"1 2", b"NaN", b"[-Infinity]", b"01", b"9" * 5000),
        *(b'"\xff"', b'"\x01"', b"\xef\xbb\xbf1", b'"\\ud800"', b'{"\\udc00": 1}', b"\xc2\xa01"),
        *(b"[" * (MAX_DEPTH + 1) + b"1" + b"]" * (MAX_DEPTH + 1), b"[" * 100_000, b'{"a":' * 1000 + b"1" + b"}" * 1000),
    ],
)
def test_what_is_no_value_at_once_is_none_in_steps(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(raw, allow_inf_nan=False)
    with pytest.raises(ValueError, match=r"."):
        BodyReader().in_steps(raw)


def test_objects_without_end_are_refused_before_they_are_all_there() -> None:
    reader = BodyReader()
    few = b"[" + b"{}," * (MAX_OBJECTS - 1) + b"{}]"
    assert reader.in_steps(few) == [{}] * MAX_OBJECTS
    with pytest.raises(ValueError, match="objects"):
        reader.in_steps(b"[" + b"{}," * (MAX_OBJECTS + 1))


def test_values_are_counted_and_not_bytes() -> None:
    assert not has_many(json.dumps(["word " * 1_000_000]).encode())
    assert not has_many(b"[" + b"1," * (MAX_AT_ONCE - 1) + b"1]")
    assert has_many(b"[" + b"1," * MAX_AT_ONCE + b"1]")
    assert has_many(b"[" + b"{}," * (MAX_AT_ONCE // 2) + b"{}]")


def test_the_loop_goes_on_while_a_large_body_is_read() -> None:
    """Compiled code would hold it up from the first value to the last."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        began = last = loop.time()
        longest = 0.0
        reading = asyncio.ensure_future(BodyReader().read(MANY))
        while not reading.done():
            await asyncio.sleep(0)
            longest, last = max(longest, loop.time() - last), loop.time()
        assert await reading == json.loads(MANY)
        assert longest < (last - began) / 3

    run(work())


def test_large_bodies_take_turns_and_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, running = threading.Event(), list[int]()

    async def work() -> None:
        reader = BodyReader()

        def in_steps(raw: bytes) -> object:
            running.append(threading.get_ident())
            gate.wait()
            return {}

        monkeypatch.setattr(reader, "in_steps", in_steps)
        reading = [asyncio.ensure_future(reader.read(MANY)) for _ in range(MAX_ASIDE)]
        await asyncio.sleep(0)
        with pytest.raises(GatewayError) as refused:
            await reader.read(MANY)
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        assert await reader.read(b"[1]") == [1], "a small one waits for none"
        assert len(running) <= 1
        reading.pop().cancel()
        gate.set()
        assert await asyncio.gather(*reading) == [{}] * (MAX_ASIDE - 1)
        assert len(set(running)) == 1
        assert await reader.read(MANY) == {}

    run(work())


def test_a_body_of_many_values_is_answered_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_json, "MAX_AT_ONCE", 8)
    fields: dict[str, Any] = {"prompt": [5] * 20, "max_tokens": 3}
    assert Api(says("abc")).complete(**fields).json()["choices"][0]["text"] == "abc"[:3]
    wrong = Api().request("POST", "/v1/completions", content=b'{"prompt": [5,5,5,5,5,5,5,5,5,5,5,"\\ud800"]}')
    assert error_of(wrong, 400)["code"] == "invalid_json"
    assert error_of(Api().request("POST", "/v1/completions", content=b"[" * 3000), 400)["code"] == "invalid_json"
