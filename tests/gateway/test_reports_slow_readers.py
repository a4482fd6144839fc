"""A public bug report, replayed on a real server: readers that take next to nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from gateway.http_server import serve_http
from gateway.http_settings import HttpSettings
from protocol.messages import Cancel, Reserve
from tests.support.front_rig import Front, front
from tests.support.hostile import post
from tests.support.http_twin import HELLO

SMALL_BUFFER = 4096
"""Of the sockets on both sides, so that what isn't read waits at the server and not in the kernel."""

WITHIN_S = 120.0
WRITE_TIMEOUT_S = 10.0
MAX_BYTES_EACH = 1 << 20
"""Of memory for a slow reader: what the server may write ahead, and its tokens so far, kept for a move."""


@asynccontextmanager
async def listening(f: Front, settings: HttpSettings, refused: list[str]) -> AsyncIterator[int]:
    """The gateway's own server on a free port; ``refused`` gets why it ended connections."""
    listener, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)

    async def drain() -> None:
        """At once."""

    task = asyncio.ensure_future(serve_http(f.app, listener, stop, drain, settings, refused.append))
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        await task


async def begun(port: int, max_tokens: int) -> socket.socket:
    """A connection on which a stream was asked for."""
    line, loop = socket.socket(), asyncio.get_running_loop()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    line.setblocking(False)
    await loop.sock_connect(line, ("127.0.0.1", port))
    body = {"messages": HELLO, "max_tokens": max_tokens, "stream": True}
    await loop.sock_sendall(line, post(json.dumps(body).encode(), "connection: close"))
    return line


async def read_slowly(port: int, max_tokens: int) -> None:
    """A byte a second, without end."""
    with await begun(port, max_tokens) as line:
        while await asyncio.get_running_loop().sock_recv(line, 1):
            await asyncio.sleep(1.0)


async def seconds_of(port: int, max_tokens: int) -> float:
    """How long a stream takes whose reader takes all at once."""
    loop = asyncio.get_running_loop()
    began, said = loop.time(), b""
    with await begun(port, max_tokens) as line:
        while part := await loop.sock_recv(line, 1 << 16):
            said += part
    assert said.count(b"data: ") == 1 + max_tokens + 1 + 1, "role, tokens, finish reason, [DONE]"
    return loop.time() - began


@pytest.mark.long
@pytest.mark.quiet
def test_fifty_slow_readers_cost_bounded_memory_slow_nobody_down_and_are_ended() -> None:
    """Replays starlette #1012: 50 streams of 4,000 tokens read at a byte a second, 5 normal ones beside them."""
    settings, refused = HttpSettings(write_timeout_s=WRITE_TIMEOUT_S), list[str]()
    process = psutil.Process()

    async def work() -> None:
        async with front(settings=settings) as f, listening(f, settings, refused) as port:
            _, d = await f.prefill(max_num_seqs=64), await f.decode(max_num_seqs=64)
            d.habits.token_s = 0.05
            alone = max(await asyncio.gather(*(seconds_of(port, 100) for _ in range(5))))
            before = process.memory_info().rss
            slow = [asyncio.ensure_future(read_slowly(port, 4000)) for _ in range(50)]
            await f.rig.until(lambda: len(d.of(Reserve)) == 55)
            beside = max(await asyncio.gather(*(seconds_of(port, 100) for _ in range(5))))
            assert beside < 1.5 * alone, "they keep their pace"
            await f.rig.until(lambda: f.outcomes.count("cancelled") == 50)
            assert process.memory_info().rss - before < 50 * MAX_BYTES_EACH
            assert f.outcomes[:10] == ["finished"] * 10, f.rig.counts.outcomes[:10]
            assert sorted(f.outcomes) == ["cancelled"] * 50 + ["finished"] * 10
            await f.nothing_left()
            assert len({m.request_id for m in d.heard if isinstance(m, Cancel)}) == 50
            assert len(d.held) == 10, "a scripted worker forgets only what was canceled"
            await f.rig.until(lambda: refused.count("slow_reader") == 50)  # connections are gone too
            for each in slow:
                each.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), WITHIN_S))
