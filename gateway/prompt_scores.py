"""Log probabilities of prompts: each is asked for as a request of its own, whose output is the prompt itself."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.generation import Dispatcher, Generation, Journey, Stream
from gateway.updates import updates_of
from protocol.sampling import Sampling, TokenLogprob

Scores = list[TokenLogprob]
"""Of a prompt's tokens from the second one on."""


class PromptScores:
    """Those of one HTTP request's prompts. Belongs to one event loop."""

    def __init__(self) -> None:
        """Nothing has been asked for yet."""
        self.of_prompts: list[Scores] = []
        self._streams: list[Stream] = []

    @property
    def request_id(self) -> str:
        """That of the first prompt's; "" where none was asked for."""
        return self._streams[0].request_id if self._streams else ""

    @property
    def path(self) -> str:
        """How the first were made."""
        return next((each.path for each in self._streams if each.path), "")

    def journeys(self) -> list[Journey]:
        """Where each has been."""
        return [stream.journey() for stream in self._streams]

    async def fetch(
        self, dispatcher: Dispatcher, prompts: Sequence[tuple[int, ...]], like: Callable[[Sampling], Generation]
    ) -> None:
        """Wait for all of them. ``like`` makes the request of a prompt's sampling, but for its ids.

        Raises ``GatewayError``, or what a broken dispatcher raises; the caller cancels the others.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._fetch_one(dispatcher, prompt, like)) for prompt in prompts]
        self.of_prompts += [task.result() for task in tasks]  # the same list: an answer may have it already

    def cancel(self, reason: str) -> None:
        """End what hasn't ended. Idempotent."""
        for stream in self._streams:
            if not stream.over:
                stream.cancel(reason)

    async def _fetch_one(
        self, dispatcher: Dispatcher, prompt: tuple[int, ...], like: Callable[[Sampling], Generation]
    ) -> Scores:
        if len(prompt) < 2:
            return []
        wanted = like(Sampling(max_tokens=len(prompt) - 1, forced_ids=prompt[1:]))
        generation = Generation(prompt[:1], 1, wanted.sampling, wanted.cache_salt, wanted.label, wanted.deadline_ms)
        stream = await dispatcher.submit(generation)
        self._streams.append(stream)
        scores: Scores = []
        async for update in updates_of(stream):
            scores += update.logprobs
        if len(scores) != len(prompt) - 1:
            raise RuntimeError("the scores of a prompt stopped before its end")
        return scores
