"""Files with secrets: folders of mode 0700, files of mode 0600, never half written."""

import os
import stat
from pathlib import Path

from kvferry.errors import UsageError
from kvferry.flush import flush

MAX_URL_CHARS = 4096


def private(folder: Path) -> Path:
    """Make the folder, or take the one that is there (a mount, say), for its owner alone.

    Raises:
        UsageError: it is somebody else's, or no folder.

    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{folder} is no folder of its own")
        if found.st_uid != os.geteuid():
            raise UsageError(f"{folder} belongs to user {found.st_uid}, and this process is user {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise UsageError(f"{folder} can't be made private ({error.strerror})") from None
    return folder


def write_private(path: Path, text: str) -> None:
    """Put `text` there at once and whole. Raises `UsageError` if it can't be."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # of a run that was killed
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        new.rename(path)
        flush(path.parent)
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror})") from None


def read_line(path: Path) -> str:
    """Return the one line of a file of ours. Raises `UsageError` if it can't be read or is too long."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_URL_CHARS + 1)
    except (OSError, ValueError):
        raise UsageError(f"{path} can't be read") from None
    if len(text) > MAX_URL_CHARS:
        raise UsageError(f"{path} is none of ours: it is too long")
    return text.strip()
