"""A folder that only this user can read and only this process uses; gone when the process is."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "kvferry-"
_LOCK = ".owner-lives"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder with mode 0700 and remove it at the end.

    Folders of owners that were killed are removed here too: their lock is free.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    with (folder / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "new").rename(folder / _LOCK)  # seen by others only when it is held
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _sweep(base: Path) -> None:
    """Remove this user's folders whose owner is gone; one without a lock is just being made."""
    for folder in base.glob(_PREFIX + "*"):
        lock = folder / _LOCK
        if folder.is_symlink() or not lock.is_file() or folder.stat().st_uid != os.getuid():
            continue
        # BlockingIOError: it has an owner. FileNotFoundError: another process removes it too.
        with suppress(BlockingIOError, FileNotFoundError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
