"""What the Python programs share: `program.py BASE_URL MODEL FEATURE` exits 0 and prints one JSON line if green."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

E = TypeVar("E", bound=Exception)

QUESTION = "What is the capital of Japan?"
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 24
"""Of plain answers: asked greedily, so that every client gets the same text."""
STOP = "Tokyo"
TOO_LONG = "word " * 9000
FORCED_TOKENS = 200
"""Enough for what schemas allow; a grammar ends the answer long before."""
ENDLESS = {"ignore_eos": True}
ENDLESS_TOKENS = 2000
"""Takes longer than an abort may."""
NUM_READ = 3
"""Chunks that are read before the client stops reading."""
ABORT_S = 10.0
OTHER_MODEL = "no-such-model"
TOOL_RESULT = "It sails at noon."


class Closed(BaseModel):
    """Without properties of the model's own: a grammar lets those of an open object go on for as long as they like."""

    model_config = ConfigDict(extra="forbid")


class Weather(Closed):
    """Look up the weather of a city."""

    city: Literal["Paris", "Oslo"]
    days: int = Field(ge=1, le=7)


class Ferry(Closed):
    """Find a ferry."""

    origin: Literal["Dover", "Calais"]
    cars: bool
    note: str = Field(max_length=16)


class Server(NamedTuple):
    """Where the stack is, and the name of its model."""

    base_url: str
    model: str

    @property
    def v1(self) -> str:
        """What clients are pointed at."""
        return f"{self.base_url}/v1"

    def metrics(self) -> dict[str, float]:
        """The gateway's numbers, by name with labels."""
        with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def num_aborted(self) -> float:
        """Requests so far whose client had gone (499)."""
        found = self.metrics().items()
        return sum(
            count for name, count in found if name.startswith("kvferry_gateway_requests_total{") and '"499"' in name
        )

    def num_running(self) -> float:
        """Requests that run now, beside the one that asks."""
        return self.metrics()["kvferry_gateway_requests_running"] - 1


def hold(condition: object, what: str) -> None:
    """Raise if a promise is broken."""
    if not condition:
        raise AssertionError(what)


def the_tool(name: str, arguments: str | dict[str, Any]) -> dict[str, Any]:
    """A tool call, whose arguments must be those of its model."""
    kinds: dict[str, type[BaseModel]] = {"Weather": Weather, "Ferry": Ferry}
    fields = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"tool": name, "arguments": kinds[name].model_validate(fields).model_dump()}


def checked_logprobs(tokens: list[tuple[float, int]]) -> dict[str, Any]:
    """Of each token: its log probability, and how many alternatives came with it; two were asked for."""
    hold(tokens, "no log probabilities")
    hold(all(logprob <= 0 and num_top == 2 for logprob, num_top in tokens), f"log probabilities: {tokens}")
    return {"num_tokens": len(tokens)}


def refusal(
    call: Callable[[], object], kind: type[E], status_and_code: Callable[[E], tuple[int, object]]
) -> dict[str, Any]:
    """What the client makes of a refusal: an error of this class, with the server's status and code."""
    try:
        call()
    except kind as error:
        status, code = status_and_code(error)
        return {"error": type(error).__name__, "status": status, "code": code}
    raise AssertionError(f"no {kind.__name__}")


@contextmanager
def aborted(server: Server) -> Iterator[None]:
    """Around a stream that its client leaves: while the client lives on, the server ends the request."""
    before = server.num_aborted()
    yield
    deadline = time.monotonic() + ABORT_S
    while time.monotonic() < deadline:
        if server.num_aborted() == before + 1 and server.num_running() == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"still running {ABORT_S} s after the client stopped reading")


def main(*features: Callable[[Server], dict[str, Any]]) -> None:
    """Run the feature that the command line names: the function of that name."""
    base_url, model, feature = sys.argv[1:]
    by_name = {each.__name__: each for each in features}
    found = by_name[feature](Server(base_url, model))
    sys.stdout.write(json.dumps(found) + "\n")
