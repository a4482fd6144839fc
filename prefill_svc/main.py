"""Starts a prefill worker."""

from __future__ import annotations

from kvtransfer.host import run_worker
from prefill_svc.service import PrefillWorker
from runtime.worker_settings import WorkerSettings


def run(settings: WorkerSettings) -> int:
    """Run until told to end; return the exit code."""
    return run_worker("prefill", settings, lambda parts, _: PrefillWorker(parts))
