"""A model folder is whole and of a served kind, or it is refused in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.errors import ModelError
from kvferry.model_folder import ARCHITECTURES, check_model_folder

MakeModel = Callable[..., Path]


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model_folder(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_whole_folder_of_a_served_kind_is_taken(make_model: MakeModel, architecture: str) -> None:
    check_model_folder(make_model(architecture=architecture))


def test_a_sharded_folder_is_taken(make_model: MakeModel) -> None:
    check_model_folder(make_model(index={"a": "part-1.safetensors", "b": "part-2.safetensors"}))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nothing")


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_text("x")
    assert "not a folder" in refusal(tmp_path / "file.gguf")


def test_another_architecture_is_refused_by_name(make_model: MakeModel) -> None:
    assert "GPT2LMHeadModel is not served" in refusal(make_model(architecture="GPT2LMHeadModel"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(make_model: MakeModel, name: str) -> None:
    folder = make_model()
    (folder / name).unlink()
    assert f"{name} is missing" in refusal(folder)


def test_a_missing_shard_is_named(make_model: MakeModel) -> None:
    folder = make_model(index={"a": "part-1.safetensors", "b": "part-2.safetensors"})
    (folder / "part-2.safetensors").unlink()
    assert "part-2.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize("num_bytes_left", [0, 7, 8, 30, -8, -1])
def test_truncated_weights_are_refused_wherever_they_end(make_model: MakeModel, num_bytes_left: int) -> None:
    path = make_model() / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, num_bytes_left if num_bytes_left >= 0 else size + num_bytes_left)
    assert "truncated" in refusal(path.parent)


def test_weights_with_something_behind_them_are_refused(make_model: MakeModel) -> None:
    path = make_model() / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert "too long" in refusal(path.parent)


def test_a_header_without_offsets_is_refused(make_model: MakeModel) -> None:
    path = make_model() / "model.safetensors"
    path.write_bytes((13).to_bytes(8, "little") + b'{"w":{"a":1}}')
    assert "no readable header" in refusal(path.parent)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800", "[" * 100_000])
def test_unreadable_json_is_refused(make_model: MakeModel, text: str) -> None:
    folder = make_model()
    (folder / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    assert "config.json is not" in refusal(folder)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": 5}])
def test_a_config_without_architecture_is_refused(make_model: MakeModel, config: dict[str, object]) -> None:
    folder = make_model()
    (folder / "config.json").write_text(json.dumps(config))
    assert "names no architecture" in refusal(folder)


def test_an_index_that_leads_out_of_the_folder_is_refused(make_model: MakeModel) -> None:
    folder = make_model(index={"a": "part-1.safetensors"})
    text = json.dumps({"weight_map": {"a": "../part-1.safetensors"}})
    (folder / "model.safetensors.index.json").write_text(text)
    assert "outside the folder" in refusal(folder)
