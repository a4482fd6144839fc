"""`kvferry fetch`: the folder is said and linked, and services find the newest one under one path."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.cli import main

MakeModel = Callable[..., Path]


def test_a_folder_is_checked_and_said(make_model: MakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model()
    assert main(["fetch", "--model", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_a_link_points_at_the_model_fetched_last(make_model: MakeModel, tmp_path: Path) -> None:
    link = tmp_path / "served" / "model"
    one, two = make_model("one"), make_model("two")
    for folder in (one, two, two):
        assert main(["fetch", "--model", str(folder), "--link", str(link)]) == 0
        assert link.resolve() == folder
    assert [path.name for path in link.parent.iterdir()] == ["model"]


def test_what_a_killed_run_of_the_same_id_left_is_replaced(make_model: MakeModel, tmp_path: Path) -> None:
    link, folder = tmp_path / "model", make_model("one")
    (tmp_path / f".model.{os.getpid()}").symlink_to("nowhere")
    assert main(["fetch", "--model", str(folder), "--link", str(link)]) == 0
    assert link.resolve() == folder


def test_what_is_no_link_is_not_replaced(
    make_model: MakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "notes"
    taken.write_text("mine")
    assert main(["fetch", "--model", str(make_model()), "--link", str(taken)]) == 2
    assert "is there already, and is no link" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_no_folder_leaves_the_link_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "model"
    assert main(["fetch", "--model", str(tmp_path / "none"), "--link", str(link)]) != 0
    assert "none" in capsys.readouterr().err
    assert not link.is_symlink()
