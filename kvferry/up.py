"""`kvferry up`: the whole stack on this machine, from brokers to a request that can be pasted."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvferry.brokers import PORT_TRIES, free_port
from kvferry.errors import UsageError
from kvferry.live_stack import LiveStack
from kvferry.output import Output
from kvferry.private_folder import private_folder
from kvferry.services import with_model
from kvferry.signals import exit_on_signals
from kvferry.stack import MAX_PORT, Stack, read_stack


def run_up(argv: Sequence[str]) -> int:
    """Run the stack until Ctrl-C (130) or SIGTERM (0). Raises `StartError` when it can't run."""
    exit_on_signals()
    stack = read_stack(argv)
    width = max(len(name) for name in (*stack.worker_names, *stack.gateways))
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
    host, port = stack.gateway.host, stack.gateway.port
    port = port or _free_row(host, stack.up.gateways)
    for number in range(stack.up.gateways):
        if refusal := _refusal(host, port + number):
            raise UsageError(f"can't listen on {host}:{port + number} ({refusal}); choose another with --port")
    gateway = with_model(replace(stack.gateway, port=port), say)
    worker = replace(stack.worker, model=gateway.model, served_model_name=gateway.served_model_name)
    say(f"model {gateway.served_model_name} in {gateway.model}")
    return replace(stack, gateway=gateway, worker=worker)


def _free_row(host: str, num_ports: int) -> int:
    """Return the first of so many free ports in a row. Raises `UsageError` if there are none to be found."""
    for _ in range(PORT_TRIES):
        port = free_port()
        if port + num_ports - 1 <= MAX_PORT and not any(_refusal(host, port + i) for i in range(num_ports)):
            return port
    raise UsageError(f"found no {num_ports} free ports in a row; choose the first with --port")


def _refusal(host: str, port: int) -> str:
    """Return why nobody can listen there, "" if one can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""
