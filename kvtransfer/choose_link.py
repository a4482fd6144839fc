"""Which link a worker's settings ask for."""

from __future__ import annotations

from pathlib import Path

from kvtransfer.link import BusLink, Link
from kvtransfer.shm_link import AutoLink, ShmLink
from protocol.messages import Peer
from runtime.bus import Bus
from runtime.logs import get_logger
from runtime.worker_settings import AUTO_LINK, BUS_LINK, SHM_LINK, WorkerSettings

UNUSABLE = "unusable"
"""Why no frame goes by shared memory: the directory can't be used."""

log = get_logger("shm")


class LinkError(Exception):
    """The link that was asked for can't be had."""


def choose_link(settings: WorkerSettings, me: Peer, contents: Bus) -> Link:
    """The link, which owns the connection ``contents``. Needs a running loop. Raises ``LinkError``."""
    if settings.kv_link == BUS_LINK or (settings.kv_link == AUTO_LINK and not settings.shm_dir):
        return BusLink(contents)
    try:
        if not settings.shm_dir:
            raise LinkError(f"--kv-link {SHM_LINK} needs --shm-dir")
        shm = ShmLink(Path(settings.shm_dir), me, settings.shm_segment_bytes)
    except OSError as error:
        if settings.kv_link == SHM_LINK:
            raise LinkError(f"no memory can be shared in {settings.shm_dir}: {error}") from error
        log.warning("memory_unusable", reason=str(error))
        return BusLink(contents, instead=UNUSABLE)
    return shm if settings.kv_link == SHM_LINK else AutoLink(shm, BusLink(contents))
