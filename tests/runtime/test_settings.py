"""Settings: where a value comes from, how it is written, and what is refused."""

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from runtime import units
from runtime.service_settings import ServiceSettings
from runtime.settings import (
    SettingsError,
    add_flags,
    described,
    flag_of,
    read,
    setting,
    to_environment,
    to_flags,
    variable_of,
    variables_of,
)
from runtime.worker_settings import WorkerSettings


def worker(argv: list[str], environ: Mapping[str, str] | None = None) -> WorkerSettings:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, WorkerSettings)
    return read(WorkerSettings, parser.parse_args(argv), environ or {})


def test_a_default_holds_when_nothing_is_said() -> None:
    assert worker([]) == WorkerSettings()


def test_the_variable_goes_before_the_default() -> None:
    assert worker([], {"KVFERRY_MAX_NUM_SEQS": "7"}).max_num_seqs == 7


def test_the_flag_goes_before_the_variable() -> None:
    assert worker(["--max-num-seqs", "8"], {"KVFERRY_MAX_NUM_SEQS": "7"}).max_num_seqs == 8


def test_an_empty_variable_says_nothing() -> None:
    assert worker([], {"KVFERRY_MAX_NUM_SEQS": ""}).max_num_seqs == 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("24GB", 24 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("2g", 2 * 10**9),
        ("2G", 2 << 30),
    ],
)
def test_a_size_has_units(text: str, expected: int) -> None:
    assert worker(["--kv-cache-memory-bytes", text]).kv_cache_memory_bytes == expected


@pytest.mark.parametrize(("text", "expected"), [("8192", 8192), ("4k", 4000), ("4K", 4096)])
def test_a_count_of_tokens_may_be_short(text: str, expected: int) -> None:
    assert worker(["--max-model-len", text]).max_model_len == expected


@pytest.mark.parametrize(("text", "expected"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_short_names_of_dtypes_are_known(text: str, expected: str) -> None:
    assert worker(["--dtype", text]).dtype == expected


def test_prefix_caching_has_a_switch_in_flag_and_variable() -> None:
    assert worker([]).enable_prefix_caching
    assert not worker(["--no-enable-prefix-caching"]).enable_prefix_caching
    assert not worker([], {"KVFERRY_ENABLE_PREFIX_CACHING": "false"}).enable_prefix_caching


def test_minus_one_lifts_the_local_prefill_limit() -> None:
    assert worker(["--local-prefill-tokens", "-1"]).local_prefill_tokens == -1


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--max-num-seqs", "0"),
        ("--max-num-seqs", "many"),
        ("--max-num-seqs", "1.5"),
        ("--gpu-memory-utilization", "1.1"),
        ("--gpu-memory-utilization", "nan"),
        ("--kv-cache-memory-bytes", "0"),
        ("--kv-cache-memory-bytes", "2Gb"),
        ("--kv-cache-memory-bytes", "9" * 400),
        ("--dtype", "int3"),
        ("--status-port", "70000"),
        ("--model", "a\nb"),
    ],
)
def test_a_bad_value_is_named_with_its_source(flag: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        worker([flag, text])
    assert str(caught.value).startswith(flag + ":")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_bad_variable_is_named_as_such() -> None:
    with pytest.raises(SettingsError, match="KVFERRY_MAX_NUM_SEQS"):
        worker([], {"KVFERRY_MAX_NUM_SEQS": "x"})


def test_keys_come_repeated_or_with_commas() -> None:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, GatewaySettings)
    flags = parser.parse_args(["--api-key", "a", "--api-key", "b,c"])
    assert read(GatewaySettings, flags, {}).api_key == ("a", "b", "c")


def test_timeouts_have_units() -> None:
    environ = {"KVFERRY_QUEUE_TIMEOUT": "500ms", "KVFERRY_DECODE_TIMEOUT": "2m"}
    settings = read(GatewaySettings, argparse.Namespace(), environ)
    assert (settings.queue_timeout, settings.decode_timeout) == (0.5, 120.0)


@pytest.mark.parametrize("settings", [WorkerSettings, GatewaySettings])
def test_every_field_is_a_setting_whose_help_names_its_variable(
    settings: type[ServiceSettings],
) -> None:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, settings)
    shown = " ".join(parser.format_help().split())
    names = [field.name for field, _ in described(settings)]
    assert names == [field.name for field in dataclasses.fields(settings)]
    for name in names:
        assert flag_of(name) in shown
        assert variable_of(name) in shown


