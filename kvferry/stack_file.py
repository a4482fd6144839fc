"""The private file by which other commands find a running `up`: where its brokers, gateways and control are."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kvferry.broker_access import ROLES, BrokerAccess
from kvferry.errors import UsageError
from kvferry.model_store import cache_root

MAX_FILE_BYTES = 1 << 16
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class StackFile:
    """What a live stack says of itself. The addresses of brokers hold passwords."""

    pid: int
    port: int
    gateway_urls: tuple[str, ...]
    control: str
    brokers: Mapping[str, BrokerAccess]
    """By role: an operator's for other commands, a worker's for one more that is started by hand."""

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


def find_stack(asked: str = "", folder: Path | None = None) -> StackFile:
    """Return the stack with this port, process id or name, or the only live one. Raises `UsageError`."""
    files = _live_files(folder)
    names = ", ".join(path.stem for path in files)
    if asked:
        files = [path for path in files if asked in (path.stem, *path.stem.split("-"))]
        if not files:
            raise UsageError(f"no stack {asked!r:.80} of this user is running; there are {names or 'none'}")
    if not files:
        raise UsageError("no stack of this user is running (`kvferry up` starts one)")
    if len(files) > 1:
        raise UsageError(f"several stacks are running ({names}); choose one with --stack")
    return _read(files[0])


def stacks_folder() -> Path:
    """Return the folder of these files, which only this user can read."""
    folder = _folders()[0]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _live_files(folder: Path | None) -> list[Path]:
    """Files of live stacks by name, which is `StackFile.name`; another version's may be among them."""
    found = []
    folders = [folder] if folder else _folders()
    for path in sorted(path for each in folders for path in each.glob(f"*{_SUFFIX}")):
        with suppress(FileNotFoundError):  # it ended just now
            if path.stat().st_uid == os.getuid() and _has_owner(path):
                found.append(path)
    return found


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
        brokers = {role: BrokerAccess.from_json(known["brokers"][role]) for role in ROLES}
        return StackFile(**{**known, "gateway_urls": tuple(known["gateway_urls"]), "brokers": brokers})
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what this version of `kvferry up` writes") from None
