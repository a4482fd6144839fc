"""The prefill worker: takes requests, has prompts computed, and hands over blocks and first tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.api import Computed, Key, NewTokens, Rejected, Result, StopChoice
from kvtransfer.intake import prefill_command, refusal, token_event
from kvtransfer.sender import Sender, SenderParts
from kvtransfer.worker import Worker, WorkerParts
from prefill_svc.job import Job
from protocol.block_hash import chain_hashes, root_hash
from protocol.errors import Code
from protocol.handover import State
from protocol.messages import (
    Accepted,
    Demand,
    Finished,
    Grant,
    GrantRequest,
    Peer,
    PrefillRequest,
    Receipt,
    Refused,
    Stop,
)
from runtime.logs import get_logger

FINISHED_S = 10.0
"""How long Finished is repeated: twice as long as the decode worker's hold lasts without it."""

log = get_logger("prefill")


class PrefillWorker(Worker):
    """One prefill worker's io side."""

    phase = "prefill"
    max_held = 1024

    def __init__(self, parts: WorkerParts) -> None:
        """Takes over the postbox's prefill messages. Needs a running loop."""
        super().__init__(parts)
        self._jobs: dict[Key, Job] = {}
        self._sender_parts = SenderParts(parts.postbox, self.repeats, parts.link, parts.contents)
        parts.postbox.on(PrefillRequest, self._request)
        parts.postbox.on(Grant, self._grant)
        parts.postbox.on(Receipt, self._receipt)
        parts.postbox.on(Refused, self._refused)
        parts.postbox.on(Stop, self._stop)

    # -- messages ----------------------------------------------------------------------------------------

    def _request(self, gateway: Peer, request: PrefillRequest) -> None:
        key = (request.request_id, request.attempt)
        if key in self.held:
            self.send(gateway, Accepted(*key, self.phase))
            return
        reason = self.reason_to_refuse(key) or refusal(request, self.parts.engine.started.ready.max_model_len)
        if reason is not None:
            self.send(gateway, Refused(*key, self.phase, *reason))
            return
        self.hold(key, gateway, request.decode)
        self.emitter.begin(key, gateway)
        job = self._jobs[key] = Job(request, gateway)
        self.deadlines.enter(key, "prefill", (request.queue_ms + request.prefill_ms) / 1000)
        self.submit(prefill_command(request, hand_over=True))
        if request.decode.id:
            job.sender = self._new_sender(key, job)
        self.send(gateway, Accepted(*key, self.phase))

    def _new_sender(self, key: Key, job: Job) -> Sender:
        request, started = job.request, self.parts.engine.started
        tails = tuple(len(tail.token_ids) for tail in request.tails)
        trunk = request.prompt_ids + (request.tails[0].token_ids if len(tails) == 1 else ())
        root = root_hash(started.ready.weights, started.layout.dtype, salt=request.cache_salt)
        question = GrantRequest(
            *key,
            gateway=job.gateway,
            demand=Demand(
                len(request.prompt_ids),
                tuple(tail.choice for tail in request.tails),
                tails,
                request.sampling.max_tokens,
            ),
            block_hashes=tuple(chain_hashes(root, trunk)),
            layout=started.layout.fingerprint,
            weights=started.ready.weights,
            transfer_ms=request.transfer_ms,
        )

        def ended(state: State, code: str, message: str) -> None:
            self._transfer_ended(key, state, code, message)

        return Sender(self._sender_parts, question, request.decode, ended)

    def _grant(self, sender: Peer, grant: Grant) -> None:
        self._with_sender(sender, (grant.request_id, grant.attempt), lambda s: s.granted(grant))

    def _receipt(self, sender: Peer, receipt: Receipt) -> None:
        self._with_sender(sender, (receipt.request_id, receipt.attempt), lambda s: s.receipt(receipt))

    def _refused(self, sender: Peer, refused: Refused) -> None:
        """No grant: the gateway is told at once and takes another decode worker."""
        key = (refused.request_id, refused.attempt)
        self._with_sender(sender, key, lambda s: s.fail(refused.code, refused.message, State.REFUSED), answer=False)

    def _with_sender(self, peer: Peer, key: Key, act: Callable[[Sender], None], *, answer: bool = True) -> None:
        job = self._jobs.get(key)
        if job is not None and job.sender is not None and job.sender.to == peer:
            act(job.sender)
        elif answer:
            self.unknown(peer, key)

    def _stop(self, sender: Peer, stop: Stop) -> None:
        """One choice ended at the gateway; it isn't handed over if the record isn't out yet."""
        key = (stop.request_id, stop.attempt)
        job = self._jobs.get(key)
        if job is None or all(tail.choice != stop.choice for tail in job.request.tails):
            return
        job.stopped.add(stop.choice)
        self.submit(StopChoice(key, stop.choice))
        self._sampled(key, job)

    # -- the engine's results ------------------------------------------------------------------------------

    def on_result(self, result: Result) -> None:
        """Blocks that filled, first tokens, and refusals of the engine."""
        if isinstance(result, Rejected):
            self.fail(result.key, result.code, result.message)
            return
        if not isinstance(result, (Computed, NewTokens)):
            return
        job = self._jobs.get(result.key)
        if job is None:
            return
        if isinstance(result, Computed):
            branch = job.note_computed(result)
            if job.sender is not None:
                job.sender.computed(branch, result)
            return
        self.emitter.add(token_event(result, max(result.num_cached_tokens, 0)))
        if job.request.sampling.forced_ids and not result.finish_reason:
            return  # more of them come, and nothing is handed over
        job.first_tokens.setdefault(result.choice, result)
        self._sampled(result.key, job)

    def _sampled(self, key: Key, job: Job) -> None:
        """Once every choice has its first token: hand over those that go on, or say that none does."""
        if not job.sampled:
            return
        self.deadlines.leave(key)
        if job.live and job.sender is not None:
            self.deadlines.enter(key, "transfer", job.request.transfer_ms / 1000)
            job.sender.finish(job.record)
        elif job.live:
            self.fail(key, Code.BAD_REQUEST, "choices go on, but no decode worker was named")
        else:
            self._nothing_to_hand_over(key, job)

    def _nothing_to_hand_over(self, key: Key, job: Job) -> None:
        if job.sender is not None:
            finished, to = Finished(*key), job.sender.to
            self.repeats.start(("finished", key), lambda: self.send(to, finished), FINISHED_S, lambda: None)
        self.end(key, keep_events=True)

    def _transfer_ended(self, key: Key, state: State, code: str, message: str) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        if state is State.ADOPTED and job.sender is not None:
            num_bytes, link = job.sender.bytes_shipped, job.sender.link
            self.bytes_moved += num_bytes
            log.info("handover_adopted", request_id=key[0], attempt=key[1], num_bytes=num_bytes, link=link)
            self.end(key, keep_events=True)
        elif state in (State.FAILED, State.REFUSED):
            self.fail(key, code, message, "transfer")

    # -- what the base asks for ----------------------------------------------------------------------------

    def on_end(self, key: Key) -> None:
        """Drop the job and its transfer."""
        job = self._jobs.pop(key, None)
        if job is not None and job.sender is not None:
            job.sender.fail(Code.CANCELLED, "the attempt ended", State.CANCELLED)

    def open_transfers(self) -> Iterable[tuple[Key, Peer]]:
        """Transfers that a decode worker has granted and not adopted."""
        for key, job in self._jobs.items():
            if job.sender is not None and job.sender.state in (State.GRANTED, State.SENDING, State.COMPLETE):
                yield key, job.sender.to

    def state_of(self, key: Key) -> str:
        """The hand-over state of a job; one without a decode worker is only held."""
        job = self._jobs[key]
        return job.sender.state if job.sender is not None else "held"
