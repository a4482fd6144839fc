"""`kvferry up`: the whole stack on this machine, from brokers to a request that can be pasted."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvferry.brokers import free_port
from kvferry.errors import UsageError
from kvferry.live_stack import LiveStack
from kvferry.output import Output
from kvferry.private_folder import private_folder
from kvferry.services import with_model
from kvferry.signals import exit_on_signals
from kvferry.stack import GATEWAY_NAME, Stack, read_stack


def run_up(argv: Sequence[str]) -> int:
    """Run the stack until Ctrl-C (130) or SIGTERM (0). Raises `StartError` when it can't run."""
    exit_on_signals()
    stack = read_stack(argv)
    width = max(len(name) for name in (*stack.worker_names, GATEWAY_NAME))
    output = Output(sys.stdout.buffer, width)
    try:
        stack = _prepared(stack, output.say)
        with private_folder() as folder:
            return asyncio.run(_live(stack, folder, output))
    finally:
        output.close()
        if output.broken.is_set():  # Python flushes stdout at exit and would complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _live(stack: Stack, folder: Path, output: Output) -> int:
    return await LiveStack(stack, folder, output).run()


def _prepared(stack: Stack, say: Callable[[str], None]) -> Stack:
    """Check all that can be checked before anything is started."""
    gateway = replace(stack.gateway, port=_free_or_refused(stack.gateway.host, stack.gateway.port))
    gateway = with_model(gateway, say)
    worker = replace(stack.worker, model=gateway.model, served_model_name=gateway.served_model_name)
    say(f"model {gateway.served_model_name} in {gateway.model}")
    return replace(stack, gateway=gateway, worker=worker)


def _free_or_refused(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises `UsageError` if nobody can listen there."""
    if port == 0:
        return free_port()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"can't listen on {host}:{port} ({reason}); choose another with --port") from None
    return port
