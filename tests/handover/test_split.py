"""The way from prompt to tokens across two workers, on memory bus and memory link."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from protocol.codec import decode
from protocol.messages import AttemptRef, Failed, Refused, Released, Tail
from tests.support.scripted_gateway import GREEDY, ScriptedGateway, gateway_of
from tests.support.stack import Stack, run, until

PROMPT = [3 + (i * i) % 97 for i in range(77)]
SEEDED = replace(GREEDY, temperature=0.9, seed=1234567890123, top_p=0.95)

Check = Callable[[Stack, ScriptedGateway], Awaitable[None]]


def with_stack(check: Check, *, payload: int = 1 << 20, local: int = -1, num_blocks: int = 64) -> None:
    """One prefill and one decode worker, idle and whole again at the end."""

    async def body() -> None:
        stack = Stack(max_payload=payload, num_blocks=num_blocks)
        await stack.add("prefill", "prefill-1", max_num_batched_tokens=32)
        await stack.add("decode", "decode-1", local_prefill_tokens=local)
        async with gateway_of(stack) as gateway:
            await check(stack, gateway)

    run(body)


async def local_output(gateway: ScriptedGateway, prompt: list[int], **more: object) -> list[list[int]]:
    """What the decode worker alone makes of the same request."""
    tails = more.get("tails", (Tail(0),))
    gateway.ask(prompt, request_id="alone", prefill="decode-1", **more)  # type: ignore[arg-type]
    return await gateway.finished(*[t.choice for t in tails], request_id="alone")  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 48, 77])
def test_split_gives_the_tokens_of_one_worker(sampling: object, length: int) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT[:length], sampling=sampling)  # type: ignore[arg-type]
        split = await gateway.finished(0)
        assert len(split[0]) == 12
        assert split == await local_output(gateway, PROMPT[:length], sampling=sampling)

    with_stack(check)


def test_prompt_tokens_are_computed_on_the_prefill_worker_alone() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT)
        await gateway.finished(0)
        await stack.idle()
        prefill, decode = stack.nodes["prefill-1"], stack.nodes["decode-1"]
        assert prefill.worker.load.prompt_tokens_computed == len(PROMPT)
        assert decode.worker.load.prompt_tokens_computed == 0
        layout = prefill.node.engine.started.layout
        assert prefill.worker.bytes_moved == layout.num_blocks(len(PROMPT)) * layout.block_bytes
        assert decode.worker.bytes_moved == prefill.worker.bytes_moved

    with_stack(check)


def test_eight_choices_cost_one_prefill_and_one_transfer() -> None:
    tails = tuple(Tail(c) for c in range(8))

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT, tails=tails, sampling=SEEDED)
        outputs = await gateway.finished(*range(8))
        assert len({tuple(o) for o in outputs}) > 1
        await stack.idle()
        prefill = stack.nodes["prefill-1"]
        layout = prefill.node.engine.started.layout
        assert prefill.worker.load.prompt_tokens_computed == len(PROMPT)
        assert prefill.worker.bytes_moved == layout.num_blocks(len(PROMPT)) * layout.block_bytes
        assert outputs == await local_output(gateway, PROMPT, tails=tails, sampling=SEEDED)

    with_stack(check)


def test_blocks_that_the_decode_worker_has_are_not_shipped_again() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT)
        one = await gateway.finished(0)
        await stack.idle()
        moved = stack.nodes["prefill-1"].worker.bytes_moved
        gateway.ask(PROMPT, request_id="r2")
        assert await gateway.finished(0, request_id="r2") == one
        await stack.idle()
        block_bytes = stack.nodes["prefill-1"].node.engine.started.layout.block_bytes
        assert stack.nodes["prefill-1"].worker.bytes_moved - moved == block_bytes
        assert gateway.first["r2", 1, 0, "prefill"].num_cached_tokens == 64

    with_stack(check)


def test_the_decode_workers_first_event_begins_at_the_prefill_workers_token() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT)
        await gateway.finished(0)
        one = gateway.first["r1", 1, 0, "prefill"]
        two = gateway.first["r1", 1, 0, "decode"]
        assert (one.first_index, two.first_index) == (0, 0)
        assert one.token_ids[0] == two.token_ids[0]

    with_stack(check)


@pytest.mark.parametrize("produced", [1, 15, 16, 17, 40])
def test_a_retry_from_produced_tokens_goes_on_as_if_nothing_had_happened(produced: int) -> None:
    sampling = replace(SEEDED, max_tokens=50, presence_penalty=0.5, repetition_penalty=1.2)

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        (whole,) = await local_output(gateway, PROMPT, sampling=sampling)
        tail = Tail(0, tuple(whole[:produced]))
        gateway.ask(PROMPT, tails=(tail,), sampling=sampling, attempt=2)
        (rest,) = await gateway.finished(0, attempt=2)
        assert whole[:produced] + rest == whole

    with_stack(check)


def test_a_retry_of_three_choices_keeps_each_ones_own_tail() -> None:
    sampling = replace(SEEDED, max_tokens=40)
    tails = tuple(Tail(c) for c in range(3))

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        wholes = await local_output(gateway, PROMPT, tails=tails, sampling=sampling)
        lengths = (0, 20, 33)
        again = tuple(Tail(c, tuple(wholes[c][: lengths[c]])) for c in range(3))
        gateway.ask(PROMPT, tails=again, sampling=sampling, attempt=2)
        rests = await gateway.finished(0, 1, 2, attempt=2)
        assert [w[:n] + r for w, n, r in zip(wholes, lengths, rests, strict=True)] == wholes

    with_stack(check)


def test_one_token_reserves_nothing_on_the_decode_worker() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT, sampling=replace(GREEDY, max_tokens=1), decode="")
        (output,) = await gateway.finished(0)
        assert len(output) == 1
        assert gateway.ends["r1", 1, 0].finish_reason == "length"
        await stack.idle()
        assert stack.nodes["decode-1"].worker.load.num_steps == 0

    with_stack(check)


def test_an_end_at_the_first_token_leaves_nothing_on_the_decode_worker() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        (whole,) = await local_output(gateway, PROMPT)
        gateway.ask(PROMPT, sampling=replace(GREEDY, stop_token_ids=(whole[0],)))
        (output,) = await gateway.finished(0)
        assert output == whole[:1]
        assert gateway.ends["r1", 1, 0].finish_reason == "stop"
        assert gateway.ends["r1", 1, 0].stop_token == whole[0]
        gateway.wanted.clear()
        await until(lambda: not stack.nodes["decode-1"].worker.held, within_s=1.0)

    with_stack(check)


def drop_every(nth: int) -> Callable[[str, bytes], Iterator[bytes]]:
    """Lose each ``nth`` message of a kind on its way to somebody, and double the one after it.

    Counted together, kinds would fall into step: all repeats end up a second apart, and if there is an even number of
    them, one is the lost one each time, until the attempt's deadline.
    """
    counts: dict[tuple[str, type], int] = {}

    def fault(subject: str, payload: bytes) -> Iterator[bytes]:
        kind = (subject, type(decode(payload)[1]))
        count = counts[kind] = counts.get(kind, len(counts)) + 1  # of some kinds the first one is lost
        if "heartbeat" in subject or count % nth:
            yield payload
        if count % nth == 1:
            yield payload

    return fault


@pytest.mark.parametrize("nth", [2, 3, 5, 7])
def test_lost_and_doubled_messages_change_no_token(nth: int) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        tails = (Tail(0), Tail(1))
        whole = await local_output(gateway, PROMPT, tails=tails, sampling=SEEDED)
        stack.hub.filter = drop_every(nth)
        await gateway.ask_until_accepted(PROMPT, tails=tails, sampling=SEEDED)
        assert await gateway.finished(0, 1) == whole
        stack.hub.filter = None

    with_stack(check)


def test_a_small_payload_limit_cuts_records_and_pieces() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        long = [3 + i % 50 for i in range(700)]
        gateway.ask(long)
        split = await gateway.finished(0)
        assert split == await local_output(gateway, long)

    with_stack(check, payload=1500)


def test_a_cancel_at_any_moment_leaves_nothing() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        for number in range(12):
            name = f"c{number}"
            gateway.ask(PROMPT, request_id=name, sampling=replace(GREEDY, max_tokens=60))
            passed = gateway.postbox.bus.counters.received_messages + number
            await until(lambda passed=passed: gateway.postbox.bus.counters.received_messages >= passed)  # type: ignore[misc]
            gateway.cancel("prefill-1", "decode-1", request_id=name)
            ended = Released(name, 1)
            await until(lambda ended=ended: gateway.answers.count(ended) >= 2)  # type: ignore[misc]
        await stack.idle()

    with_stack(check)


def test_a_request_that_comes_after_its_cancel_starts_nothing() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.cancel("prefill-1", "decode-1")
        gateway.ask(PROMPT)
        await until(lambda: sum(isinstance(a, Refused) for a in gateway.answers) == 2)
        await stack.idle()

    with_stack(check)


def test_a_stop_of_one_choice_lets_the_others_go_on() -> None:
    sampling = replace(SEEDED, max_tokens=60)
    tails = tuple(Tail(c) for c in range(3))

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT, tails=tails, sampling=sampling)
        gateway.stop("decode-1", 1, 0)
        outputs = await gateway.finished(0, 2)
        assert [len(o) for o in outputs] == [60, 60]
        assert len(gateway.output(1)) <= 60

    with_stack(check)


def test_a_question_about_an_unknown_attempt_is_answered() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.wanted.append((gateway.peer("decode-1"), AttemptRef("never", 1)))
        await until(lambda: any(isinstance(a, Failed) and a.code == "unknown" for a in gateway.answers))

    with_stack(check)


def test_unacknowledged_tokens_are_repeated() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.acknowledge = False
        gateway.ask(PROMPT)
        await gateway.finished(0)
        gateway.ends.clear()
        await gateway.finished(0)
        gateway.acknowledge = True
        worker = stack.nodes["decode-1"].worker
        await until(lambda: worker.emitter.idle)

    with_stack(check)


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        gateway.ask(PROMPT)
        await until(lambda: any(isinstance(a, (Refused, Failed)) for a in gateway.answers))
        codes = {a.code for a in gateway.answers if isinstance(a, (Refused, Failed))}
        assert codes & {"never_fits", "no_space"}

    with_stack(check, num_blocks=4)
