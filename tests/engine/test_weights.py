"""Weights are found by name, checked, and identified cheaply."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelError
from engine.weights import files_fingerprint, open_weights, weights_fingerprint


def folder_with(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("[]")
    return folder


def test_missing_misshaped_and_integer_tensors_are_refused_by_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, a=torch.ones(2, 3), b=torch.ones(4, dtype=torch.int32))
    weights = open_weights(folder)
    assert weights.take("a", 2, 3).tolist() == [[1, 1, 1]] * 2
    with pytest.raises(ModelError, match="has no tensor c"):
        weights.take("c", 1)
    with pytest.raises(ModelError, match=r"a has shape \[2, 3\], config.json says \[3, 2\]"):
        weights.take("a", 3, 2)
    with pytest.raises(ModelError, match="b has dtype"):
        weights.take("b", 4)


def test_a_folder_without_weights_or_with_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no model"):
        open_weights(tmp_path)
    folder = folder_with(tmp_path, a=torch.ones(1000))
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", b"\x01\x02", whole[:40], whole[:-100], b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"truncated|not a safetensors"):
            open_weights(folder)


def test_shards_are_found_through_the_index_and_stay_in_the_folder(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert open_weights(tmp_path).take("b", 1).item() == 1
    for bad in ({"a": "three.safetensors"}, {"a": "../one.safetensors"}, {}):
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(ModelError):
            open_weights(tmp_path)


def test_the_fingerprint_is_stable_and_sees_every_part(tmp_path: Path) -> None:
    big = torch.zeros(1 << 20)
    first = weights_fingerprint(folder_with(tmp_path / "a", x=big))
    assert len(first) == 64
    assert weights_fingerprint(folder_with(tmp_path / "b", x=big)) == first
    start, end, longer = big.clone(), big.clone(), torch.zeros((1 << 20) + 1)
    start[0], end[-1] = 1, 1
    others = [weights_fingerprint(folder_with(tmp_path / "c", x=x)) for x in (start, end, longer)]
    others.append(weights_fingerprint(folder_with(tmp_path / "c", y=big)))
    for name in ("config.json", "tokenizer.json"):
        folder = folder_with(tmp_path / "c", x=big)
        (folder / name).write_text("{ }")
        others.append(weights_fingerprint(folder))
    assert len({first, *others}) == 7


def test_weights_that_were_changed_in_place_are_other_files(tmp_path: Path) -> None:
    """A change in the middle of a large shard, whose header and ends stay as they are."""
    numbers = torch.zeros(1 << 20)
    folder = folder_with(tmp_path / "a", x=numbers)
    content, files = weights_fingerprint(folder), files_fingerprint(folder)
    assert files_fingerprint(folder) == files
    assert files_fingerprint(folder, "int8") != files
    numbers[1 << 19] = 1
    folder_with(tmp_path / "a", x=numbers)
    assert weights_fingerprint(folder) == content
    assert files_fingerprint(folder) != files
