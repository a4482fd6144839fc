"""The private file by which other commands find a running `up`: where its brokers, gateways and control are."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kvferry.errors import UsageError
from kvferry.model_store import cache_root

MAX_FILE_BYTES = 1 << 16
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class StackFile:
    """What a live stack says of itself. The addresses of brokers hold their passwords."""

    pid: int
    port: int
    nats_url: str
    redis_url: str
    gateway_urls: tuple[str, ...]
    control: str

    @property
    def name(self) -> str:
        """Its name among the live ones."""
        return f"{self.port}-{self.pid}"


@contextmanager
def published(stack: StackFile, folder: Path | None = None) -> Iterator[None]:
    """Let other commands of this user find the stack for the length of the block."""
    path = (folder or stacks_folder()) / f"{stack.name}{_SUFFIX}"
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with this process, however that ends
        file.write(json.dumps(asdict(stack)))
        file.flush()
        new.rename(path)  # seen by others only when it is whole and locked
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def live_stacks(folder: Path | None = None) -> list[StackFile]:
    """Return this user's live stacks by name. Files of those that were killed are removed."""
    found = []
    folders = [folder] if folder else _folders()
    for path in sorted(path for each in folders for path in each.glob(f"*{_SUFFIX}")):
        with suppress(FileNotFoundError):  # it ended just now
            if path.stat().st_uid == os.getuid() and _has_owner(path):
                found.append(_read(path))
    return found


def find_stack(asked: str = "", folder: Path | None = None) -> StackFile:
    """Return the stack with this port, process id or name, or the only live one. Raises `UsageError`."""
    stacks = live_stacks(folder)
    names = ", ".join(stack.name for stack in stacks)
    if asked:
        stacks = [stack for stack in stacks if asked in (stack.name, str(stack.port), str(stack.pid))]
        if not stacks:
            raise UsageError(f"no stack {asked!r:.80} of this user is running; there are {names or 'none'}")
    if not stacks:
        raise UsageError("no stack of this user is running (`kvferry up` starts one)")
    if len(stacks) > 1:
        raise UsageError(f"several stacks are running ({names}); choose one with --stack")
    return stacks[0]


def stacks_folder() -> Path:
    """Return the folder of these files, which only this user can read."""
    folder = _folders()[0]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _folders() -> list[Path]:
    """Where a stack of this user may have left its file: a shell without XDG_RUNTIME_DIR uses the other place."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = [Path(runtime) / "kvferry"] if runtime and os.access(runtime, os.W_OK) else []
    return [*usable, cache_root() / "run"]


def _has_owner(path: Path) -> bool:
    """Whether the process that wrote it lives; if not, the file goes."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        path.unlink(missing_ok=True)  # the name has a process id in it: no other stack's file
        return False


def _read(path: Path) -> StackFile:
    """Raises `UsageError` for a file that another version of KVFerry, or nobody, has written."""
    with path.open() as file:
        text = file.read(MAX_FILE_BYTES)
    try:
        found = json.loads(text)
        known = {field.name: found[field.name] for field in fields(StackFile)}
        return StackFile(**{**known, "gateway_urls": tuple(known["gateway_urls"])})
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what this version of `kvferry up` writes") from None
