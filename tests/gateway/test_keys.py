"""Keys: what a file of them may say, and when it is read again."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import pytest

from gateway.key_ring import LOOK_S, KeyRing
from gateway.keys import Key, KeyFileError, digest_of, parse_keys
from gateway.limits import Limits
from gateway.settings import GatewaySettings
from runtime.settings import SettingsError, add_flags, read
from tests.support.http_twin import Api, error_of

SECRET = b"kvf-very-secret"
DIGEST = digest_of(SECRET).hex()
ALICE = Key("alice", digest_of(SECRET), Limits(60, 1000, 2))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def line(name: str = "alice", secret: bytes = SECRET, **fields: object) -> str:
    return json.dumps({"name": name, "sha256": digest_of(secret).hex(), **fields})


def test_a_key_comes_back_from_its_line() -> None:
    assert parse_keys(f"# ours\n\n{ALICE.to_line()}\n") == [ALICE]
    assert parse_keys(Key("bob", ALICE.digest).to_line()) == [Key("bob", ALICE.digest)]


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "[]",
        "[" * 100_000,
        '{"name": "alice"}',
        line(name=""),
        line(name="a b"),
        line(name="a" * 65),
        line(name="{x}"),
        json.dumps({"name": "alice", "sha256": SECRET.decode()}),
        line(concurrency=-1),
        line(concurrency=1.5),
        line(concurrency=True),
        line(concurrency="3"),
        line(requests_per_minute=10**10),
        line(models=["a"]),
        line() + "\n" + line(secret=b"other"),
        line() + "\n" + line(name="bob"),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_is_wrong_is_refused_and_nothing_of_it_repeated(text: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        parse_keys("# comment\n" + text)
    assert SECRET.decode() not in str(caught.value)
    assert DIGEST not in str(caught.value)


def test_keys_of_settings_and_file_open_and_others_do_not(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line() + "\n")
    ring = KeyRing(["plain", "other"], file)
    assert ring.asks
    assert ring.find(SECRET) == Key("alice", digest_of(SECRET))
    assert ring.find(b"other") == Key("api-key-2", digest_of(b"other"))
    for wrong in (b"", b"kvf-very-secre", b"alice", DIGEST.encode(), digest_of(SECRET)):
        assert ring.find(wrong) is None


def test_neither_ring_nor_key_holds_or_shows_a_key() -> None:
    ring = KeyRing([SECRET.decode()])
    assert SECRET.decode() not in repr(vars(ring))
    assert SECRET not in repr(vars(ring)).encode()
    assert repr(ring.find(SECRET)) == f"Key(name='api-key-1', limits={Limits()!r})"


def test_no_key_is_asked_for_without_any_but_an_empty_file_locks(tmp_path: Path) -> None:
    assert not KeyRing().asks
    file = tmp_path / "keys"
    file.touch()
    ring = KeyRing(file=file)
    assert ring.asks
    assert ring.find(b"") is None


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    for file in (tmp_path / "none", tmp_path):
        with pytest.raises(KeyFileError):
            KeyRing(file=file)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\xff")
    with pytest.raises(KeyFileError, match="UTF-8"):
        KeyRing(file=broken)
    broken.write_text("# too long\n" * 100_000)
    with pytest.raises(KeyFileError, match="larger"):
        KeyRing(file=broken)


def test_a_changed_file_is_read_again_within_a_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text(line() + "\n")
    ring = KeyRing(file=file, clock=clock)
    replace(file, line("bob", b"bobs") + "\n")
    assert ring.find(b"bobs") is None
    clock.now += LOOK_S
    assert ring.find(b"bobs") is not None
    assert ring.find(SECRET) is None


def test_a_broken_or_lost_file_leaves_the_old_keys_and_is_an_error_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text(line() + "\n")
    ring = KeyRing(file=file, clock=clock)
    for change in (lambda: replace(file, "broken " + SECRET.decode()), file.unlink):
        caplog.clear()
        change()
        for _ in range(3):
            clock.now += LOOK_S
            assert ring.find(SECRET) is not None
        assert [record.getMessage() for record in caplog.records] == ["keys_refused"]
        assert caplog.records[0].levelno == logging.ERROR
        assert SECRET.decode() not in str(caplog.records[0].__dict__["fields"])
    file.write_text("")
    clock.now += LOOK_S
    assert ring.find(SECRET) is None


def test_a_key_of_the_settings_has_the_limits_that_the_file_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line(concurrency=1))
    found = KeyRing([SECRET.decode()], file).find(SECRET)
    assert found is not None
    assert found.limits == Limits(concurrency=1)


def test_keys_of_a_file_open_the_app(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line())
    api = Api(keys=KeyRing(file=file), key=SECRET.decode())
    assert api.get("/v1/models").status_code == 200
    error_of(Api(keys=KeyRing(file=file), key="wrong").get("/v1/models"), 401)


def replace(file: Path, text: str) -> None:
    """As `kvferry key` does it."""
    beside = file.with_name("beside")
    beside.write_text(text)
    beside.replace(file)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--api-key", ""], {}),
        (["--api-key="], {}),
        (["--api-key", ","], {}),
        (["--keys-file", ""], {}),
        ([], {"KVFERRY_API_KEY": " , "}),
    ],
)
def test_keys_that_turn_out_empty_do_not_open_the_gateway_to_everybody(
    argv: list[str], environ: dict[str, str]
) -> None:
    """As `--api-key "$KEY"` is without that variable."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, GatewaySettings)
    with pytest.raises(SettingsError, match="leave it out"):
        read(GatewaySettings, parser.parse_args(argv), environ)
