"""Force a file or folder onto the disk. Standard library only: the converter uses it too."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Return when the disk has what was written there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
