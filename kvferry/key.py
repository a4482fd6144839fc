"""`kvferry key`: makes, lists and removes the API keys that gateways read with --keys-file."""

import argparse
import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.keys import (
    MAX_FILE_BYTES,
    MAX_LIMIT,
    NAME,
    Key,
    KeyFileError,
    digest_of,
    parse_keys,
    parse_line,
    read_text,
)
from gateway.limits import Limits
from kvferry.errors import UsageError
from kvferry.flags import new_parser, parse
from kvferry.table import table
from runtime import units

PREFIX = "kvf-"
KEY_BYTES = 32
"""Of randomness: 256 bits, which is why a plain digest is all that a file need hold."""

_LIMITS = {
    "--requests-per-minute": ("requests_per_minute", "requests that may come in a minute"),
    "--tokens-per-minute": ("tokens_per_minute", "tokens of prompts and answers in a minute"),
    "--concurrency": ("concurrency", "requests at a time"),
}
_USAGE = "kvferry key new NAME | list | remove NAME; `kvferry key new --help` lists the flags"


def run_key(argv: Sequence[str]) -> int:
    """Run one of the three; return the exit code."""
    actions: dict[str, Callable[[Sequence[str]], int]] = {"new": _new, "list": _list, "remove": _remove}
    if argv and argv[0] in {"--help", "-h"}:
        sys.stdout.write(f"usage: {_USAGE}\n")
        return 0
    if not argv or argv[0] not in actions:
        raise UsageError(f"say what to do: {_USAGE}")
    return actions[argv[0]](argv[1:])


def _new(argv: Sequence[str]) -> int:
    """Print the key, once. Without a file, the line for one follows."""
    parser = new_parser("key new", "Make an API key. It is printed once and kept nowhere; the file holds its SHA-256.")
    parser.add_argument("name", metavar="NAME", help="of the key, for logs and limits")
    for flag, (field, about) in _LIMITS.items():
        parser.add_argument(flag, dest=field, metavar="N", help=f"{about}; default: no limit")
    parser.add_argument("--file", metavar="FILE", help="file of keys to add it to; made if it isn't there")
    flags = parse(parser, argv)
    if not NAME.fullmatch(flags.name):
        raise UsageError("a name is 1 to 64 letters, digits and . _ -, the first of them a letter or digit")
    secret = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    line = Key(flags.name, digest_of(secret.encode()), _limits(flags)).to_line()
    if "file" not in flags:
        sys.stdout.write(f"{secret}\n{line}\n")
        return 0
    with _changing(Path(flags.file), make=True) as lines:
        if flags.name in map(_name_of, lines):
            raise UsageError(f"{flags.file} has a key named {flags.name} already")
        lines.append(line)
    sys.stdout.write(f"{secret}\n")
    return 0


def _list(argv: Sequence[str]) -> int:
    parser = new_parser("key list", "List the keys of a file: names and limits, never keys.")
    parser.add_argument("--file", metavar="FILE", required=True, help="file of keys")
    keys = parse_keys(_text(Path(parse(parser, argv).file)))
    head = ("name", "requests a minute", "tokens a minute", "at a time", "sha256")
    rows = [
        (
            key.name,
            *(number or "-" for number in (key.limits.requests_per_minute, key.limits.tokens_per_minute)),
            key.limits.concurrency or "-",
            key.digest.hex()[:12],
        )
        for key in keys
    ]
    sys.stdout.write(table(head, rows))
    return 0


def _remove(argv: Sequence[str]) -> int:
    parser = new_parser("key remove", "Remove a key from a file; gateways refuse it within about a second.")
    parser.add_argument("name", metavar="NAME", help="of the key")
    parser.add_argument("--file", metavar="FILE", required=True, help="file of keys")
    flags = parse(parser, argv)
    with _changing(Path(flags.file)) as lines:
        kept = [line for line in lines if _name_of(line) != flags.name]
        if len(kept) == len(lines):
            raise UsageError(f"{flags.file} has no key named {flags.name:.80}")
        lines[:] = kept
    return 0


def _limits(flags: argparse.Namespace) -> Limits:
    numbers = {}
    for flag, (field, _) in _LIMITS.items():
        if field in flags:
            try:
                numbers[field] = units.integer(1, MAX_LIMIT)(getattr(flags, field))
            except ValueError as error:
                raise UsageError(f"{flag}: {getattr(flags, field)[:80]!r} {error}") from None
    return Limits(**numbers)


@contextmanager
def _changing(path: Path, *, make: bool = False) -> Iterator[list[str]]:
    """Offer the file's lines to be changed, comments too; afterwards the file is theirs, or as it was.

    Readers see the old one or the new one whole. Two changes at a time wait for each other.
    """
    try:
        with _locked(path.parent):
            lines = _text(path, make=make).splitlines()
            yield lines
            text = "".join(f"{line}\n" for line in lines)
            if len(text.encode()) > MAX_FILE_BYTES:
                raise UsageError(f"{path} would be larger than the {MAX_FILE_BYTES} bytes that gateways read")
            _replace(path, text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _text(path: Path, *, make: bool = False) -> str:
    """Return a file that is right as it is. Raises `UsageError`."""
    if make and not path.exists():
        return ""
    try:
        text = read_text(path)
        parse_keys(text)
    except KeyFileError as error:
        raise UsageError(f"{path}: {error}") from None
    return text


def _name_of(line: str) -> str:
    """The name in a line of a file that is right; "" for a comment."""
    return parse_line(line).name if line.strip() and not line.lstrip().startswith("#") else ""


def _replace(path: Path, text: str) -> None:
    """Write it beside, then put it in its place; only the owner may read a new one. An old one's owner stays."""
    former = path.stat() if path.exists() else None
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if former is not None:
            made = Path(beside).stat()
            if (made.st_uid, made.st_gid) != (former.st_uid, former.st_gid):
                os.chown(beside, former.st_uid, former.st_gid)  # a change by root mustn't lock the gateway out
            Path(beside).chmod(former.st_mode & 0o777)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