def test_settings_survive_the_way_through_flags_and_environment() -> None:
    settings = WorkerSettings(
        model="/m",
        max_model_len=100,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.25,
        nats_url="nats://user:secret@host:1",
        local_prefill_tokens=-1,
    )
    assert worker(to_flags(settings), to_environment(settings)) == settings


def test_secrets_are_never_put_on_a_command_line() -> None:
    gateway = GatewaySettings(api_key=("k1", "k2"), nats_url="nats://u:secret@h", redis_url="redis://:secret@h")
    assert to_flags(gateway) == []
    assert to_environment(gateway) == {
        "KVFERRY_API_KEY": "k1,k2",
        "KVFERRY_NATS_URL": "nats://u:secret@h",
        "KVFERRY_REDIS_URL": "redis://:secret@h",
    }


def test_a_bad_secret_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        worker([], {"KVFERRY_NATS_URL": "nats://u:hush\n@h"})
    assert "hush" not in str(caught.value)


def in_file(tmp_path: Path, text: str, name: str = "KVFERRY_NATS_URL") -> dict[str, str]:
    path = tmp_path / "value"
    path.write_text(text)
    return {f"{name}_FILE": str(path)}


def test_a_file_goes_before_the_default_and_after_variable_and_flag(tmp_path: Path) -> None:
    environ = in_file(tmp_path, "  7 \n", "KVFERRY_MAX_NUM_SEQS")
    assert worker([], environ).max_num_seqs == 7
    assert worker([], {**environ, "KVFERRY_MAX_NUM_SEQS": "8"}).max_num_seqs == 8
    assert worker(["--max-num-seqs", "9"], environ).max_num_seqs == 9


@pytest.mark.parametrize("text", ["", " \n", "nats://u:hush@h\nnats://u:hush@h", "hush" * 10_000, "http://u:hush@h"])
def test_a_file_that_holds_no_value_is_named_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="KVFERRY_NATS_URL_FILE") as caught:
        worker([], in_file(tmp_path, text))
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(SettingsError, match=f"KVFERRY_NATS_URL_FILE: '{path}' can't be read .*{reason}"):
            worker([], {"KVFERRY_NATS_URL_FILE": str(path)})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="no text"):
        worker([], {"KVFERRY_NATS_URL_FILE": str(tmp_path / "binary")})


def test_a_setting_whose_own_name_ends_in_file_is_no_file_of_another(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Keys:
        key: str = setting(units.text, "", "a key")
        key_file: str = setting(units.text, "", "where keys are")

    found = read(Keys, argparse.Namespace(), in_file(tmp_path, "k", "KVFERRY_KEY"))
    assert found == Keys(key="", key_file=str(tmp_path / "value"))


def test_all_variables_are_known_files_included() -> None:
    assert {"KVFERRY_NATS_URL", "KVFERRY_NATS_URL_FILE", "KVFERRY_DTYPE_FILE"} <= variables_of(WorkerSettings)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--nats-url", "nats://u:hu/sh@h"),
        ("--redis-url", "rediss://u:hush@h?ssl_cert_reqs=none"),
        ("--nats-url", "hush:x"),
    ],
)
def test_an_address_that_is_none_is_refused_at_the_start_and_not_repeated(flag: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{flag}: .*must look like") as caught:
        worker([flag, text])
    assert "hu" not in str(caught.value)


def test_files_for_tls_are_looked_at_when_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"--nats-tls-ca: .* can't be read \(No such file or directory\)"):
        worker(["--nats-tls-ca", str(tmp_path / "none.pem")])
    (tmp_path / "ca.pem").write_text("")
    monkeypatch.chdir(tmp_path)
    found = worker(["--redis-tls-ca", "ca.pem"])
    assert found.redis_tls.ca == str(tmp_path / "ca.pem")
    assert found.redis_tls.given
    assert not found.nats_tls.given


@pytest.mark.parametrize("text", ["auto", "AUTO", "-1"])
def test_the_context_may_be_left_to_memory(text: str) -> None:
    found = worker(["--max-model-len", text])
    assert (found.max_model_len, found.fixed_model_len) == ("auto", None)
    assert to_flags(found) == ["--max-model-len=auto"]
    assert worker(to_flags(found)) == found
    assert worker(["--max-model-len", "2k"]).fixed_model_len == 2000
    assert worker([]).fixed_model_len is None
