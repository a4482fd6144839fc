"""Nothing that comes from outside, weights and templates included, is ever run as code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry import model_store
from tests.test_rooms import ROOMS, ROOT

UNPACKERS = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"})
LOADERS = frozenset({"torch.load", "yaml.load", "numpy.load", "np.load", "torch.hub", "torch.package"})
RUNNERS = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"})
WORDS = frozenset({"trust_remote_code", "weights_only", "allow_pickle", "shell"})

BETWEEN_OUR_OWN_HALVES = {"engine/port.py", "gateway/workers/member.py", "gateway/workers/seat.py"}
"""A worker's io and its engine, and a gateway and its worker processes (settings, once), over sockets that only the two
have; what came from the bus was read before."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        folder = ROOT / "kernels" / room if room.startswith("kvferry_") else ROOT / room
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_the_rooms_are_read() -> None:
    assert len(list(sources())) > 150


def test_only_processes_and_those_that_they_started_speak_pickle() -> None:
    assert {path for path, tree in sources() if imported(tree) & UNPACKERS} == BETWEEN_OUR_OWN_HALVES


def test_nothing_is_loaded_or_run_by_name() -> None:
    found = [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in LOADERS | RUNNERS
    ]
    assert found == []


def test_no_call_is_told_to_trust_code_or_a_shell() -> None:
    found = [
        f"{path}:{node.value.lineno} {node.arg}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in WORDS
    ]
    assert found == []


def test_a_model_from_the_hub_comes_without_code_and_without_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(model: str, *, allow_patterns: list[str], **_: object) -> str:
        asked.append(allow_patterns)
        return "/nowhere"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert model_store._download("a/b", lambda line: None) == Path("/nowhere")
    assert asked == [["*.json", "*.safetensors", "*.jinja"]]
