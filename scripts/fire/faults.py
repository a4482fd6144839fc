"""The faults: each does its harm, undoes what doesn't mend by itself, and leaves the rest to the stack."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fire.live import Stack, send
from fire.load import Load

STOPPED_S = 8.0
"""Longer than it takes to be declared dead (5 s)."""

BUS_PAUSED_S = 10.0
STORE_GONE_S = 60.0
SMALL_S = 30.0
GUEST_REQUESTS = 16
"""After so many answers, a worker that has just come has its share of the streams."""

Harm = Callable[[Stack, Load, float], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of harm. ``is_quick``: also in the quick run."""

    name: str
    harm: Harm
    is_quick: bool = True


def pause(seconds: float) -> None:
    """The harm lasts."""
    threading.Event().wait(seconds)


def _stop(pid: int, seconds: float) -> None:
    send(pid, signal.SIGSTOP)
    try:
        pause(seconds)
    finally:
        send(pid, signal.SIGCONT)


def _kill(worker: str, *, engine: bool) -> Harm:
    def harm(stack: Stack, load: Load, share: float) -> None:
        send(stack.engine(worker) if engine else stack.io(worker), signal.SIGKILL)

    return harm


def _stopped(worker: str, *, engine: bool) -> Harm:
    def harm(stack: Stack, load: Load, share: float) -> None:
        _stop(stack.engine(worker) if engine else stack.io(worker), STOPPED_S)

    return harm


def _line_cut(role: str) -> Harm:
    """A worker more, whose own line to the bus is cut: nobody else's is, and it lives."""

    def harm(stack: Stack, load: Load, share: float) -> None:
        with stack.guest(role) as line:
            num_right = load.count.kinds["ok"]
            stack.until(lambda: load.count.kinds["ok"] >= num_right + GUEST_REQUESTS, 60, "the guest has work")
            line.cut()
            try:
                pause(STOPPED_S)
            finally:
                line.mend()
            stack.until(lambda: stack.healthy(**stack.with_guest(role)), 60, "the guest is back")

    return harm


def _drain(worker: str) -> Harm:
    def harm(stack: Stack, load: Load, share: float) -> None:
        pid = stack.io(worker)
        send(pid, signal.SIGTERM)
        stack.until(lambda: pid not in stack.pids(worker), 60, f"{worker} has left")

    return harm


def _broker_killed(program: str) -> Harm:
    def harm(stack: Stack, load: Load, share: float) -> None:
        send(stack.broker(program), signal.SIGKILL)

    return harm


def _bus_paused(stack: Stack, load: Load, share: float) -> None:
    _stop(stack.broker("nats-server"), BUS_PAUSED_S)


def _store_gone(stack: Stack, load: Load, share: float) -> None:
    _stop(stack.broker("valkey-server"), STORE_GONE_S * share)


def _gateway_killed(stack: Stack, load: Load, share: float) -> None:
    send(stack.io("gateway-2"), signal.SIGKILL)
    load.killed_gateways[stack.urls[1]] += 1


def _scaled(stack: Stack, load: Load, share: float) -> None:
    """One worker more here, one less there."""
    for prefill, decode in ((3, 1), (1, 3), (2, 2)):
        _scale(stack, prefill, decode)
        pause(3 * share)


def _scaled_far(stack: Stack, load: Load, share: float) -> None:
    """From one to three and back in both pools, and on for a while after the last has left."""
    for prefill, decode in ((1, 1), (3, 3), (1, 1)):
        _scale(stack, prefill, decode)
    pause(SMALL_S * share)
    _scale(stack, 2, 2)


def _scale(stack: Stack, prefill: int, decode: int) -> None:
    stack.command("scale", "--prefill", str(prefill), "--decode", str(decode))


def _restarted(stack: Stack, load: Load, share: float) -> None:
    stack.command("restart")


FAULTS = (
    Fault("D killed", _kill("decode", engine=False)),
    Fault("engine of D killed", _kill("decode", engine=True), is_quick=False),
    Fault("P killed", _kill("prefill", engine=False)),
    Fault("engine of P killed", _kill("prefill", engine=True), is_quick=False),
    Fault(f"engine of D stopped for {STOPPED_S:g} s", _stopped("decode", engine=True)),
    Fault(f"engine of P stopped for {STOPPED_S:g} s", _stopped("prefill", engine=True), is_quick=False),
    Fault(f"io of D stopped for {STOPPED_S:g} s", _stopped("decode", engine=False), is_quick=False),
    Fault(f"io of P stopped for {STOPPED_S:g} s", _stopped("prefill", engine=False), is_quick=False),
    Fault(f"line of a third D cut for {STOPPED_S:g} s", _line_cut("decode")),
    Fault(f"line of a third P cut for {STOPPED_S:g} s", _line_cut("prefill"), is_quick=False),
    Fault("NATS killed", _broker_killed("nats-server")),
    Fault(f"NATS paused for {BUS_PAUSED_S:g} s", _bus_paused, is_quick=False),
    Fault("Valkey killed, nothing kept", _broker_killed("valkey-server")),
    Fault("Valkey gone for a minute", _store_gone, is_quick=False),
    Fault("gateway killed", _gateway_killed),
    Fault("D sent away (SIGTERM)", _drain("decode")),
    Fault("P sent away (SIGTERM)", _drain("prefill"), is_quick=False),
    Fault("scaled 2+2, 3+1, 1+3, 2+2", _scaled),
    Fault("scaled 1+1, 3+3, 1+1, on for 30 s", _scaled_far, is_quick=False),
    Fault("all workers restarted, one by one", _restarted, is_quick=False),
)
