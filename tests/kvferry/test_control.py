"""`up` answers one JSON line with one, and keeps to its bounds."""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvferry.control import MAX_LINE_BYTES, ControlError, ControlServer, ask_control
from kvferry.errors import UsageError

DEADLINE_S = 20.0


async def handle(question: Mapping[str, Any]) -> Mapping[str, Any]:
    if question.get("command") == "fail":
        raise UsageError("that can't be")
    if question.get("command") == "wait":
        await asyncio.Event().wait()
    return {"heard": question}


def with_server(folder: Path, ask: Callable[[str], Any]) -> Any:
    async def body() -> Any:
        server = ControlServer(folder / "control", handle)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await asyncio.to_thread(ask, str(folder / "control"))
        finally:
            await server.close()

    return asyncio.run(body())


def raw(path: str, sent: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(path)
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()


def test_a_question_is_answered(tmp_path: Path) -> None:
    answer = with_server(tmp_path, lambda path: ask_control(path, {"command": "scale"}, DEADLINE_S))
    assert answer == {"heard": {"command": "scale"}}
    assert not (tmp_path / "control").exists()


def test_a_deep_folder_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    assert with_server(folder, lambda path: ask_control(path, {"a": 1}, DEADLINE_S)) == {"heard": {"a": 1}}


def test_a_refusal_is_raised_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="that can't be"):
        with_server(tmp_path, lambda path: ask_control(path, {"command": "fail"}, DEADLINE_S))


def test_what_takes_too_long_is_said(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"not done within 0\.05 s"):
        with_server(tmp_path, lambda path: ask_control(path, {"command": "wait"}, 0.05))


def test_a_stack_that_ended_is_said(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="can't be asked"):
        ask_control(str(tmp_path / "control"), {}, DEADLINE_S)


@pytest.mark.parametrize(("sent", "error"), [(b"{\n", "not a line of JSON"), (b"[1]\n", "not a JSON object")])
def test_nonsense_is_answered_with_an_error(tmp_path: Path, sent: bytes, error: str) -> None:
    assert json.loads(with_server(tmp_path, lambda path: raw(path, sent))) == {"error": error}


def test_a_line_without_end_is_not_read_on(tmp_path: Path) -> None:
    def ask(path: str) -> bytes:
        try:
            return raw(path, b"x" * (2 * MAX_LINE_BYTES))
        except ConnectionError:
            return b""

    assert with_server(tmp_path, ask) == b""
