"""Logs are one line per event, readable or JSON, and can't be flooded or faked from outside."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from runtime.log_format import MAX_VALUE_LEN
from runtime.logs import get_logger, setup_logs


@pytest.fixture(autouse=True)
def _undo_setup() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger("kvferry").setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_an_event_is_one_readable_line() -> None:
    out = io.StringIO()
    setup_logs("info", "decode", "decode-1", out)
    get_logger("decode_svc").info("handover_granted", request_id="r1", num_blocks=3, ok=True)
    [line] = lines(out)
    stamp, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    assert rest == "info decode-1 decode_svc: handover_granted request_id=r1 num_blocks=3 ok=true"


def test_values_from_outside_cannot_fake_a_line_or_flood_the_log() -> None:
    out = io.StringIO()
    setup_logs("info", "gateway", stream=out)
    get_logger("gateway").info("refused", label="x\n2026 info", spaced="a b", long="y" * 100_000)
    [line] = lines(out)
    assert 'label="x\\n2026 info" spaced="a b"' in line
    assert len(line) < MAX_VALUE_LEN + 200


def test_json_has_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_LOG_FORMAT", "json")
    out = io.StringIO()
    setup_logs("info", "prefill", "prefill-1", out)
    get_logger("engine").bind(request_id="r1").warning("slow_step", step_ms=1.5, event="x")
    entry = json.loads(out.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "service": "prefill",
        "worker": "prefill-1",
        "room": "engine",
        "event": "slow_step",
        "request_id": "r1",
        "step_ms": 1.5,
        "field_event": "x",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_brings_its_traceback(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    monkeypatch.setenv("KVFERRY_LOG_FORMAT", log_format)
    out = io.StringIO()
    setup_logs("info", "decode", stream=out)
    try:
        raise RuntimeError("broken on purpose")
    except RuntimeError as error:
        get_logger("decode_svc").exception("failed")
        get_logger("decode_svc").error("failed", cause=error)
    assert out.getvalue().count("RuntimeError: broken on purpose") == 2
    assert all(line.startswith(("2", "{", "    ")) for line in lines(out))


def test_a_rate_limited_warning_says_how_many_were_held_back() -> None:
    out = io.StringIO()
    setup_logs("info", "gateway", stream=out)
    log = get_logger("gateway")
    for _ in range(5):
        log.every(3600.0, "redis").warning("redis_failed")
    log.every(3600.0, "other").warning("other_failed")
    for _ in range(2):
        log.every(0.0, "often").warning("often")
    log.every(-1.0, "redis")
    assert len(lines(out)) == 4
    log._limits._state["redis"] = (0.0, 4)
    log.every(3600.0, "redis").warning("redis_failed")
    assert lines(out)[-1].endswith("redis_failed held_back=4")


def test_other_libraries_records_become_messages_in_the_same_shape() -> None:
    out = io.StringIO()
    setup_logs("info", "gateway", stream=out)
    logging.getLogger("uvicorn.error").info("Started %s", "server process")
    assert lines(out)[0].endswith('uvicorn.error: message text="Started server process"')


def test_debug_means_ours_and_not_every_librarys() -> None:
    out = io.StringIO()
    setup_logs("debug", "gateway", stream=out)
    logging.getLogger("asyncio").debug("noise")
    get_logger("gateway").debug("detail")
    assert [line.split(": ")[1] for line in lines(out)] == ["detail"]


def test_a_second_setup_replaces_the_first_and_an_unknown_level_is_refused() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logs("info", "gateway", stream=first)
    setup_logs("warning", "gateway", stream=second)
    get_logger("gateway").info("quiet")
    get_logger("gateway").warning("heard")
    assert (len(lines(first)), len(lines(second))) == (0, 1)
    with pytest.raises(ValueError, match="log level"):
        setup_logs("loud", "gateway")
