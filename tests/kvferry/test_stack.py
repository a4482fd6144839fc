"""What `up` would start, from its flags."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry import stack as stacks
from kvferry.broker_access import ROLES
from kvferry.errors import UsageError
from kvferry.stack import Stack, broker_access, gateway_specs, read_stack, worker_spec


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "usable_cores", lambda: 2)


def specs(stack: Stack, environ: dict[str, str]) -> dict[str, tuple[list[str], dict[str, str]]]:
    found = [*(worker_spec(stack, name, environ) for name in stack.worker_names), *gateway_specs(stack, environ)]
    return {spec.name: (list(spec.command), dict(spec.environment)) for spec in found}


def test_by_default_there_is_one_of_each() -> None:
    assert list(specs(read_stack([], {}), {})) == ["prefill-1", "decode-1", "gateway-1"]


def test_gateways_listen_on_ports_in_a_row() -> None:
    started = specs(read_stack(["--gateways", "3", "--port", "9000"], {}), {})
    ports = {name: [word for word in command if word.startswith("--port=")] for name, (command, _) in started.items()}
    assert ports["gateway-1"] == ["--port=9000"]
    assert ports["gateway-2"] == ["--port=9001"]
    assert ports["gateway-3"] == ["--port=9002"]
    assert started["gateway-3"][0][-2:] == ["--gateway-id", "gateway-3"]


def test_gateways_that_would_need_a_port_above_the_last_are_refused() -> None:
    with pytest.raises(UsageError, match="no port above 65535"):
        read_stack(["--gateways", "2", "--port", "65535"], {})


def test_memory_and_threads_are_divided_by_the_workers_that_may_come() -> None:
    command, environment = specs(read_stack(["--max-workers", "8", "--role", "both"], {}), {})["decode-1"]
    assert "--host-workers=8" in command
    assert environment["OMP_NUM_THREADS"] == "1"


def test_a_worker_beyond_the_plan_divides_by_those_that_there_are() -> None:
    stack = read_stack([], {})
    assert "--host-workers=5" in worker_spec(stack, "decode-4", {}, num_workers=5).command
    assert "--host-workers=2" in worker_spec(stack, "decode-1", {}, num_workers=1).command


def test_fewer_workers_at_most_than_at_the_start_are_refused() -> None:
    with pytest.raises(UsageError, match="less than the 3 workers to start"):
        read_stack(["--decode", "2", "--max-workers", "2"], {})


def test_as_many_workers_start_as_were_asked_for() -> None:
    stack = read_stack(["--prefill", "2", "--decode", "3"], {})
    assert stack.worker_names == ["prefill-1", "prefill-2", "decode-1", "decode-2", "decode-3"]
    assert stack.worker.host_workers == 5


def test_role_both_has_decode_workers_alone_and_no_limit_for_prompts() -> None:
    stack = read_stack(["--role", "both"], {})
    assert stack.worker_names == ["decode-1"]
    assert stack.worker.local_prefill_tokens == -1
    assert stack.num_prefill == 0
    assert stack.worker.host_workers == 1


@pytest.mark.parametrize("argv", [["--prefill", "2"], ["--local-prefill-tokens", "100"]])
def test_what_has_no_meaning_with_role_both_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="no meaning with --role both"):
        read_stack(["--role", "both", *argv], {})


@pytest.mark.parametrize("flag", ["--worker-id=x", "--status-port=1", "--host-workers=2"])
def test_what_up_decides_itself_is_no_flag(flag: str) -> None:
    with pytest.raises(UsageError, match="unknown flag"):
        read_stack([flag], {})


def test_a_command_line_names_service_and_worker() -> None:
    commands = {name: command for name, (command, _) in specs(read_stack([], {}), {}).items()}
    for name, command in commands.items():
        start = command.index("kvferry")
        assert command[start - 1] == "-m"
        assert command[start + 1] == name.split("-")[0]
        assert command[-1] == name


def test_flags_reach_the_service_they_are_for() -> None:
    argv = ["--max-num-seqs", "3", "--port", "9", "--max-model-len", "512", "--host", "0.0.0.0"]
    started = specs(read_stack(argv, {}), {})
    gateway, decode = started["gateway-1"][0], started["decode-1"][0]
    assert "--port=9" in gateway
    assert "--host=0.0.0.0" in gateway
    assert "--max-model-len=512" in gateway
    assert "--max-model-len=512" in decode
    assert "--max-num-seqs=3" in decode
    assert not any("--host=" in word or "--port=" in word for word in decode)


def test_secrets_reach_children_by_environment_alone() -> None:
    stack = read_stack(["--api-key", "hush"], {})
    urls = {role: f"://{role}:whisper@h" for role in ROLES}
    nats, redis = ({role: scheme + url for role, url in urls.items()} for scheme in ("nats", "redis"))
    stack = replace(stack, brokers=broker_access(stack, nats, redis))
    started = specs(stack, {})
    for command, _ in started.values():
        shown = " ".join(command)
        assert not any(secret in shown for secret in ("hush", "whisper"))
    _, environment = started["gateway-1"]
    assert environment["KVFERRY_API_KEY"] == "hush"
    assert environment["KVFERRY_NATS_URL"] == "nats://gateway:whisper@h"
    assert started["prefill-1"][1]["KVFERRY_NATS_URL"] == "nats://prefill:whisper@h"
    _, environment = started["decode-1"]
    assert environment["KVFERRY_REDIS_URL"] == "redis://decode:whisper@h"
    assert "KVFERRY_API_KEY" not in environment


def test_variables_are_read_by_up_and_not_again_by_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {"KVFERRY_MAX_NUM_SEQS": "5", "KVFERRY_DECODE": "2", "KVFERRY_CACHE": "/c"}
    monkeypatch.setenv("KVFERRY_DTYPE_FILE", "/no/such/file")
    monkeypatch.setenv("KVFERRY_DTYPE", "bf16")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    started = specs(read_stack([]), dict(os.environ))
    command, environment = started["decode-2"]
    assert "--max-num-seqs=5" in command
    assert "KVFERRY_MAX_NUM_SEQS" not in environment
    assert "KVFERRY_DTYPE_FILE" not in environment
    assert environment["KVFERRY_CACHE"] == "/c"


def test_cores_are_divided_among_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    command, environment = specs(read_stack([], {}), {})["decode-1"]
    assert "--num-threads=1" in command
    assert environment["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(stacks, "usable_cores", lambda: 16)
    assert "--num-threads=8" in worker_spec(read_stack([], {}), "decode-1", {}).command
    assert "--num-threads=3" in worker_spec(read_stack(["--num-threads", "3"], {}), "decode-1", {}).command
    alone = worker_spec(read_stack(["--role", "both"], {}), "decode-1", {}).command
    assert not any(word.startswith("--num-threads") for word in alone)


def test_the_gateway_keeps_its_threads() -> None:
    _, environment = specs(read_stack([], {}), {})["gateway-1"]
    assert "OMP_NUM_THREADS" not in environment


def test_settings_complete_at_start_are_passed_on() -> None:
    stack = read_stack([], {})
    stack = replace(stack, worker=replace(stack.worker, model="/m", served_model_name="n"))
    command, _ = specs(stack, {})["prefill-1"]
    assert "--model=/m" in command
    assert "--served-model-name=n" in command


@pytest.mark.parametrize("broker", ["nats", "redis"])
def test_tls_needs_a_broker_that_up_does_not_start(broker: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    flags = [f"--{broker}-tls-ca", str(tmp_path / "ca.pem")]
    with pytest.raises(UsageError, match=f"needs --{broker}-url"):
        read_stack(flags, {})
    stack = read_stack([*flags, f"--{broker}-url", f"{broker}://h"], {})
    command, _ = specs(stack, {})["prefill-1"]
    assert f"--{broker}-tls-ca={tmp_path / 'ca.pem'}" in command
