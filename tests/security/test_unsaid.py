"""A real stack at its most talkative: its roles suffice for its work, and it tells no secret to anybody."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kvferry.broker_access import ROLES
from kvferry.stack_file import StackFile, find_stack, stacks_folder
from tests.e2e.conftest import Up

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

MARK = "Zanzibarbara"
"""A word that no log has a reason to hold."""


@pytest.fixture(scope="module")
def talkative(model_dir: Path) -> Iterator[Up]:
    """A stack that has answered one question, and been asked for its ledger and for a cancel by an operator."""
    up = Up("--log-level", "debug", "--kv-cache-memory-bytes", "64MiB", "--gateways", "2").ready()
    prompt = f"Who was {MARK}? Say it twice. " * 30
    with httpx.Client(base_url=f"{up.base_url}/v1", timeout=120) as client:
        model = client.get("/models").json()["data"][0]["id"]
        answer = client.post("/completions", json={"model": model, "prompt": prompt, "max_tokens": 4})
    assert answer.headers["x-kvferry-path"] == "split"
    up.lines += [operator(up, "ledger"), operator(up, "cancel", "req-0")]
    yield up
    assert up.end() == 0


def operator(up: Up, *argv: str) -> str:
    command = [sys.executable, "-m", "kvferry", *argv, "--stack", str(up.port)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def stack(talkative: Up) -> StackFile:
    return find_stack(str(talkative.port))


@pytest.fixture
def secrets(stack: StackFile) -> list[str]:
    urls = [url for access in stack.brokers.values() for url in (access.nats_url, access.redis_url)]
    return [str(urlsplit(url).password) for url in urls]


def broker_logs(stack: StackFile) -> str:
    return "".join(path.read_text(errors="replace") for path in Path(stack.control).parent.glob("*.log"))


def test_nobody_was_refused_anything_in_the_course_of_its_work(talkative: Up, stack: StackFile) -> None:
    for text in ("".join(talkative.lines), broker_logs(stack)):
        for word in ("Permissions Violation", "Authorization", "NOPERM", "NOAUTH", "bus_error", "roster_store_failed"):
            assert word not in text, word


def test_operators_are_heard(talkative: Up) -> None:
    said = "".join(talkative.lines)
    for worker in ("prefill-1", "decode-1"):
        assert f"\n{worker} " in said
    for gateway in ("gateway-1", "gateway-2"):
        assert f"released: {gateway} has nothing of req-0 open" in said


def test_each_role_has_passwords_of_its_own(secrets: list[str]) -> None:
    assert len(set(secrets)) == 2 * len(ROLES)


def test_no_secret_is_on_a_command_line(talkative: Up, secrets: list[str]) -> None:
    pids = [talkative.process.pid, *talkative.descendants()]
    assert len(pids) > 6
    for pid in pids:
        line = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in line for secret in secrets), line


def test_a_process_has_its_own_roles_secrets_alone(talkative: Up, stack: StackFile) -> None:
    seen = 0
    for pid in talkative.descendants():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        role = "" if "engine" in words else next((role for role in ROLES if role in words), "")  # engines need none
        environment = Path(f"/proc/{pid}/environ").read_text()
        for other, access in stack.brokers.items():
            for url in (access.nats_url, access.redis_url):
                assert (url in environment) == (other == role), (words, other)
        seen += bool(role)
    assert seen >= 4


def test_no_log_holds_a_secret_or_a_prompt(talkative: Up, stack: StackFile, secrets: list[str]) -> None:
    for text in ("".join(talkative.lines), broker_logs(stack)):
        assert MARK not in text
        assert not any(secret in text for secret in secrets)


def test_files_with_secrets_are_their_owners_alone(stack: StackFile) -> None:
    folder = Path(stack.control).parent
    files = [path for path in folder.iterdir() if path.is_file()]
    files.append(stacks_folder() / f"{stack.name}.json")
    for path in files:
        assert path.stat().st_uid == os.getuid()
        if path.suffix in (".conf", ".acl", ".json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
