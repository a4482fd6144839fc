"""`kvferry fetch`: a model is downloaded or converted before anybody needs it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry.errors import ModelError
from kvferry.flags import read_settings
from kvferry.model_store import ensure_model
from runtime import units
from runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Which model, and under which name services find it."""

    model: str | None = setting(
        units.text,
        None,
        "local Hugging Face folder or hub id; without it the bundled SmolLM2-135M-Instruct",
    )
    link: str | None = setting(
        units.text,
        None,
        "path that becomes a link to the model's folder, for services that are started with this path as --model",
        metavar="PATH",
    )


def run_fetch(argv: Sequence[str]) -> int:
    """Print the model's folder. Raises `ModelError` if there is none to be had."""
    about = "Download or convert a model into the cache, unless it is there, and say where it is."
    settings = read_settings(FetchSettings, "fetch", about, argv)
    folder = ensure_model(settings.model or None, _tell)
    if settings.link is not None:
        _link(Path(settings.link), folder)
    sys.stdout.write(f"{folder}\n")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"kvferry fetch: {line}\n")


def _link(path: Path, folder: Path) -> None:
    """Point ``path`` at ``folder``; whoever reads it meanwhile finds the old or the new one."""
    if path.exists() and not path.is_symlink():
        raise ModelError(f"--link {path} is there already, and is no link")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)  # of a run with this id that was killed, as in a container each has it
        new.symlink_to(folder)
        new.replace(path)
    except OSError as error:
        raise ModelError(f"--link {path}: {error.strerror}") from None
