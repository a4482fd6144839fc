"""`kvferry secrets`: made once, private, complete for each role, and never said."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway import redis_limits
from gateway.responses_api import redis_store
from kvferry.broker_access import OPERATOR, ROLES
from kvferry.cli import main
from kvferry.errors import UsageError
from kvferry.secrets import SecretsSettings, make_secrets
from kvferry.secrets_nats import RIGHTS
from kvferry.secrets_redis import LIMITS, RESPONSES, ROSTER, RULES
from protocol import subjects
from runtime import roster_store
from runtime.bus import subject_matches
from runtime.bus_address import BusAddress
from runtime.redis_address import RedisAddress

DEFAULT = SecretsSettings()


def contents(folder: Path) -> Mapping[Path, str]:
    return {path.relative_to(folder): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_each_folder_has_all_that_its_service_needs(tmp_path: Path) -> None:
    make_secrets(tmp_path, DEFAULT)
    expected = {f"{role}/{name}" for role in ROLES for name in ("nats-url", "redis-url")}
    assert {str(path) for path in contents(tmp_path)} == expected | {"nats/nats.conf", "redis/users.acl"}
    for role in ROLES:
        bus = BusAddress.parse((tmp_path / role / "nats-url").read_text().strip())
        store = RedisAddress.parse((tmp_path / role / "redis-url").read_text().strip())
        assert (bus.servers, bus.user) == (("nats://nats:4222",), role)
        assert (store.host, store.port, store.user) == ("redis", 6379, role)
        assert bus.password in (tmp_path / "nats/nats.conf").read_text()
        assert store.password not in (tmp_path / "redis/users.acl").read_text()


def test_passwords_have_192_bits_and_no_two_are_alike(tmp_path: Path) -> None:
    make_secrets(tmp_path, DEFAULT)
    urls = [text for path, text in contents(tmp_path).items() if path.name.endswith("-url")]
    passwords = [urlsplit(url).password or "" for url in urls]
    assert len(set(passwords)) == 2 * len(ROLES)
    assert {len(bytes.fromhex(password)) * 8 for password in passwords} == {192}


def test_folders_and_files_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_secrets(tmp_path / "new", DEFAULT)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    assert len(make_secrets(tmp_path, DEFAULT)) == 10
    (tmp_path / "nats/nats.conf").write_text("edited by hand")
    before = contents(tmp_path)
    assert make_secrets(tmp_path, SecretsSettings(nats_host="elsewhere")) == []
    assert contents(tmp_path) == before


def test_renew_makes_all_anew(tmp_path: Path) -> None:
    make_secrets(tmp_path, DEFAULT)
    before = contents(tmp_path)
    assert len(make_secrets(tmp_path, SecretsSettings(renew=True, nats_host="10.0.0.1", nats_port=9))) == 10
    after = contents(tmp_path)
    assert not set(before.values()) & set(after.values())
    assert "@10.0.0.1:9\n" in after[Path("decode/nats-url")]
    assert 'listen: "0.0.0.0:9"' in after[Path("nats/nats.conf")]


@pytest.mark.parametrize("lost", ["nats/nats.conf", "redis/users.acl"])
def test_a_run_that_was_killed_is_completed_by_the_next(tmp_path: Path, lost: str) -> None:
    make_secrets(tmp_path, DEFAULT)
    before = contents(tmp_path)
    (tmp_path / lost).unlink()
    (tmp_path / f"{lost}.new").write_text("half")
    assert make_secrets(tmp_path, DEFAULT) == [tmp_path / lost]
    assert contents(tmp_path) == before


def test_an_address_that_is_lost_while_its_broker_knows_the_password_is_not_made_up(tmp_path: Path) -> None:
    make_secrets(tmp_path, DEFAULT)
    (tmp_path / "decode/redis-url").unlink()
    with pytest.raises(UsageError, match=r"redis-url is lost, .* --renew"):
        make_secrets(tmp_path, DEFAULT)
    (tmp_path / "decode/redis-url").write_text("hush\n" * 5000)
    with pytest.raises(UsageError, match="none of ours") as caught:
        make_secrets(tmp_path, DEFAULT)
    assert "hush" not in str(caught.value)


def test_an_empty_folder_that_is_mounted_there_is_taken_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir(mode=0o755)
    make_secrets(tmp_path, DEFAULT)
    assert stat.S_IMODE((tmp_path / "gateway").stat().st_mode) == 0o700


def test_a_folder_that_is_somebody_elses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gateway").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"belongs to user \d+, and this process is user \d+"):
        make_secrets(tmp_path, DEFAULT)


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "gateway").symlink_to(tmp_path / "shared")
    with pytest.raises(UsageError, match="is no folder of its own"):
        make_secrets(tmp_path, DEFAULT)


@pytest.mark.parametrize("host", ["a b", "h/x", "u@h", "::1", 'x"'])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["secrets", str(tmp_path / "new"), "--nats-host", host]) == 2
    assert "is no host name" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_says_what_it_made_and_never_a_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["secrets", str(tmp_path)]) == 0
    assert main(["secrets", str(tmp_path)]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[0] == f"made {tmp_path}/gateway/nats-url"
    assert said[-1] == f"all is there already in {tmp_path}"
    for path, text in contents(tmp_path).items():
        if path.name.endswith("-url"):
            assert (urlsplit(text).password or "?") not in "\n".join(said)


def test_each_role_may_use_what_it_needs_on_the_bus() -> None:
    gateway, prefill, decode, operator = (RIGHTS[role] for role in ROLES)
    ids = {"gateway": "gateway-a", "prefill": "prefill-b", "decode": "decode-c", OPERATOR: "cli-1"}
    for role in ROLES:
        heard = RIGHTS[role].subscribe
        assert any(subject_matches(pattern, subjects.inbox(ids[role], "gateway")) for pattern in heard)
        assert subjects.HEARTBEATS in heard
    for role in subjects.ROLES:
        assert subjects.heartbeat(ids[role]) in RIGHTS[role].publish
        beats = [subject for subject in RIGHTS[role].publish if "heartbeat" in subject]
        assert beats == [subjects.heartbeat(ids[role])]
    contents_of = subjects.contents("decode-c")
    assert any(subject_matches(pattern, contents_of) for pattern in prefill.publish)
    assert any(subject_matches(pattern, contents_of) for pattern in decode.subscribe)
    others = (*gateway.publish, *gateway.subscribe, *operator.publish, *operator.subscribe, *decode.publish)
    assert not any("contents" in pattern or ">" in pattern for pattern in (*others, *prefill.subscribe))


def test_keys_of_limits_and_responses_are_the_gateways_alone() -> None:
    assert (ROSTER, LIMITS) == (roster_store.KEY_PREFIX, redis_limits.PREFIX)
    assert redis_store.PREFIX == RESPONSES
    for keys in (LIMITS, RESPONSES):
        assert {role for role in ROLES if keys in RULES[role]} == {"gateway"}
