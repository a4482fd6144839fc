"""The directory in which workers of one host meet: a socket for each that receives, named after its life."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import time
from pathlib import Path

from protocol.messages import Peer

SUFFIX, NEW_SUFFIX = ".link", ".new"
NEW_S = 60.0
"""A socket that is still new after so long was left by one that was killed in between."""
_BACKLOG = 64


class Meeting:
    """A private directory on a file system of this host; containers of a host may mount the same one.

    A socket is reached by whoever runs under the same kernel, and answers as long as its owner lives. So nobody has
    to tell owners by process ids, which mean nothing in another container.
    """

    def __init__(self, folder: Path) -> None:
        """Make it if need be. Raises ``OSError`` if it can't be used, or others could change it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self._fd)  # of what was opened, whatever stands under that name by now
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            self.close()
            raise PermissionError(f"{folder} can be changed by other users")
        # A socket's path has 107 bytes at the most; this one is short wherever the folder is.
        self._folder = Path(f"/proc/self/fd/{self._fd}")

    def listen(self, me: Peer) -> socket.socket:
        """A listening socket of packets under the name of this life, for this user alone. Raises ``OSError``."""
        self.sweep()
        name = self._path(me)
        new = name.with_suffix(NEW_SUFFIX)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(new))
            new.chmod(0o600)
            listener.listen(_BACKLOG)
            new.rename(name)  # it is found under its name only when it answers, or a sweep could take it
        except OSError:
            listener.close()
            new.unlink(missing_ok=True)
            raise
        return listener

    def connect(self, to: Peer) -> socket.socket | None:
        """A connection to a life of a worker, ``None`` if it isn't here. Never waits. Raises ``OSError``."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(str(self._path(to)))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except OSError:
            connection.close()
            raise
        return connection

    def leave(self, me: Peer) -> None:
        """Take this life's socket away. Idempotent."""
        self._path(me).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Take away sockets whose owner has ended without doing so: nobody listens there."""
        for path in self._folder.iterdir():
            if path.suffix not in (SUFFIX, NEW_SUFFIX) or not _settled(path):
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink(missing_ok=True)
                except OSError:  # it is gone already, or its owner has too much to do to answer
                    continue

    def close(self) -> None:
        """Let go of the directory. Idempotent."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1

    def _path(self, peer: Peer) -> Path:
        """Ids and epochs are too long for a socket's path."""
        return self._folder / (hashlib.blake2b(repr(peer).encode(), digest_size=12).hexdigest() + SUFFIX)


def _settled(path: Path) -> bool:
    """Whether nobody is about to listen there: with a new one that takes microseconds."""
    try:
        return path.suffix == SUFFIX or time.time() - path.lstat().st_mtime > NEW_S
    except FileNotFoundError:
        return False
