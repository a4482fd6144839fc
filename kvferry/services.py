"""The single services: settings read, model checked, then the service's own main.

Imports of services are inside functions, so that the command line stays light and each process
loads its own service alone.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kvferry.flags import read_settings
from kvferry.model_store import ensure_model, served_name
from runtime.service_settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)


def run_gateway(argv: Sequence[str]) -> int:
    """Run the gateway until it is told to end; return its exit code."""
    from gateway.settings import GatewaySettings

    settings = read_settings(GatewaySettings, "gateway", "Serve the OpenAI API.", argv)
    settings = with_model(settings, _teller("gateway"))
    if settings.gateway_workers > 1:
        from gateway.workers.supervisor import run as run_several

        return run_several(settings)
    from gateway.main import run

    return run(settings)


def run_gateway_worker(argv: Sequence[str]) -> int:
    """Run one of the processes of a gateway that has several; its supervisor starts it and knows the arguments."""
    from gateway.main import run
    from gateway.workers.seat import take_seat

    return run(*take_seat(argv))


def run_prefill(argv: Sequence[str]) -> int:
    """Run a prefill worker until it is told to end; return its exit code."""
    from runtime.worker_settings import WorkerSettings

    about = "Run a prefill worker: prompts in, KV blocks and first tokens out."
    settings = with_model(read_settings(WorkerSettings, "prefill", about, argv), _teller("prefill"))
    from prefill_svc.main import run

    return run(settings)


def run_decode(argv: Sequence[str]) -> int:
    """Run a decode worker until it is told to end; return its exit code."""
    from runtime.worker_settings import WorkerSettings

    about = "Run a decode worker: KV blocks in, tokens out."
    settings = with_model(read_settings(WorkerSettings, "decode", about, argv), _teller("decode"))
    from decode_svc.main import run

    return run(settings)


def run_engine(argv: Sequence[str]) -> int:
    """Run the engine half of a worker; its io half starts it and knows the arguments."""
    from engine.process import main

    return main(list(argv))


def with_model(settings: S, progress: Callable[[str], None]) -> S:
    """Return the settings with `model` a checked local folder, and the name it is served under."""
    folder = ensure_model(settings.model or None, progress)
    name = settings.served_model_name or served_name(settings.model or None)
    return replace(settings, model=str(folder), served_model_name=name)


def _teller(command: str) -> Callable[[str], None]:
    def tell(line: str) -> None:
        sys.stderr.write(f"kvferry {command}: {line}\n")
        sys.stderr.flush()

    return tell
