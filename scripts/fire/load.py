"""The load: streams in a closed loop whose requests are made of a seed, so that each has one right answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

NUM_CASES = 48
"""Different requests; the load goes round them."""

OUTCOME_S = 180.0
"""A request that has said nothing for so long is lost: the server's own deadlines are shorter, or a heartbeat is."""

NOTED_S = 0.5
"""A connection breaks a moment before the killing of its gateway is noted."""

_TEXT = (
    "river ferry bridge harbor morning engine captain storm lantern cargo island signal water rope compass market "
    "winter letter mountain garden Käse 船 поезд naïve 42 π"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got: text and finish reason of each choice, and the usage."""

    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request ended: "ok", "wrong", "repeated", "lost", "cut" (its connection), or "failed" with a code."""

    kind: str
    detail: str = ""


@dataclass(slots=True)
class Count:
    """Endings by kind, and of the honest failures by code."""

    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, number: int, ending: Ending) -> None:
        """Count one."""
        self.kinds[ending.kind] += 1
        if ending.kind == "failed":
            self.codes[ending.detail] += 1
        elif ending.kind not in ("ok", "cut"):
            self.notes.append(f"request {number}: {ending.kind} {ending.detail}")


def body_of(case: int, model: str) -> dict[str, Any]:
    """Greedy ones and seeded ones, some with two choices or a stop string, prompts of about 30 to 600 tokens."""
    draw = random.Random(1000 + case)
    body: dict[str, Any] = {
        "model": model,
        "prompt": f"Story {case}. " + " ".join(draw.choices(WORDS, k=draw.choice((20, 40, 80, 160, 320)))),
        "max_tokens": draw.randint(40, 120),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0 if case % 2 == 0 else 0.9,
        "seed": case,
    }
    if case % 6 == 1:
        body["n"] = 2
    if case % 6 == 2:
        body["stop"] = [" the harbor", "\n\n\n"]
    if case % 6 == 3:
        body |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
    return body


class Load:
    """Clients that ask one request after the other, each of the gateway it likes or, when that is away, of another."""

    def __init__(self, urls: list[str], model: str) -> None:
        """Nothing is asked before ``reference``."""
        self._urls = urls
        self._model = model
        self._right: dict[int, Answer] = {}
        self._numbers = itertools.count()
        self._stop = asyncio.Event()
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(OUTCOME_S, connect=5.0), limits=httpx.Limits())
        self.count = Count()
        self.killed_gateways: Counter[str] = Counter()
        self.num_open = 0

    async def reference(self, num_streams: int) -> None:
        """Ask every case once, undisturbed. Raises ``RuntimeError`` if one fails."""
        cases = iter(range(NUM_CASES))

        async def work() -> None:
            for case in cases:
                got = await self._ask(self._urls[case % len(self._urls)], case)
                if not isinstance(got, Answer):
                    raise RuntimeError(f"the reference run failed in case {case}: {got}")
                self._right[case] = got

        await asyncio.gather(*(work() for _ in range(num_streams)))

    async def run(self, num_streams: int) -> None:
        """Keep so many streams going until ``stop``; then let the open ones end."""
        await asyncio.gather(*(self._stream(number) for number in range(num_streams)))

    def stop(self) -> None:
        """Nothing new from now on."""
        self._stop.set()

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    async def _stream(self, stream: int) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            ending = await self._one(stream, number)
            if ending is None:
                await asyncio.sleep(0.2)  # no gateway took the connection: nothing was asked
                continue
            self.count.add(number, ending)
            if ending.kind == "failed":
                await asyncio.sleep(0.5)  # as a client does that was told to come again

    async def _one(self, stream: int, number: int) -> Ending | None:
        case = number % NUM_CASES
        for url in (self._urls[(stream + i) % len(self._urls)] for i in range(len(self._urls))):
            kills = self.killed_gateways[url]
            self.num_open += 1
            try:
                got = await self._ask(url, case)
            except httpx.ConnectError:
                continue
            except httpx.TimeoutException:
                return Ending("lost", f"case {case}: nothing for {OUTCOME_S:g} s")
            except httpx.HTTPError as error:
                await asyncio.sleep(NOTED_S)
                was_killed = self.killed_gateways[url] > kills
                return Ending("cut") if was_killed else Ending("lost", f"case {case}: {error!r}")
            finally:
                self.num_open -= 1
            return self._judged(case, got)
        return None

    def _judged(self, case: int, got: Answer | Ending) -> Ending:
        if isinstance(got, Ending):
            return got
        right = self._right[case]
        return Ending("ok") if got == right else Ending("wrong", f"case {case}: {got} instead of {right}")

    async def _ask(self, url: str, case: int) -> Answer | Ending:
        """One request from its start to its outcome."""
        body = body_of(case, self._model)
        reader = Reader(body.get("n", 1))
        async with self._client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                text = await answer.aread()
                return Ending("failed", _code(text, answer.status_code))
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    reader.take(line.removeprefix("data: "))
        return reader.result(case)


class Reader:
    """Reads the events of one stream; what comes after an end is noted."""

    def __init__(self, num_choices: int) -> None:
        """Of so many choices."""
        self._texts = [""] * num_choices
        self._finishes = [""] * num_choices
        self._usage = -1
        self._error = ""
        self._done = False
        self._repeated = False

    def take(self, data: str) -> None:
        """One event."""
        self._repeated |= self._done
        if data == "[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if "error" in event:
            self._repeated |= bool(self._error)
            self._error = str(event["error"]["code"])
            return
        for choice in event["choices"]:
            index = choice["index"]
            self._repeated |= bool(self._finishes[index])
            self._texts[index] += choice["text"]
            self._finishes[index] = choice["finish_reason"] or ""
        if event.get("usage"):
            self._usage = event["usage"]["completion_tokens"]

    def result(self, case: int) -> Answer | Ending:
        """What it came to."""
        if self._repeated:
            return Ending("repeated", f"case {case}: something came after the end")
        if self._error:
            return Ending("failed", self._error)
        if not self._done or not all(self._finishes):
            return Ending("lost", f"case {case}: the stream ended without an outcome")
        return Answer(tuple(self._texts), tuple(self._finishes), self._usage)


def _code(body: bytes, status: int) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return f"{status} without a code"
