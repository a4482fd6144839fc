"""`kvferry up`: the whole stack on this machine, from brokers to a request that can be pasted."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
        with private_folder() as folder, kept_ports(stack.gateway.host, stack.gateway.port, stack.up.gateways):
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
            raise _taken(host, port + number, refusal)
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


@contextmanager
def kept_ports(host: str, first: int, num_ports: int) -> Iterator[None]:
    """Keep the gateways' ports from whoever takes any free one: a broker, a worker's status port.

    They are bound, and nobody listens. A gateway, which lets an address be used again, can. Raises `UsageError`.
    """
    with ExitStack() as kept:
        for port in range(first, first + num_ports):
            try:
                kept.enter_context(_bound(host, port))
            except OSError as error:
                raise _taken(host, port, error.strerror or str(error)) from error
        yield


def _taken(host: str, port: int, refusal: str) -> UsageError:
    return UsageError(f"can't listen on {host}:{port} ({refusal}); choose another with --port")


def _refusal(host: str, port: int) -> str:
    """Return why nobody can listen there, "" if one can."""
    try:
        _bound(host, port).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
