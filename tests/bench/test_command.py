"""`kvferry bench` from flags to files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.stub import Delays, Stub
from kvferry.cli import main

QUICK = Delays(ttft_s=0.02, gap01_s=0.005, gap_s=0.005, slow_gap_s=0.005)


@pytest.fixture
def argv(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("bench.campaign.SETTLE_S", 0.0)
    few = ["--num-prompts", "3", "--concurrency", "2", "--prompt-len", "5", "--output-len", "3"]
    return ["bench", "--tokenizer", str(tokenizer_file), "--seeds", "5", *few]


def test_it_prints_a_table_and_writes_json_and_plots(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("KVFERRY_BENCH_API_KEY", "sk-secret")
    file = tmp_path / "out.json"
    with Stub(QUICK) as stub:
        more = ["--base-url", f"mine={stub.base_url}", "--json", str(file), "--plot", str(tmp_path)]
        assert main([*argv, *more]) == 0
    assert stub.served[0].headers["authorization"] == "Bearer sk-secret"
    out, err = capsys.readouterr()
    assert "| mine |" in out
    assert "seeds 5" in out
    assert "custom mine seed 5:" in err
    found = json.loads(file.read_text())
    assert found["settings"]["targets"] == {"mine": stub.base_url}
    assert found["machine"]["cores"] > 0
    assert (tmp_path / "custom.png").exists()
    assert "sk-secret" not in out + err + file.read_text()


def test_without_matplotlib_one_line_says_how_to_get_plots(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.main.can_plot", lambda: False)
    with Stub(QUICK) as stub:
        assert main([*argv, "--base-url", stub.base_url, "--plot", str(tmp_path)]) == 0
    assert "no plots: matplotlib is not installed (pip install 'kvferry[bench]')" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_its_http_library_it_says_how_to_get_it(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "bench"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(argv) == 1
    assert "pip install 'kvferry[bench]'" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with Stub(QUICK) as stub:
        pass
    assert main([*argv, "--base-url", stub.base_url]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kvferry bench: 127.0.0.1:")
