"""Which link a worker's settings ask for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvtransfer.auto_link import AutoLink
from kvtransfer.direct_link import MAX_FRAME_BYTES
from kvtransfer.link import BusLink, Link
from kvtransfer.shm_link import ShmLink
from runtime.bus import Bus
from runtime.logs import get_logger
from runtime.postbox import Postbox
from runtime.status_server import name_for_others
from runtime.worker_settings import BUS_LINK, GLOO_LINK, NCCL_LINK, SHM_LINK, WorkerSettings

if TYPE_CHECKING:
    from kvtransfer.group_link import GroupLink

UNUSABLE = "unusable"
"""Why no frame goes by shared memory: the directory can't be used."""

log = get_logger("link")


class LinkError(Exception):
    """The link that was asked for can't be had."""


def choose_link(settings: WorkerSettings, postbox: Postbox, contents: Bus) -> Link:
    """The link, which owns the connection ``contents``. Needs a running loop. Raises ``LinkError``."""
    if settings.kv_link == BUS_LINK:
        return BusLink(contents)
    if settings.kv_link == SHM_LINK:
        return _shm(settings, postbox)
    if settings.kv_link in (GLOO_LINK, NCCL_LINK):
        return AutoLink(_group(settings, postbox, settings.kv_link), BusLink(contents))
    if not settings.shm_dir:
        return BusLink(contents)
    try:
        return AutoLink(_shm(settings, postbox), BusLink(contents))
    except LinkError as error:
        log.warning("link_unusable", link=SHM_LINK, reason=str(error))
        return BusLink(contents, instead=UNUSABLE)


def _shm(settings: WorkerSettings, postbox: Postbox) -> ShmLink:
    if not settings.shm_dir:
        raise LinkError(f"--kv-link {SHM_LINK} needs --shm-dir")
    try:
        return ShmLink(Path(settings.shm_dir), postbox.me, settings.shm_segment_bytes)
    except OSError as error:
        raise LinkError(f"no memory can be shared in {settings.shm_dir}: {error}") from error


def _group(settings: WorkerSettings, postbox: Postbox, backend: str) -> GroupLink:
    # Here and not above: these import torch, some seconds and 200 MB that no other link needs.
    from kvtransfer.group_link import GroupLink
    from kvtransfer.pair_group import Gloo, GroupError, NcclGroup, gpu_name

    if backend == GLOO_LINK:
        return GroupLink(postbox, backend, Gloo(name_for_others(settings.host)))
    try:
        return GroupLink(postbox, backend, partial(NcclGroup, MAX_FRAME_BYTES), gpu_name())
    except GroupError as error:
        raise LinkError(f"--kv-link {NCCL_LINK} needs a CUDA device and a torch with NCCL: {error}") from error
