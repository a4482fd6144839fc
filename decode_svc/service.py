"""The decode worker: reserves, grants, lands blocks, adopts, and emits tokens; prefills locally within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from decode_svc.job import Job, adopt_command, first_events
from engine import api
from engine.api import Key
from kvtransfer.credit import CreditPool
from kvtransfer.intake import mismatch, prefill_command, refusal, token_event
from kvtransfer.pieces import PieceError, unpack_header
from kvtransfer.receiver import Receiver, ReceiverParts
from kvtransfer.worker import Worker, WorkerParts
from protocol.handover import State
from protocol.messages import (
    Accepted,
    Finished,
    GrantRequest,
    KVHandover,
    Message,
    Peer,
    PrefillRequest,
    Receipt,
    Refused,
    Reserve,
    Stop,
)
from runtime.ended import EndedAttempts
from runtime.logs import get_logger

NO_LIMIT = -1

log = get_logger("decode")


class DecodeWorker(Worker):
    """One decode worker's io side."""

    phase = "decode"
    max_held = 4096

    def __init__(self, parts: WorkerParts, local_prefill_tokens: int) -> None:
        """Takes over the postbox's decode messages. ``local_prefill_tokens`` -1 is no limit (``both``)."""
        super().__init__(parts)
        self.local_prefill_tokens = local_prefill_tokens
        self._jobs: dict[Key, Job] = {}
        self._transfers: dict[str, Receiver] = {}
        self._asked: dict[Key, Callable[[Message], None]] = {}
        self._adopted = EndedAttempts()
        self._receiver_parts = ReceiverParts(parts.postbox, parts.contents, CreditPool())
        parts.postbox.on(Reserve, self._reserve)
        parts.postbox.on(GrantRequest, self._grant_request)
        parts.postbox.on(KVHandover, self._record)
        parts.postbox.on(PrefillRequest, self._local_prefill)
        parts.postbox.on(Finished, self._finished)
        parts.postbox.on(Stop, self._stop)

    # -- messages ----------------------------------------------------------------------------------------

    def _reserve(self, gateway: Peer, reserve: Reserve) -> None:
        key = (reserve.request_id, reserve.attempt)
        job = self._jobs.get(key)
        if job is not None:
            if job.state is not State.OFFERED:
                self.send(gateway, Accepted(*key, self.phase))
            return
        reason = self.reason_to_refuse(key)
        if reason is not None:
            self.send(gateway, Refused(*key, self.phase, *reason))
            return
        self._begin(key, gateway, reserve.prefill, State.OFFERED)
        self._asked[key] = lambda answer: self.send(gateway, answer)
        demand = reserve.demand
        self.submit(api.Reserve(key, demand.num_prompt_tokens, demand.tail_lens, demand.max_tokens))

    def _grant_request(self, prefill: Peer, question: GrantRequest) -> None:
        """Stands for a Reserve still on its way: whichever comes first begins the attempt here."""
        key = (question.request_id, question.attempt)
        job = self._jobs.get(key)
        if job is not None and job.receiver is not None:
            self.send(prefill, job.receiver.grant())
            return
        reason = self.reason_to_refuse(key) if job is None else None
        reason = reason or mismatch(question, self.parts.engine.started)
        if reason is not None:
            self.send(prefill, Refused(*key, self.phase, *reason))
            return
        if job is None:
            self._begin(key, question.gateway, prefill, State.OFFERED)
        self._asked[key] = lambda answer: self.send(prefill, answer)
        demand = question.demand
        self.submit(
            api.Grant(
                key,
                demand.num_prompt_tokens,
                demand.tail_lens,
                demand.max_tokens,
                question.block_hashes,
                demand.choices,
            )
        )

    def _begin(self, key: Key, gateway: Peer, prefill: Peer, state: State) -> Job:
        self.hold(key, gateway, prefill)
        self.emitter.begin(key, gateway)
        job = self._jobs[key] = Job(gateway, prefill, state)
        return job

    async def attach(self) -> None:
        """Receive contents from the link."""
        await self.parts.link.receive(self.parts.postbox.me, self.piece)

    def piece(self, frame: memoryview) -> None:
        """A frame from the link; one of no open transfer is dropped."""
        try:
            piece = unpack_header(frame)
        except PieceError as error:
            log.warning("piece_refused", error=str(error))
            return
        receiver = self._transfers.get(piece.transfer_id)
        if receiver is not None:
            receiver.land(frame, piece)

    def _record(self, prefill: Peer, record: KVHandover) -> None:
        key = (record.request_id, record.attempt)
        job = self._jobs.get(key)
        if job is not None and job.receiver is not None:
            job.receiver.record(record)
        elif key in self._adopted:
            done = Receipt(*key, record.transfer_id, State.ADOPTED, record.num_pieces, (), record.total_bytes)
            self.send(prefill, done)
        else:
            self.unknown(prefill, key)

    def _local_prefill(self, gateway: Peer, request: PrefillRequest) -> None:
        key = (request.request_id, request.attempt)
        if key in self._jobs:
            self.send(gateway, Accepted(*key, self.phase))
            return
        reason = self.reason_to_refuse(key) or refusal(request, self.parts.engine.started.ready.max_model_len)
        if reason is not None:
            self.send(gateway, Refused(*key, self.phase, *reason))
            return
        self._begin(key, gateway, self.parts.postbox.me, State.ADOPTED)
        self.deadlines.enter(key, "decode", (request.queue_ms + request.prefill_ms + request.decode_ms) / 1000)
        self.submit(prefill_command(request, hand_over=False, max_uncached_tokens=self.local_prefill_tokens))
        self.send(gateway, Accepted(*key, self.phase))

    def _finished(self, prefill: Peer, finished: Finished) -> None:
        """Nothing will be handed over: drop what is held, and say so once it is."""
        self.end_and_answer(prefill, (finished.request_id, finished.attempt))

    def _stop(self, gateway: Peer, stop: Stop) -> None:
        """End one choice; one that comes before the record is kept for it."""
        key = (stop.request_id, stop.attempt)
        job = self._jobs.get(key)
        if job is not None:
            job.stopped.add(stop.choice)
            if job.state is State.ADOPTED:
                self.submit(api.StopChoice(key, stop.choice))

    # -- the engine's results ------------------------------------------------------------------------------

    def on_result(self, result: api.Result) -> None:
        """Answers of the engine, and new tokens."""
        if isinstance(result, api.NewTokens):
            self._new_tokens(result)
        elif isinstance(result, api.Granted):
            self._granted(result)
        elif isinstance(result, api.Reserved):
            self._reserved(result)
        elif isinstance(result, api.Rejected):
            self._rejected(result)

    def _new_tokens(self, tokens: api.NewTokens) -> None:
        job = self._jobs.get(tokens.key)
        if job is not None:
            job.num_cached_tokens = max(job.num_cached_tokens, tokens.num_cached_tokens)
            self.emitter.add(token_event(tokens, job.num_cached_tokens))

    def _reserved(self, reserved: api.Reserved) -> None:
        self._asked.pop(reserved.key, None)
        job = self._jobs.get(reserved.key)
        if job is not None and job.state is State.OFFERED:
            job.state = State.RESERVED
            self.send(job.gateway, Accepted(*reserved.key, self.phase))

    def _granted(self, granted: api.Granted) -> None:
        self._asked.pop(granted.key, None)
        job = self._jobs.get(granted.key)
        if job is None or job.receiver is not None:
            return
        if job.state is State.OFFERED:
            self.send(job.gateway, Accepted(*granted.key, self.phase))
        job.state = State.GRANTED

        def complete(record: KVHandover) -> None:
            self._adopt(granted.key, record)

        receiver = Receiver(self._receiver_parts, granted.key, job.prefill, granted, complete)
        job.receiver = self._transfers[receiver.transfer_id] = receiver
        self.send(job.prefill, receiver.grant())

    def _rejected(self, rejected: api.Rejected) -> None:
        """No room: whoever asked is told; what runs here already and can't go on has failed."""
        answer = self._asked.get(rejected.key)
        if answer is None:
            self.fail(rejected.key, rejected.code, rejected.message)
            return
        refused = Refused(*rejected.key, self.phase, rejected.code, rejected.message)
        answer(refused)
        self.end(rejected.key)

    def _adopt(self, key: Key, record: KVHandover) -> None:
        """All is verified: the engine takes over, and the gateway hears at once that this worker has it."""
        job = self._jobs[key]
        assert job.receiver is not None
        self.bytes_moved += job.receiver.bytes_landed
        job.num_cached_tokens = record.num_cached_tokens
        command = adopt_command(record, job.stopped)
        self._adopted.add(*key)
        job.state = State.ADOPTED
        job.receiver.adopted()
        self.deadlines.enter(key, "decode", record.decode_ms / 1000)
        self._transfers.pop(job.receiver.transfer_id, None)
        for event in first_events(record, job.stopped):
            self.emitter.add(event)
        self.emitter.flush()
        if command.tails:
            self.submit(command)
        else:
            self.end(key)

    def on_key_done(self, key: Key) -> None:
        """The engine has ended every choice: what was said still has to arrive, nothing else is left."""
        job = self._jobs.get(key)
        if job is not None and job.state is State.ADOPTED:
            self.end(key, keep_events=True)

    # -- what the base asks for ----------------------------------------------------------------------------

    def on_end(self, key: Key) -> None:
        """Drop the job and its transfer."""
        job = self._jobs.pop(key, None)
        self._asked.pop(key, None)
        if job is not None and job.receiver is not None:
            self._transfers.pop(job.receiver.transfer_id, None)
            if job.state is not State.ADOPTED:
                job.receiver.end(State.CANCELLED)

    def open_transfers(self) -> Iterable[tuple[Key, Peer]]:
        """Transfers that are granted and not adopted."""
        for key, job in self._jobs.items():
            if job.receiver is not None and job.state is not State.ADOPTED:
                yield key, job.prefill

    def unknown(self, sender: Peer, key: Key) -> None:
        """An adopted attempt that has ended since is no failure of the other side's transfer."""
        if key not in self._adopted:
            super().unknown(sender, key)

    def state_of(self, key: Key) -> str:
        """The hand-over state of a job."""
        job = self._jobs[key]
        return job.receiver.state if job.receiver is not None else job.state
