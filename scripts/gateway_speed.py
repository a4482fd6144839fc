"""What a gateway does on one core: `python scripts/gateway_speed.py`.

A real NATS server and the real gateway, pinned to a core of its own with all its processes; behind them workers that
compute nothing, before it clients that only count. Prints the median time to the first token of a lone request, and the
gateway's CPU time for a request of 16 tokens and for a streamed token, with what one core could do at that price.

With `--gateway-workers N` it holds a gateway of N processes against one of a single process instead: both run side by
side, and take the same load in turn, at as many requests in all and at as many for each process. What a process costs
that has few requests at a time, and what a busy other core costs, are measured beside that.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateways.live import Gateway, gateway, neighbor, surroundings
from gateways.readers import Run, ask

STEP_S = 0.004
PROMPT = list(range(1000, 1032))
NUM_TOKENS = 16
AT_A_TIME = 32
NUM_REQUESTS = 600
WARM_UP = 200
SHORT_RUN = 300
"""Requests of a round that is compared: about a second, so that rounds stand close together."""


def measured(gate: Gateway, num_tokens: int, num_requests: int, concurrency: int) -> tuple[Run, float]:
    """One run, and the gateway's CPU seconds for it."""
    before = gate.cpu_s()
    run = ask(gate.port, PROMPT, num_tokens, num_requests, concurrency)
    if run.num_bad:
        raise RuntimeError(f"{run.num_bad} of {run.num_requests} answers aren't what was asked for")
    return run, gate.cpu_s() - before


def tell_alone(gate: Gateway, num_rounds: int) -> None:
    """Print what one process does."""
    measured(gate, NUM_TOKENS, WARM_UP, AT_A_TIME)
    lone = [statistics.median(measured(gate, NUM_TOKENS, 50, 1)[0].first_s) for _ in range(num_rounds)]
    print(f"lone request: first token after {statistics.median(lone) * 1000:.2f} ms (median of 50)")
    for name, num_tokens, num_requests, concurrency in (
        (f"requests of {NUM_TOKENS} tokens, {AT_A_TIME} at a time", NUM_TOKENS, NUM_REQUESTS, AT_A_TIME),
        ("streams of 512 tokens, 32 at a time", 512, 64, 32),
        ("streams of 512 tokens, 16 at a time", 512, 32, 16),
    ):
        found = [measured(gate, num_tokens, num_requests, concurrency) for _ in range(num_rounds)]
        a_request = statistics.median(cpu / run.num_requests for run, cpu in found)
        a_token = statistics.median(cpu / run.num_tokens for run, cpu in found)
        rate = statistics.median(run.num_tokens / run.seconds for run, _ in found)
        print(
            f"{name}: {rate:.0f} tokens/s at {rate / num_tokens:.0f} requests/s; "
            f"CPU {a_request * 1000:.2f} ms a request, {a_token * 1e6:.0f} us a token: "
            f"a core could do {1 / a_request:.0f} requests/s, {1 / a_token:.0f} tokens/s"
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A load on one of the gateways. Its rounds are held against those of case ``base``."""

    name: str
    gate: Gateway
    at_a_time: int
    base: int
    beside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def cpu_ms(self) -> float:
        """One round: CPU time a request."""
        with self.beside():
            run, cpu = measured(self.gate, NUM_TOKENS, max(SHORT_RUN, 8 * self.at_a_time), self.at_a_time)
        return cpu / run.num_requests * 1000


def cases_of(one: Gateway, many: Gateway) -> list[Case]:
    """Which loads are held against which."""
    n = many.num_workers
    return [
        Case("one process", one, AT_A_TIME, 0),
        Case(f"{n} processes, as many in all", many, AT_A_TIME, 0),
        Case(f"{n} processes, as many for each", many, AT_A_TIME * n, 0),
        Case(f"one process, as many as each of {n}", one, AT_A_TIME // n, 0),
        Case("one process, other core busy", one, AT_A_TIME, 0, neighbor),
        Case(f"{n} processes, as many in all, other core busy", many, AT_A_TIME, 4, neighbor),
        Case(f"{n} processes, as many for each, other core busy", many, AT_A_TIME * n, 4, neighbor),
        Case(f"one process, as many as each of {n}, other core busy", one, AT_A_TIME // n, 4, neighbor),
    ]


def tell_compared(one: Gateway, many: Gateway, num_rounds: int) -> None:
    """Print what several processes cost beside one."""
    for gate in (one, many):
        measured(gate, NUM_TOKENS, WARM_UP * gate.num_workers, AT_A_TIME)
    cases = cases_of(one, many)
    before = many.samples("kvferry_gateway_worker_requests_total")
    found: list[list[float]] = [[] for _ in cases]
    for number in range(num_rounds):
        for place in list(range(len(cases)))[:: -1 if number % 2 else 1]:  # there and back: what drifts hits all alike
            found[place].append(cases[place].cpu_ms())
    for case, rounds in zip(cases, found, strict=True):
        ratios = [spent / base for spent, base in zip(rounds, found[case.base], strict=True)]
        print(
            f"{case.name + f' ({case.at_a_time} at a time)':64} CPU {statistics.median(rounds):.2f} ms a request "
            f"({min(rounds):.2f} to {max(rounds):.2f}), {statistics.median(ratios) * 100 - 100:+.0f} % "
            f"({min(ratios) * 100 - 100:+.0f} to {max(ratios) * 100 - 100:+.0f})"
        )
    spread = many.samples("kvferry_gateway_worker_requests_total")
    print("requests by process:", *(f"{now - then:.0f}" for now, then in zip(spread, before, strict=True)))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is printed (default 3)")
    parser.add_argument("--step-ms", type=float, default=STEP_S * 1000, help="between two tokens of a stream")
    parser.add_argument("--gateway-workers", type=int, default=1, help="processes of the gateway (default 1)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(surroundings(folder, options.step_ms / 1000))
        one = stack.enter_context(gateway(url, 1))
        if options.gateway_workers == 1:
            tell_alone(one, options.rounds)
        else:
            tell_compared(one, stack.enter_context(gateway(url, options.gateway_workers)), options.rounds)


if __name__ == "__main__":
    main()
