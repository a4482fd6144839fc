"""What the tests of `kvferry` share: waiting with a deadline, and small model folders."""

import json
import os
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 20.0
POLL_S = 0.01

Eventually = Callable[[Callable[[], Any]], Any]
MakeModel = Callable[..., Path]


@pytest.fixture
def eventually() -> Eventually:
    """Ask again and again until the answer is true, and return it; fail after a deadline."""

    def wait(ask: Callable[[], Any]) -> Any:
        end = time.monotonic() + DEADLINE_S
        while not (answer := ask()):
            assert time.monotonic() < end, "it did not come true in time"
            time.sleep(POLL_S)
        return answer

    return wait


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Write a model folder with one tiny tensor, whole unless told otherwise."""

    def make(
        name: str = "model",
        architecture: str = "LlamaForCausalLM",
        index: Mapping[str, str] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        (folder / "tokenizer.json").write_text("{}")
        if index is None:
            write_safetensors(folder / "model.safetensors")
            return folder
        for file in set(index.values()):
            write_safetensors(folder / file)
        text = json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
        return folder

    return make


def write_safetensors(path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return alive


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Environment for a process of ours: nothing set by the developer's own shell."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KVFERRY_")}
    return {**kept, "KVFERRY_CACHE": str(tmp_path / "cache")}
