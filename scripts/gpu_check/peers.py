"""Blocks from one process to another by torch.distributed: NCCL between two cards, gloo where there is none."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from gpu_check import errors, figures
from gpu_check.bench import Bench
from gpu_check.check import Found, NotRun
from gpu_check.pool import Pool

WORLD = 2
TIMEOUT_S = 60.0
ROUNDS = 10


def lands(bench: Bench) -> Found:
    """How many bytes aren't the sender's, and how long it took to gather, send, receive and scatter them."""
    if bench.is_card and torch.cuda.device_count() < WORLD:
        raise NotRun("no second card")
    if bench.is_card and not dist.is_nccl_available():
        raise NotRun("torch without NCCL")
    context = processes.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{Path(folder) / 'meeting'}"
        started = [
            context.Process(target=peer, args=(rank, place, bench.is_card, bench.is_tiny, answers))
            for rank in range(WORLD)
        ]
        for process in started:
            process.start()
        try:
            found: Found = answers.get(timeout=TIMEOUT_S)
        except Empty:
            raise TimeoutError(f"two processes didn't exchange blocks within {TIMEOUT_S:.0f} s") from None
        finally:
            for process in started:
                process.join(TIMEOUT_S / 10)
                if process.is_alive():
                    process.kill()
                    process.join()
    return found


def peer(rank: int, place: str, is_card: bool, is_tiny: bool, answers: Queue[Found]) -> None:
    """One of both processes: 0 sends, 1 receives and answers."""
    device = torch.device("cuda", rank) if is_card else torch.device("cpu")
    if is_card:
        torch.cuda.set_device(device)
    backend = "nccl" if is_card else "gloo"
    dist.init_process_group(
        backend, init_method=place, rank=rank, world_size=WORLD, timeout=timedelta(seconds=TIMEOUT_S)
    )
    bench = Bench(device, is_tiny=is_tiny)
    source = Pool.random(bench, device)
    pool = source if rank == 0 else Pool.random(bench, device, seed=1)
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        if rank == 0:
            pool.gather()
            dist.send(pool.staging, 1)
        else:
            dist.recv(pool.staging, 0)
            pool.scatter()
        if is_card:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    if rank == 1:
        ms = sorted(times)[ROUNDS // 2] * 1e3
        rate = f"{backend}, {figures.time(ms)}, {pool.staging.nbytes / ms / 1e6:,.1f} GB/s of blocks"
        answers.put(replace(errors.differing(pool.landed_from(source)), figure=rate))
    dist.destroy_process_group()
