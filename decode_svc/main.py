"""Starts a decode worker."""

from __future__ import annotations

from decode_svc.service import DecodeWorker
from kvtransfer.host import run_worker
from runtime.worker_settings import WorkerSettings


def run(settings: WorkerSettings) -> int:
    """Run until told to end; return the exit code."""
    limit = settings.local_prefill_tokens
    return run_worker("decode", settings, lambda parts, _: DecodeWorker(parts, limit))
