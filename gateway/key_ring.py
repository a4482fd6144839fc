"""The keys that open this gateway: those of the settings, and those of a file that is read anew when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.keys import Key, KeyFileError, digest_of, parse_keys, read_text
from runtime.logs import get_logger

LOOK_S = 1.0
"""How long a change of the file may go unseen."""

log = get_logger("gateway.keys")

State = tuple[int, int, int]


class KeyRing:
    """Empty and without a file, it asks for no key. Belongs to one event loop."""

    def __init__(
        self,
        plain: Iterable[str] = (),
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keys in ``plain`` have no limits; one that is in the file too has the file's.

        Raises ``KeyFileError``: the file can't be used.
        """
        digests = [digest_of(key.encode()) for key in plain]
        self._plain = {digest: Key(f"api-key-{i}", digest) for i, digest in enumerate(digests, 1)}
        self._file = file
        self._clock = clock
        self._next_look = clock() + LOOK_S
        self._seen = _state(file)
        self._keys = self._read()
        self.asks = bool(self._keys) or file is not None
        """Whether a key is needed: with a file also while it has none."""

    def find(self, key: bytes) -> Key | None:
        """Return what is known of a key.

        Looked up by its digest, of which a client that tries keys can't choose a single bit: how long that
        takes tells nothing.
        """
        self._look()
        return self._keys.get(digest_of(key))

    def _look(self) -> None:
        """Read the file again if it has changed; a broken one is logged, and the keys stay."""
        if self._file is None or self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_S
        state = _state(self._file)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = self._read()
        except KeyFileError as error:
            log.error("keys_refused", file=str(self._file), reason=str(error), num_kept=len(self._keys))
        else:
            log.info("keys_read", file=str(self._file), num_keys=len(self._keys))

    def _read(self) -> dict[bytes, Key]:
        of_file = [] if self._file is None else parse_keys(read_text(self._file))
        return {**self._plain, **{key.digest: key for key in of_file}}


def _state(file: Path | None) -> State | None:
    """What changes when the file does; None if there is none to be seen."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
