"""A client that leaves, or reads too slowly, ends its request on a real server."""

import asyncio

import pytest

from gateway.http_settings import HttpSettings
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, post_raw, run, serving, until
from tests.support.scripted_dispatcher import never_ends, says


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
