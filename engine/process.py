"""The engine half of a worker as a process: load the model, size the pool, run the loop."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.api import Ready
from engine.capacity import plan_capacity
from engine.child import receive_config, send_start
from engine.config import EngineConfig
from engine.core import Engine, EngineSettings
from engine.core_page import CorePage
from engine.cores import usable_cores
from engine.device import CPU, CUDA, torch_device
from engine.device_sampler import chooser
from engine.errors import ModelError
from engine.guide import GrammarError
from engine.guides import Guides
from engine.llama import LlamaModel
from engine.loop import run_loop
from engine.memory import pinnable_bytes
from engine.model_config import read_model_config
from engine.pool_memory import PoolMemory
from engine.port import SocketCommands, Started
from engine.staging import Staging
from engine.turns import NoTurns, Turns
from engine.weights import weights_fingerprint
from kvferry_kernels.decoder import leave_claimed_cores

BAD_SETTINGS = 2
"""Exit code when starting again wouldn't help."""

log = logging.getLogger("engine")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model with its pool, ready to run."""

    engine: Engine
    pool: PoolMemory
    started: Started
    is_compiled: bool


def main(argv: Sequence[str]) -> int:
    """Run until io asks to leave or is gone; return the exit code."""
    parser = argparse.ArgumentParser(prog="kvferry engine")
    parser.add_argument("--role", required=True)
    parser.add_argument("--worker-id", required=True)
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args(argv)
    sock, config = receive_config(given.fd)
    cores = take_turns(config, given.role)
    turns = cores or NoTurns()
    try:
        loaded = load_engine(config, turns)
    except ModelError as error:
        sys.stderr.write(f"{config.worker_id}: {error}\n")
        return BAD_SETTINGS
    if cores is not None and given.role == "prefill" and loaded.is_compiled:
        cores.let_kernels_look()
    send_start(sock, loaded.started, loaded.pool)
    commands = SocketCommands(sock)
    try:
        run_loop(loaded.engine, commands.next_command, commands.emit, turns)
    except BrokenPipeError:
        return 0  # io is gone, and so is whoever could have asked for more
    return 0


def load_engine(config: EngineConfig, turns: Turns) -> LoadedEngine:
    """Load the model and make its pool. Raises ``ModelError`` for what can't be served."""
    torch.set_num_threads(num_threads(config))
    device = _device(config.device)
    folder = Path(config.model)
    capacity = plan_capacity(read_model_config(folder), config, device)
    longest, num_blocks = capacity.max_model_len, capacity.num_blocks
    if capacity.shortened_from:
        log.warning(
            "context_shortened max_model_len=%d reason=pool holds %d blocks, %d are needed for %d tokens",
            longest,
            num_blocks,
            capacity.request_blocks(capacity.shortened_from),
            capacity.shortened_from,
        )
    model = LlamaModel(
        folder,
        config.dtype,
        device,
        max_model_len=longest,
        quantization=config.quantization,
        packed_dir=Path(config.packed_dir) if config.packed_dir else None,
        enforce_eager=config.enforce_eager,
        batch_invariant=config.batch_invariant,
    )
    for warning in model.config.warnings:
        log.warning("model_warning reason=%s", warning)
    pool = PoolMemory(model.layout, num_blocks)
    weights = weights_fingerprint(folder, config.quantization)
    settings = EngineSettings(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=longest,
        enable_prefix_caching=config.enable_prefix_caching,
        weights=weights,
        kv_dtype=model.layout.dtype,
        max_recompute_tokens=config.max_recompute_tokens,
        itl_limit_s=config.itl_limit_ms / 1000,
    )
    ready = Ready(num_blocks, longest, model.weight_bytes, weights, model.numerics)
    guides = _guides(folder, model.config.vocab_size)
    staging = Staging(pool, torch_device(device), max_pinned_bytes=pinnable_bytes(config.host_workers))
    engine = Engine(model, pool, settings, staging, turns, guides, chooser(device))
    return LoadedEngine(engine, pool, Started(ready, model.layout, folder.name), model.is_compiled)


def _guides(folder: Path, vocab_size: int) -> Guides | None:
    try:
        return Guides.load(folder, vocab_size)
    except GrammarError as error:
        log.warning("no_grammars reason=%s", error)
        return None


class SharedCores:
    """Turns by the page that the host's workers share: threads are all that the others leave."""

    def __init__(self, page: CorePage, num_threads: int) -> None:
        """``num_threads`` is how many torch has now."""
        self._page = page
        self._num_threads = self._share = num_threads
        self._kernels_look = False
        self.pause, self.end, self.rest = page.pause, page.end, page.rest

    def let_kernels_look(self) -> None:
        """From now on compiled layers leave claimed cores to others by themselves, between two of their phases."""
        self._kernels_look = True
        claims = self._page.claims
        leave_claimed_cores(claims.address, claims.count, claims.stride, claims.num_cores)

    def begin(self, num_prompts: int) -> None:
        """Take the cores that are free."""
        self._share = self._page.begin(num_prompts)
        self._take(self._page.num_claimed())

    def layers_done(self) -> None:
        """Go on with the cores that are free now."""
        self._take(self._page.layers_done())

    def _take(self, claimed: int) -> None:
        may_have = self._share if self._kernels_look else max(1, self._share - claimed)
        if may_have != self._num_threads:
            torch.set_num_threads(may_have)
            self._num_threads = may_have


def take_turns(config: EngineConfig, role: str) -> SharedCores | None:
    """How this engine shares the host's cores with other workers; None if it doesn't."""
    if config.num_threads or not config.cores_file:
        return None
    path, is_prefill = Path(config.cores_file), role == "prefill"
    try:
        page = CorePage(path, usable_cores(), prefill=is_prefill, itl_limit_ms=config.itl_limit_ms)
    except OSError as error:
        log.warning("cores_not_shared file=%s reason=%s", config.cores_file, error)
        return None
    return SharedCores(page, num_threads(config))


def num_threads(config: EngineConfig) -> int:
    """Compute threads of a worker that knows nothing of others: spinning threads slow each other down."""
    if config.num_threads:
        return config.num_threads
    return max(1, usable_cores() // config.host_workers)


def _device(asked: str) -> str:
    if asked == "auto":
        return CUDA if torch.cuda.is_available() else CPU
    if asked == CUDA and not torch.cuda.is_available():
        raise ModelError("--device cuda: torch finds no CUDA device here")
    return asked
