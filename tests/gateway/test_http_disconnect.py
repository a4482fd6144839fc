"""A client that leaves, or reads too slowly, ends its request on a real server."""

import asyncio

import pytest

from gateway.access_log import RequestRecord
from gateway.errors import from_code
from gateway.generation import Generation
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from gateway.requests import Job
from gateway.run import MAX_READY, Run
from gateway.transcript import TextSettings
from protocol.errors import Code
from protocol.sampling import Sampling
from runtime.metrics import Metrics
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, post_raw, run, serving, until
from tests.support.scripted_dispatcher import ScriptedDispatcher, ScriptedStream, never_ends, says, small_tokenizer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_in_the_middle_cancels(stream: bool) -> None:
    async def scenario() -> None:
        never = asyncio.Event()
        api = Api([*says("abc xyz")[:2], never])
        async with serving(api.app) as port:
            _, writer = await post_raw(port, CHAT, {"messages": HELLO, "stream": stream})
            await until(lambda: bool(api.dispatcher.streams and api.dispatcher.streams[0].num_given))
            writer.close()
            await api.dispatcher.streams[0].cancel_seen.wait()
        assert api.dispatcher.streams[0].cancelled == ["client disconnected"]
        assert f'requests_total{{route="{CHAT}",status="499"}} 1.0' in api.get_metrics()

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_cancels(stream: bool) -> None:
    async def scenario() -> None:
        api = Api([asyncio.Event()])
        async with serving(api.app) as port:
            body = {"prompt": ["abc", "xyz"], "stream": stream}
            _, writer = await post_raw(port, COMPLETIONS, body)
            await until(lambda: len(api.dispatcher.streams) == 2)
            writer.close()
            for each in api.dispatcher.streams:
                await each.cancel_seen.wait()

    run(scenario())


def test_a_client_that_leaves_while_its_request_waits_ends_the_wait() -> None:
    async def scenario() -> None:
        api = Api()
        waiting, cancelled = asyncio.Event(), asyncio.Event()

        async def submit(generation: object) -> None:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        api.dispatcher.submit = submit  # type: ignore[assignment, method-assign]
        async with serving(api.app) as port:
            _, writer = await post_raw(port, CHAT, {"messages": HELLO})
            await waiting.wait()
            writer.close()
            await cancelled.wait()

    run(scenario())


def test_a_client_that_stays_is_never_cancelled() -> None:
    async def scenario() -> None:
        api = Api(says("abc xyz"))
        async with serving(api.app) as port:
            reader, writer = await post_raw(port, CHAT, {"messages": HELLO, "stream": True})
            await reader.readuntil(b"[DONE]")
            writer.close()
        assert api.dispatcher.streams[0].cancelled == []

    run(scenario())


def test_a_client_that_takes_nothing_is_dropped() -> None:
    async def scenario() -> None:
        settings = HttpSettings(write_timeout_s=0.1)
        text = "The capital of France is Paris. " * 100
        api = Api(lambda generation: never_ends(text), settings=settings)
        async with serving(api.app, send_buffer=4096) as port:
            _, writer = await post_raw(port, CHAT, {"messages": HELLO, "stream": True})
            await until(lambda: bool(api.dispatcher.streams))
            await api.dispatcher.streams[0].cancel_seen.wait()
            writer.close()
        assert api.dispatcher.streams[0].cancelled == ["client reads too slowly"]

    run(scenario())


def run_of(*prompts: tuple[int, ...], stop: tuple[str, ...] = ()) -> Run:
    job = Job(prompts, 1, Sampling(), TextSettings(stop=stop), "", "", False, False)
    return Run(job, small_tokenizer(), RequestRecord(), HttpMetrics(Metrics()))


def test_a_slow_reader_holds_a_bounded_number_of_pieces() -> None:
    async def scenario() -> None:
        dispatcher = ScriptedDispatcher(lambda generation: never_ends("a"))
        slow = run_of((1, 2))
        await slow.start(dispatcher)
        [stream] = dispatcher.streams
        await until(lambda: stream.num_given > MAX_READY)
        for _ in range(100):
            await asyncio.sleep(0)
        assert stream.num_given == MAX_READY + 1
        assert len(await slow.batch()) == MAX_READY
        await until(lambda: stream.num_given > MAX_READY + 1)
        slow.close("read enough")
        slow.close("read enough")
        assert stream.cancelled[0] == "read enough"

    run(scenario())


def test_a_prompt_is_stopped_while_another_of_its_request_still_waits_for_a_worker() -> None:
    class FullFor(ScriptedDispatcher):
        async def submit(self, generation: Generation) -> ScriptedStream:
            if generation.prompt_ids == (3,):
                await room.wait()
            return await super().submit(generation)

    async def scenario() -> None:
        dispatcher = FullFor(says("hello world hello world"))
        both = run_of((1,), (3,), stop=("o w",))
        starting = asyncio.ensure_future(both.start(dispatcher))
        await until(lambda: bool(dispatcher.streams and dispatcher.streams[0].stopped))
        assert not starting.done()
        room.set()
        await starting
        both.close("read enough")

    room = asyncio.Event()
    run(scenario())


def test_what_fails_after_its_last_choice_has_ended_is_a_whole_answer() -> None:
    async def scenario() -> None:
        dispatcher = ScriptedDispatcher([asyncio.Event()])
        whole = run_of((1,), stop=("o w",))
        starting = asyncio.ensure_future(whole.start(dispatcher))
        await until(lambda: bool(dispatcher.streams))
        mailbox = dispatcher.streams[0].mailbox
        mailbox.put(says("hello world", per_update=100, finish_reason="")[0])
        mailbox.close(from_code(Code.DEADLINE, "too late"))
        await starting
        assert [piece.finish_reason for piece in await whole.batch()] == ["stop"]
        assert await whole.batch() == []
        assert whole.over
        whole.close("read")

    run(scenario())


def test_a_quiet_stream_is_kept_alive() -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()
        updates = says("abc xyz")
        api = Api([*updates[:1], go_on, *updates[1:]], settings=HttpSettings(keepalive_s=0.02))
        async with serving(api.app) as port:
            reader, writer = await post_raw(port, CHAT, {"messages": HELLO, "stream": True})
            await reader.readuntil(b": keep-alive\n\n")
            go_on.set()
            await reader.readuntil(b"[DONE]")
            writer.close()

    run(scenario())
