"""One HTTP request's generations on their way: tokens of all its prompts in, pieces out."""

import asyncio
import secrets
import time
from dataclasses import replace

from gateway.access_log import RequestRecord
from gateway.deadline import left_ms
from gateway.errors import GatewayError
from gateway.generation import Dispatcher, Generation, Journey, Stream, Update
from gateway.metrics import HttpMetrics
from gateway.prompt_scores import PromptScores
from gateway.requests import Job
from gateway.tokenizer import TextTokenizer
from gateway.transcript import Piece, Transcript
from protocol.sampling import NO_LOGPROBS, Sampling
from runtime.logs import get_logger

log = get_logger("gateway.run")

MAX_READY = 1024
"""Pieces that wait for a slow client; then its tokens wait where the dispatcher keeps them."""


class Run:
    """Started once, then read to its end or closed. Belongs to one event loop."""

    def __init__(
        self, job: Job, tokenizer: TextTokenizer, record: RequestRecord, metrics: HttpMetrics, deadline_ms: int = 0
    ) -> None:
        """``deadline_ms`` counts from the request's arrival; 0 is no deadline."""
        self.job = job
        self._deadline_ms = deadline_ms
        self._record = record
        self._metrics = metrics
        self._transcripts = [
            Transcript(number, tokenizer, job.sampling, job.text)
            for number in range(len(job.prompts) * job.num_choices)
        ]
        self._num_open = len(self._transcripts)
        self._last_token = [0.0] * len(self._transcripts)
        self.scores = PromptScores()
        self._own_id = "" if job.sampling.max_tokens else f"req-{secrets.token_hex(8)}"
        self._streams: dict[int, Stream] = {}
        self._loop = asyncio.get_running_loop()
        self._due: set[int] = set()
        self._kept_waiting: set[int] = set()
        self._ready: list[Piece] = []
        self._news = asyncio.Event()
        self._nudged = False
        self._failure: Exception | None = None

    @property
    def over(self) -> bool:
        """Every choice has ended, and all its pieces were read."""
        return not self._ready and not self._num_open

    @property
    def num_choices(self) -> int:
        """Over all prompts."""
        return len(self._transcripts)

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices so far, as usage counts them."""
        return self._record.num_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose compute was skipped, over all prompts: none of those that were scored first."""
        if self.scores.of_prompts:
            return 0
        return sum(stream.num_cached_tokens for stream in self._streams.values())

    @property
    def request_id(self) -> str:
        """The dispatcher's id of the first prompt's request; "" before it was submitted."""
        return self._streams[0].request_id if 0 in self._streams else self.scores.request_id or self._own_id

    @property
    def path(self) -> str:
        """How the first tokens were made: that of the first prompt which has any."""
        return next((each.path for each in self._streams.values() if each.path), self.scores.path)

    def journeys(self) -> list[Journey]:
        """Where each prompt's request has been; complete when all choices have ended. Those for scores come first."""
        return self.scores.journeys() + [self._streams[number].journey() for number in sorted(self._streams)]

    async def start(self, dispatcher: Dispatcher) -> None:
        """Submit every prompt and wait for the first token of any.

        Raises ``GatewayError``, or what a broken dispatcher raises; nothing is left running then,
        nor when this is cancelled.
        """
        job = self.job
        try:
            if job.prompt_logprobs != NO_LOGPROBS:
                await self.scores.fetch(dispatcher, job.prompts, self._like_prompt)
            if not job.sampling.max_tokens:
                self._end_without_tokens()
                return
            if len(job.prompts) == 1:
                await self._submit(dispatcher, 0)
            else:
                await self._submit_all(dispatcher)
            while not self._ready and self._num_open:
                self._raise_failure()
                self._news.clear()
                await self._news.wait()
        except ExceptionGroup as group_error:
            self.close("another prompt of the request failed")
            raise group_error.exceptions[0] from None
        except BaseException:
            self.close("client disconnected")
            raise

    async def batch(self) -> list[Piece]:
        """Pieces that are ready, at least one; none once every choice has ended, or after a ``nudge``.

        Raises ``GatewayError`` or what a broken dispatcher raised, after the pieces before it.
        """
        while not self._ready and self._num_open:
            self._raise_failure()
            if self._nudged:
                break
            self._news.clear()
            await self._news.wait()
        self._nudged = False
        pieces, self._ready = self._ready, []
        while self._kept_waiting:
            self._take_soon(self._kept_waiting.pop())
        return pieces

    def nudge(self) -> None:
        """Let ``batch`` return, with nothing if nothing is there."""
        self._nudged = True
        self._news.set()

    def close(self, reason: str) -> None:
        """Cancel what hasn't ended. Idempotent; nothing to do after the last choice's end."""
        self._note()
        self.scores.cancel(reason)
        if self._num_open:  # else each stream ends by itself
            for stream in self._streams.values():
                stream.cancel(reason)

    def _like_prompt(self, sampling: Sampling) -> Generation:
        """What asks for a prompt's scores."""
        job = self.job
        scored = replace(sampling, logprobs=job.prompt_logprobs)
        return Generation((), 1, scored, job.cache_salt, job.label, self._left_ms())

    def _end_without_tokens(self) -> None:
        """Nothing but the prompt was asked for."""
        self._num_open = 0
        self._record.first_token = time.monotonic()
        for transcript in self._transcripts:
            transcript.finish_reason = "length"
            self._ready.append(Piece(transcript.choice, "", [], 0, "length"))

    async def _submit_all(self, dispatcher: Dispatcher) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.job.prompts)):
                group.create_task(self._submit(dispatcher, number))

    async def _submit(self, dispatcher: Dispatcher, number: int) -> None:
        job = self.job
        stream = await dispatcher.submit(
            Generation(
                prompt_ids=job.prompts[number],
                num_choices=job.num_choices,
                sampling=job.sampling,
                cache_salt=job.cache_salt,
                label=job.label,
                deadline_ms=self._left_ms(),
            )
        )
        self._streams[number] = stream
        stream.on_news(lambda: self._take_soon(number))
        self._take_soon(number)  # something may have come already

    def _left_ms(self) -> int:
        return left_ms(self._deadline_ms, self._record.started)

    def _take_soon(self, number: int) -> None:
        """Not at once: whoever has news for us is in the middle of something, and a stop string goes back to it."""
        if number not in self._due:
            self._due.add(number)
            self._loop.call_soon(self._take_all, number)

    def _take_all(self, number: int) -> None:
        """What a stream has now becomes pieces, or the failure that ends this run."""
        self._due.discard(number)
        if len(self._ready) >= MAX_READY:
            self._kept_waiting.add(number)
            return
        stream = self._streams[number]
        own = self._transcripts[number * self.job.num_choices :][: self.job.num_choices]
        try:
            while not all(transcript.finish_reason for transcript in own):
                updates = stream.take()
                for update in updates:
                    self._take(stream, own[update.choice], update)
                if not updates and stream.over:
                    raise RuntimeError("the updates of a request stopped before its choices had ended")
                if not updates:
                    break
        except Exception as error:
            if not isinstance(error, GatewayError):
                log.exception("stream_broke", request_id=stream.request_id)
            self._failure = self._failure or error
        if self._ready or self._failure is not None:
            self._news.set()

    def _take(self, stream: Stream, transcript: Transcript, update: Update) -> None:
        if transcript.finish_reason:
            return  # it ended here, at a stop string; what comes after is wasted
        before = transcript.num_tokens
        piece = transcript.add(update)
        if self.job.text.token_ids:
            piece.token_ids = tuple(update.token_ids[: transcript.num_tokens - before])
        if transcript.stopped_here:
            stream.stop(update.choice, transcript.num_tokens)
        self._record.num_tokens += transcript.num_tokens - before
        self._measure(transcript.choice)
        if transcript.finish_reason:
            self._num_open -= 1
            self._record.finish_reasons.append(transcript.finish_reason)
            self._metrics.choice_ended(transcript.finish_reason)
        self._ready.append(piece)

    def _measure(self, choice: int) -> None:
        now = time.monotonic()
        if self._record.first_token is None:
            self._record.first_token = now
            self._metrics.first_token(self.path, now - self._record.started)
        elif self._last_token[choice]:
            self._metrics.between_tokens(now - self._last_token[choice])
        self._last_token[choice] = now

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _note(self) -> None:
        record = self._record
        record.request_id, record.path = self.request_id, self.path
        record.num_cached_tokens = self.num_cached_tokens
        record.journeys = self.journeys()
        record.num_attempts = max((each.num_attempts for each in self._streams.values()), default=0)
