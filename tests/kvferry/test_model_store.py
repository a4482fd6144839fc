"""From a model's name to a folder: converted once, whoever starts, whenever one is interrupted."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.errors import ModelError
from kvferry.model_store import cache_root, ensure_converted, ensure_model, served_name

MakeModel = Callable[..., Path]
Eventually = Callable[[Callable[[], object]], object]

CONVERTER = """
import os, shutil, sys, time
from pathlib import Path
source, target = Path(sys.argv[1]), Path(sys.argv[2])
here = Path(__file__).parent
with (here / "runs").open("a") as runs:
    runs.write("run\\n")
print("half done", flush=True)
shutil.copy(source / "config.json", target)
if (here / "hold").exists():
    (here / "held").touch()
    while (here / "hold").exists():
        time.sleep(0.01)
if (here / "fail").exists():
    sys.exit("out of luck")
for path in source.iterdir():
    shutil.copy(path, target)
"""

STARTER = """
import sys
from pathlib import Path
from kvferry.model_store import ensure_converted
say = lambda line: print(line, flush=True)
print(ensure_converted(Path(sys.argv[1]), "tiny", say, module="tiny_converter"))
"""


class Conversion:
    """A tiny model that a converter of our own copies, and processes that ask for it."""

    def __init__(self, folder: Path, source: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.source = source
        self._key = folder / "key"
        self._key.write_text("content")
        self._environ = {**environ, "PYTHONPATH": ":".join([str(folder), *sys.path])}
        (folder / "tiny_converter.py").write_text(CONVERTER.replace("Path(sys.argv[1])", f"Path({str(source)!r})"))

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", STARTER, str(self._key)]
        return subprocess.Popen(
            command,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def num_runs(self) -> int:
        return len((self.folder / "runs").read_text().splitlines())

    def cached(self) -> list[str]:
        folder = Path(self._environ["KVFERRY_CACHE"]) / "models"
        return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def conversion(tmp_path: Path, make_model: MakeModel, environ: dict[str, str]) -> Conversion:
    return Conversion(tmp_path, make_model("source"), environ)


def test_a_second_start_finds_what_the_first_converted(conversion: Conversion) -> None:
    first, _ = conversion.start().communicate(timeout=60)
    second, _ = conversion.start().communicate(timeout=60)
    assert first.splitlines()[-1] == second.strip()
    assert conversion.num_runs() == 1


def test_of_two_at_once_one_converts_and_the_other_says_that_it_waits(
    conversion: Conversion, eventually: Eventually
) -> None:
    (conversion.folder / "hold").touch()
    first = conversion.start()
    eventually(lambda: (conversion.folder / "held").exists())
    second = conversion.start()
    assert second.stdout is not None
    assert second.stdout.readline().startswith("waiting: another process")
    (conversion.folder / "hold").unlink()
    first_says, _ = first.communicate(timeout=60)
    second_says, _ = second.communicate(timeout=60)
    assert first_says.splitlines()[-1] == second_says.splitlines()[-1]
    assert conversion.num_runs() == 1
    assert len(conversion.cached()) == 1


def test_what_a_killed_conversion_left_is_thrown_away(conversion: Conversion, eventually: Eventually) -> None:
    (conversion.folder / "hold").touch()
    killed = conversion.start()
    eventually(lambda: (conversion.folder / "held").exists())
    killed.kill()
    killed.communicate(timeout=60)
    assert [name for name in conversion.cached() if name.startswith(".")]
    (conversion.folder / "hold").unlink()
    says, _ = conversion.start().communicate(timeout=60)
    assert "half done" in says
    assert conversion.cached() == [Path(says.splitlines()[-1]).name]


def test_a_failed_conversion_is_one_error_and_leaves_nothing(
    conversion: Conversion,
) -> None:
    (conversion.folder / "fail").touch()
    process = conversion.start()
    says, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert says.splitlines()[-1].endswith("failed: out of luck")
    assert conversion.cached() == []


def test_a_damaged_result_is_made_again(conversion: Conversion) -> None:
    says, _ = conversion.start().communicate(timeout=60)
    folder = Path(says.splitlines()[-1])
    (folder / "tokenizer.json").unlink()
    says, _ = conversion.start().communicate(timeout=60)
    assert "is damaged and is replaced" in says
    assert (folder / "tokenizer.json").exists()
    assert conversion.cached() == [folder.name]


def test_a_local_folder_is_checked_and_used_as_it_is(make_model: MakeModel) -> None:
    folder = make_model()
    assert ensure_model(str(folder), print) == folder.resolve()


def test_a_missing_path_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        ensure_model(str(tmp_path / "a" / "b"), print)


def test_the_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError) as caught:
        ensure_model("owner/name", lambda line: None)
    assert "owner/name: no such folder, and the hub didn't give it (no route)" in str(caught.value)


def test_the_name_served_is_what_the_user_typed() -> None:
    assert served_name(None) == "SmolLM2-135M-Instruct"
    assert served_name("owner/name") == "owner/name"


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("KVFERRY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "kvferry"


def test_a_converter_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_text("x")
    with pytest.raises(ModelError, match="No module named"):
        ensure_converted(source, "tiny", lambda line: None, module="no_such_module_at_all")
