"""Blocks' ways out of a pool: within a card, to another one, to the host's memory, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_check import errors, figures, peers, staged
from gpu_check.bench import Bench
from gpu_check.check import Check, Found, NotRun
from gpu_check.pool import Pool


def checks() -> list[Check]:
    """Whether bytes are the same afterwards, and how many pass in a second."""
    return [
        Check("blocks to another pool of the card, bytes", lands, errors.EQUAL),
        Check("blocks to another pool of the card: gather, copy, scatter", carries),
        Check("blocks to pinned memory and back, bytes", swaps, errors.EQUAL),
        Check("gather and copy to pinned memory", swaps_out),
        Check("copy from pinned memory and scatter", swaps_in),
        Check("blocks to the engine's pool on the host and back, bytes", staged.travels, errors.EQUAL),
        Check("blocks to the engine's pool on the host", staged.fetches),
        Check("blocks to the engine's pool on the host, beside products", staged.fetches_beside),
        Check("blocks to a second card by copy, bytes", lands_there, errors.EQUAL),
        Check("blocks to a second card by copy: gather, copy, scatter", carries_there),
        Check("blocks to a second card by NCCL: gather, send, receive, scatter, bytes", peers.lands, errors.EQUAL),
    ]


def lands(bench: Bench) -> Found:
    """Through two staging buffers."""
    return _landed(bench, bench.device)


def lands_there(bench: Bench) -> Found:
    """The same, to the second card."""
    return _landed(bench, _second(bench))


def carries(bench: Bench) -> Found:
    """All three steps, one after another."""
    return _carried(bench, bench.device)


def carries_there(bench: Bench) -> Found:
    """The same, to the second card."""
    return _carried(bench, _second(bench))


def swaps(bench: Bench) -> Found:
    """Out of one pool into the host's memory, and from there into another one."""
    source, goal = Pool.random(bench, bench.device), Pool.random(bench, bench.device, seed=1)
    host = _pinned(source)
    source.gather()
    host.copy_(source.staging)
    goal.staging.copy_(host)
    goal.scatter()
    return errors.differing(goal.landed_from(source))


def swaps_out(bench: Bench) -> Found:
    """To the host."""
    pool = Pool.random(bench, bench.device)
    host = _pinned(pool)

    def work() -> None:
        pool.gather()
        host.copy_(pool.staging, non_blocking=True)

    return _rate(bench, pool, work)


def swaps_in(bench: Bench) -> Found:
    """From the host."""
    pool = Pool.random(bench, bench.device)
    host = _pinned(pool).zero_()

    def work() -> None:
        pool.staging.copy_(host, non_blocking=True)
        pool.scatter()

    return _rate(bench, pool, work)


def _landed(bench: Bench, there: torch.device) -> Found:
    source, goal = Pool.random(bench, bench.device), Pool.random(bench, there, seed=1)
    source.gather()
    goal.staging.copy_(source.staging)
    goal.scatter()
    return errors.differing([(one.to(bench.device), other) for one, other in goal.landed_from(source)])


def _carried(bench: Bench, there: torch.device) -> Found:
    source, goal = Pool.random(bench, bench.device), Pool.random(bench, there, seed=1)

    def work() -> None:
        source.gather()
        goal.staging.copy_(source.staging, non_blocking=True)
        goal.scatter()

    return _rate(bench, source, work, there)


def _rate(bench: Bench, pool: Pool, work: Callable[[], None], there: torch.device | None = None) -> Found:
    ms = bench.timer.ms(work) if there in (None, bench.device) else bench.timer.host_ms(work)
    return Found(f"{figures.time(ms)}, {pool.staging.nbytes / ms / 1e6:,.1f} GB/s of blocks")


def _pinned(pool: Pool) -> torch.Tensor:
    return torch.empty(pool.staging.shape, dtype=torch.uint8, pin_memory=pool.staging.is_cuda)


def _second(bench: Bench) -> torch.device:
    if not bench.is_card or torch.cuda.device_count() < peers.WORLD:
        raise NotRun("no second card")
    return torch.device("cuda", 1)
