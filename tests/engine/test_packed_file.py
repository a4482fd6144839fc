"""Packed matrices are made once, mapped by whoever comes later, and made anew when their file is damaged."""

import logging
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine import packed_file
from engine.packed_file import PackedFile, Tiles


def matrices() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        "layer.output": torch.randn(2, 24, 32, 2, generator=random).bfloat16(),
        "head": torch.randint(0, 255, (3, 5, 32, 4), generator=random, dtype=torch.uint8),
    }


class Builder:
    """What a model's loader is to the file: takes all matrices, and counts those that it had to pack."""

    def __init__(self) -> None:
        self.num_packed = 0

    def __call__(self, tiles: Tiles) -> dict[str, torch.Tensor]:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self.num_packed += 1
            return tensor

        return {name: tiles.get(name, lambda tensor=tensor: pack(tensor)) for name, tensor in matrices().items()}


def load(file: PackedFile) -> int:
    """How many matrices were packed; whatever comes is right and begins on a cache line."""
    builder = Builder()
    loaded = file.load(builder)
    for name, tensor in matrices().items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].data_ptr() % packed_file.CACHE_LINE == 0
    return builder.num_packed


def test_matrices_are_packed_once_and_then_mapped(tmp_path: Path) -> None:
    assert load(PackedFile(tmp_path / "packed", "numbers")) == 2
    assert load(PackedFile(tmp_path / "packed", "numbers")) == 0
    assert load(PackedFile(tmp_path / "packed", "others")) == 2
    assert (tmp_path / "packed").stat().st_mode & 0o777 == 0o700
    assert PackedFile(tmp_path / "packed", "numbers").path.stat().st_mode & 0o777 == 0o600


def test_the_file_is_in_a_format_that_others_read(tmp_path: Path) -> None:
    file = PackedFile(tmp_path, "numbers")
    load(file)
    with safe_open(file.path, framework="pt") as opened:
        assert set(opened.keys()) == set(matrices())


@pytest.mark.parametrize("fault", ["a bit", "the end", "the header", "all"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    file = PackedFile(tmp_path, "numbers")
    load(file)
    content = bytearray(file.path.read_bytes())
    if fault == "a bit":
        content[-100] ^= 4
    elif fault == "the header":
        content[:8] = b"\xff" * 8
    else:
        del content[0 if fault == "all" else -64 :]
    file.path.write_bytes(content)
    assert load(file) == 2
    assert "packed_file_damaged" in caplog.text
    assert load(file) == 0


def test_those_who_start_together_pack_once(tmp_path: Path) -> None:
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(load(PackedFile(tmp_path, "n")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(counts) == [0, 0, 0, 2]


def test_where_nothing_can_be_kept_the_matrices_are_the_workers_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert load(PackedFile(tmp_path / "file", "numbers")) == 2
    assert "weights_not_shared" in caplog.text


def test_a_disk_that_fills_up_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(tensor: torch.Tensor) -> memoryview:
        raise OSError(28, "No space left on device")

    content = packed_file._header(matrices())
    monkeypatch.setattr(packed_file, "_header", lambda tensors: content)
    monkeypatch.setattr(packed_file, "_bytes", full)
    assert load(PackedFile(tmp_path, "numbers")) == 2
    assert "weights_not_shared" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    file = PackedFile(tmp_path, "numbers")
    left = [file.path.with_suffix(f".{pid}.part") for pid in (1, os.getpid())]
    for path in left:
        path.write_text("half")
    assert load(file) == 2
    assert not any(path.exists() for path in left)
    assert load(file) == 0


def test_files_that_nobody_used_for_long_are_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = [PackedFile(tmp_path, f"numbers{i}") for i in range(packed_file.MAX_FILES + 1)]
    for age, file in enumerate(files[:-1]):
        load(file)
        os.utime(file.path, (age, age))
    load(files[0])  # used again: the second is the oldest now
    load(files[-1])
    assert [file.path.exists() for file in files] == [True, False, True, True, True]
