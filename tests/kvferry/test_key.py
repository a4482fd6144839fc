"""`kvferry key`: keys are shown once, files hold digests and are changed whole."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.key_ring import KeyRing
from gateway.limits import Limits
from kvferry import key
from kvferry.cli import main


def key_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main(["key", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_new_key_is_printed_with_the_line_that_opens_a_gateway_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, line = key_of(capsys, "new", "alice", "--requests-per-minute", "60", "--tokens-per-minute=10k")
    assert secret not in line
    file = tmp_path / "keys"
    file.write_text(line)
    found = KeyRing(file=file).find(secret.encode())
    assert found is not None
    assert (found.name, found.limits) == ("alice", Limits(60, 10_000))
    assert len(secret) >= len(key.PREFIX) + 43  # 256 bits


def test_keys_are_added_to_a_private_file_and_removed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    [alice] = key_of(capsys, "new", "alice", "--file", str(file), "--concurrency", "2")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("# ours\n" + file.read_text())
    file.chmod(0o640)
    [bob] = key_of(capsys, "new", "bob", "--file", str(file))
    assert alice != bob
    assert file.stat().st_mode & 0o777 == 0o640
    ring = KeyRing(file=file)
    assert [ring.find(each.encode()) is not None for each in (alice, bob)] == [True, True]
    assert not any(secret in file.read_text() for secret in (alice, bob))
    listed = key_of(capsys, "list", "--file", str(file))
    assert [line.split()[0] for line in listed] == ["name", "alice", "bob"]
    key_of(capsys, "remove", "alice", "--file", str(file))
    assert file.read_text().startswith("# ours\n")
    assert [json.loads(line)["name"] for line in file.read_text().splitlines()[1:]] == ["bob"]
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "say what to do"),
        (["old"], "say what to do"),
        (["new"], "NAME"),
        (["new", "a b"], "a name is"),
        (["new", "{a}"], "a name is"),
        (["new", "alice", "--concurrency", "0"], "--concurrency"),
        (["new", "alice", "--tokens-per-minute", "many"], "--tokens-per-minute"),
        (["new", "alice", "--file", "FILE"], "has a key named alice already"),
        (["remove", "bob", "--file", "FILE"], "has no key named bob"),
        (["remove", "alice", "--file", "NONE"], "No such file"),
        (["list", "--file", "BROKEN"], "line 1"),
        (["new", "carl", "--file", "BROKEN"], "line 1"),
        (["list"], "--file"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    argv: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, broken = tmp_path / "keys", tmp_path / "broken"
    main(["key", "new", "alice", "--file", str(file)])
    broken.write_text("kvf-a-key-itself\n")
    capsys.readouterr()
    before = file.read_text()
    names = {"FILE": str(file), "BROKEN": str(broken), "NONE": str(tmp_path / "none")}
    assert main(["key", *(names.get(word, word) for word in argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert len(err.splitlines()) == 1
    assert "kvf-a-key" not in err
    assert file.read_text() == before
    assert broken.read_text() == "kvf-a-key-itself\n"
    assert {path.name for path in tmp_path.iterdir()} == {"keys", "broken"}


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    key_of(capsys, "new", "alice", "--file", str(file))
    before = file.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key.os, "fsync", full)
    assert main(["key", "new", "bob", "--file", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.endswith("No space left on device\n")) == ("", True)
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_file_that_gateways_would_refuse_for_its_size_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    key_of(capsys, "new", "alice", "--file", str(file))
    before = file.read_text()
    monkeypatch.setattr(key, "MAX_FILE_BYTES", 2 * len(before) - 10)
    assert main(["key", "new", "bob", "--file", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, "would be larger" in err) == ("", True)
    assert file.read_text() == before


def test_whoever_changes_a_file_leaves_it_to_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's `kvferry key` must not make a file that the gateway's user can't read."""
    file, real = tmp_path / "keys", os.stat
    key_of(capsys, "new", "alice", "--file", str(file))
    owner = file.stat()

    def by_root(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        is_new = Path(path).name.startswith(".keys.")
        return os.stat_result((*found[:4], owner.st_uid + 1, *found[5:10])) if is_new else found

    given: list[tuple[int, int]] = []
    monkeypatch.setattr(key.os, "stat", by_root)
    monkeypatch.setattr(key.os, "chown", lambda path, uid, gid: given.append((uid, gid)))
    key_of(capsys, "remove", "alice", "--file", str(file))
    assert given == [(owner.st_uid, owner.st_gid)]
