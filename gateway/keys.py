"""API keys: who may ask, and how much. Of a key itself only its SHA-256 is kept, in memory and on disk.

A key is 256 random bits. Nobody can guess one from its digest, so that a slow or salted hash would only
make each request slower; passwords, which people choose, would need one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from gateway.limits import NO_LIMITS, Limits

MAX_FILE_BYTES = 1 << 20
"""About 8,000 keys: reading them takes some ten milliseconds, in which nothing else goes on."""

MAX_LIMIT = 1_000_000_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMES_OF_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
_FIELDS = frozenset({"name", "sha256", *_NAMES_OF_LIMITS})


class KeyFileError(Exception):
    """The file of keys can't be used: one line that says where and why, and repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """``digest`` is the key's SHA-256; ``name`` is for logs, limits and people."""

    name: str
    digest: bytes = field(repr=False)
    limits: Limits = NO_LIMITS

    @property
    def owner(self) -> str:
        """Marks what this key's requests leave behind. Neither the key nor its digest follows from it."""
        return sha256(b"kvferry owner" + self.digest).hexdigest()[:32]

    def to_line(self) -> str:
        """Return the line of the file, without its end."""
        given = {name: number for name in _NAMES_OF_LIMITS if (number := getattr(self.limits, name))}
        return json.dumps({"name": self.name, "sha256": self.digest.hex(), **given})


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return sha256(key).digest()


def read_text(path: Path) -> str:
    """Return what is in a file of keys. Raises ``KeyFileError``."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(error.strerror or type(error).__name__) from None
    if len(raw) > MAX_FILE_BYTES:
        raise KeyFileError(f"it is larger than {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError("it isn't UTF-8") from None


def parse_keys(text: str) -> list[Key]:
    """Read one JSON object a line; empty lines and those that begin with ``#`` are none. Raises ``KeyFileError``."""
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            keys.append(parse_line(line))
        except ValueError as error:
            raise KeyFileError(f"line {number}: {error}") from None
    for what, values in (("name", {key.name for key in keys}), ("key", {key.digest for key in keys})):
        if len(values) < len(keys):
            raise KeyFileError(f"a {what} is there twice")
    return keys


def parse_line(line: str) -> Key:
    """Read one line. Raises ``ValueError`` with words that don't repeat what may be a key."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if not fields.keys() <= _FIELDS:
        raise ValueError(f"a field other than {', '.join(sorted(_FIELDS))}")
    name, digest = fields.get("name"), fields.get("sha256")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("name is 1 to 64 letters, digits and . _ -, the first of them a letter or digit")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
        raise ValueError("sha256 is 64 hexadecimal digits")
    return Key(name, bytes.fromhex(digest), _limits(fields))


def _limits(fields: dict[str, object]) -> Limits:
    numbers = {}
    for name in _NAMES_OF_LIMITS:
        value = fields.get(name, 0)
        if type(value) is not int or not 0 <= value <= MAX_LIMIT:
            raise ValueError(f"{name} is a whole number from 0 (no limit) to {MAX_LIMIT}")
        numbers[name] = value
    return Limits(**numbers)
