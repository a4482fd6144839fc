"""Files that other wheels carry for us, found without importing those wheels' code."""

import importlib.metadata
from pathlib import Path


def find_wheel_file(wheel: str, name: str) -> Path | None:
    """Return where the installed `wheel` put its file called `name`, if it has one."""
    try:
        files = importlib.metadata.files(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in files or []:
        if entry.name == name and (path := Path(str(entry.locate()))).is_file():
            return path.resolve()
    return None
