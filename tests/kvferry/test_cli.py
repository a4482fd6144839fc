"""The command line: light, and each refusal one line with exit code 2."""

import os
import subprocess
import sys

import pytest

from kvferry.cli import _COMMANDS, _HIDDEN
from kvferry.not_built import NOT_BUILT


def kvferry(*argv: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvferry", *argv]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", ["decode", "prefill", "gateway", "up"])
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size is not built yet"),
        (["-tp", "2"], "-tp is not built yet"),
        (["--speculative-config.model=x"], "is not built yet (speculative decoding)"),
        (["--max-model-lem", "5"], "did you mean --max-model-len?"),
        (["--model"], "expected one argument"),
        (["--model", "/nowhere/at/all"], "no such folder"),
        (["word"], "unexpected argument 'word'"),
        (["--max-model-len", "x"], "--max-model-len: 'x' is not a whole number"),
    ],
)
def test_what_cant_be_is_refused_in_one_line(
    command: str, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.cli import main

    port = ["--port", "0"] if command == "up" else []
    assert main([command, *port, *argv]) == 2
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"kvferry {command}: ")
    assert says in lines[0]


@pytest.mark.parametrize("flags", NOT_BUILT.values(), ids=list(NOT_BUILT))
def test_flags_that_are_not_built_are_refused_for_workers_and_gateway(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.cli import main

    for flag in flags:
        assert main(["decode", flag, "1"]) == 2
        assert "is not built yet" in capsys.readouterr().err


def test_names_of_flags_may_have_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    from kvferry.cli import main

    assert main(["decode", "--max_num_seqs=0"]) == 2
    assert "--max-num-seqs: '0' is not between" in capsys.readouterr().err


def test_an_unknown_command_is_refused(environ: dict[str, str]) -> None:
    done = kvferry("dekode", environ=environ)
    assert done.returncode == 2
    known = [name for name in _COMMANDS if name not in _HIDDEN]
    assert {"up", "decode", "plan", "version"} <= set(known)
    assert done.stderr.splitlines() == [f"kvferry: unknown command 'dekode'; there are {', '.join(known)}"]


@pytest.mark.parametrize("command", ["up", "gateway", "prefill", "decode"])
def test_help_names_flags_and_variables(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from kvferry.cli import main

    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--served-model-name" in shown
    assert "KVFERRY_SERVED_MODEL_NAME" in shown


def test_the_command_line_imports_nothing_heavy(environ: dict[str, str]) -> None:
    code = (
        "import sys, kvferry.cli, kvferry.up, kvferry.services\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi', 'nats', 'redis', 'safetensors'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)


def test_the_version_is_printed(environ: dict[str, str]) -> None:
    from kvferry import __version__

    assert kvferry("version", environ=environ).stdout == f"kvferry {__version__}\n"


def test_a_process_whose_named_parent_is_gone_does_nothing(environ: dict[str, str]) -> None:
    wrong = {**environ, "KVFERRY_PARENT_PID": str(os.getpid() + 1)}
    done = kvferry("version", environ=wrong)
    assert (done.returncode, done.stdout) == (1, "")
