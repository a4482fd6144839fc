"""A hostile client at a real socket: whatever it sends, leaves out or doesn't read, others are served."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from dataclasses import replace

import pytest

from gateway.access_log import MAX_LABEL_CHARS
from gateway.http_messages import MAX_PIPELINED
from tests.support.hostile import BOUNDS, CHAT_BODY, Server, post, served
from tests.support.http_twin import CHAT, HELLO, run, until
from tests.support.scripted_dispatcher import never_ends, says

LOOSE = replace(BOUNDS, header_timeout_s=20.0, body_timeout_s=20.0, max_body_bytes=1_000_000)


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_a_head_that_drips_in_is_given_up() -> None:
    """Slowloris: a header a moment, for ever."""

    async def work() -> None:
        async with served() as server:
            client = await server.open()
            await client.send(b"GET /live HTTP/1.1\r\n")

            async def drip() -> None:
                while True:
                    await client.send(b"x: y\r\n")
                    await asyncio.sleep(0.02)

            dripping = asyncio.ensure_future(drip())
            status, body = await client.answer()
            assert (status, code_of(body)) == (408, "request_timeout")
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            client.close()
            assert server.refused == ["slow_head"]
            await server.serves_others()

    run(work())


def test_connections_that_say_nothing_are_closed() -> None:
    async def work() -> None:
        async with served() as server:
            clients = [await server.open() for _ in range(BOUNDS.max_connections)]
            assert [await client.closed() for client in clients] == [b""] * BOUNDS.max_connections
            await server.serves_others()
            for client in clients:
                client.close()

    run(work())


def test_a_second_head_on_a_connection_may_not_drip_either() -> None:
    async def work() -> None:
        async with served() as server:
            client = await server.open()
            await client.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\nGET /live HT")
            assert (await client.answer())[0] == 200
            await client.send(b"TP/1.1\r\n")
            assert (await client.answer())[0] == 408
            client.close()

    run(work())


def test_more_connections_than_there_may_be_get_a_503_and_those_before_them_are_served() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            clients = [await server.open() for _ in range(LOOSE.max_connections)]
            await clients[0].send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await clients[0].answer())[0] == 200  # all before it are known too
            status, body = await server.ask(b"")
            assert (status, code_of(body)) == (503, "too_many_connections")
            assert server.refused == ["too_many_connections"]
            for client in clients:
                client.close()
            await until_served(server)

    run(work())


async def until_served(server: Server) -> None:
    """The server takes notice of closed connections in its own time."""
    while (await server.ask(post(CHAT_BODY)))[0] == 503:
        await asyncio.sleep(0)


def test_a_body_that_drips_in_is_given_up() -> None:
    async def work() -> None:
        async with served() as server:
            client = await server.open()
            await client.send(post(b'{"me', "content-length: 1000"))
            status, body = await client.answer()
            assert (status, code_of(body)) == (408, "request_timeout")
            await client.closed()
            client.close()
            assert server.refused == ["slow_body"]
            await server.serves_others()

    run(work())


@pytest.mark.parametrize("path", ["/health", "/v1/models", CHAT])
def test_a_body_that_nobody_wants_is_not_read_for_ever(path: str) -> None:
    """Without a key, or on a route that takes none, its sender is answered and then cut off."""

    async def work() -> None:
        async with served() as server:
            client = await server.open()
            await client.send(post(b"", "content-length: 1000000000", key="wrong", path=path))
            assert (await client.answer())[0] in (200, 401, 405)

            async def drip() -> None:
                while True:
                    await client.send(b"x" * 100)
                    await asyncio.sleep(0.02)

            dripping = asyncio.ensure_future(drip())
            await client.closed()
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            client.close()
            assert server.refused == ["slow_body"]

    run(work())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_as_soon_as_that_is_known(chunked: bool) -> None:
    async def work() -> None:
        async with served() as server:
            too_much = BOUNDS.max_body_bytes + 1
            if chunked:
                request = post(f"{too_much:x}\r\n".encode() + b" " * too_much, "transfer-encoding: chunked")
            else:
                request = post(b"", f"content-length: {too_much}")
            status, body = await server.ask(request)
            assert (status, code_of(body)) == (413, "request_too_large")
            assert server.dispatcher.generations == []

    run(work())


GIANTS = (
    b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /?" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /live HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 10_000 + b"\r\n\r\n",
    b"GET /live HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
    b"GET /live HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 10_000,
)


def test_a_giant_head_is_refused() -> None:
    """A path, a query, a value, too many headers, one without end."""

    async def work() -> None:
        async with served(LOOSE) as server:
            for head in GIANTS:
                status, body = await server.ask(head)
                assert (status, code_of(body)) == (431, "headers_too_large"), head[:40]
            await server.serves_others()

    run(work())


NO_REQUESTS = (
    (post(b"0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n", "content-length: 5", "transfer-encoding: chunked"), 400),
    (post(b"0\r\n\r\n", "transfer-encoding: chunked", "content-length: 5"), 400),
    (post(b"abcde", "content-length: 5", "content-length: 6"), 400),
    (post(b"abcde", "content-length: 5, 6"), 400),
    (post(b"abcde", "content-length: +5"), 400),
    (post(b"abcde", "content-length: 0x5"), 400),
    (post(b"abcde", "content-length: -1"), 400),
    (post(b"0\r\n\r\n", "transfer-encoding: identity, chunked"), 501),
    (post(b"0\r\n\r\n", "transfer-encoding: xchunked"), 501),
    (post(b"0\r\n\r\n", "transfer-encoding: chunked", "transfer-encoding: identity"), 400),  # RFC 9112, 6.3: no end
    (post(b"0\r\n\r\n", "transfer-encoding: chunked", "transfer-encoding: chunked"), 400),
    (b"GET /live HTTP/2.0\r\nhost: x\r\n\r\n", 400),
    (b"GET /live HTTP/1.1\nhost: x\n\n", 400),
    (b"POST /v1/models HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (post(b"0\r\n\r\n", "transfer-encoding : chunked"), 400),
    (post(b"zz\r\n", "transfer-encoding: chunked"), 400),
    (b"GET /live HTTP/1.1\r\n folded\r\nhost: x\r\n\r\n", 400),
    (b"GET /live HTTP/1.1\r\n\r\n", 400),
    (b"GET /live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    (b"GET /live HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n", 400),
)


def test_a_request_that_could_be_two_or_none_is_refused_and_the_connection_ends() -> None:
    """Smuggling: one answer, and nothing of what follows is taken for a request."""

    async def work() -> None:
        async with served(LOOSE) as server:
            for request, status in NO_REQUESTS:
                client = await server.open()
                await client.send(request)
                answered, body = await client.answer()
                assert (answered, code_of(body)) == (status, "invalid_http"), request
                assert b"secret-key" not in body
                assert await client.closed() == b"", request
                client.close()
            assert server.dispatcher.generations == []
            await server.serves_others()

    run(work())


def test_rubbish_in_the_middle_of_a_body_ends_the_connection_and_nothing_else() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            await client.send(post(b"3\r\n{  \r\n", "transfer-encoding: chunked"))
            await client.send(b"rubbish\r\n")
            assert (await client.answer())[0] == 400
            await client.closed()
            client.close()
            refused = await server.open()
            await refused.send(post(b"3\r\n{  \r\n", "transfer-encoding: chunked", key="wrong"))
            assert (await refused.answer())[0] == 401
            await refused.send(b"rubbish\r\n")
            await refused.closed()
            refused.close()
            await server.serves_others()

    run(work())


def test_compressed_bodies_are_not_unpacked() -> None:
    async def work() -> None:
        async with served() as server:
            bomb = gzip.compress(b" " * 50_000_000)
            assert len(bomb) < BOUNDS.max_body_bytes
            status, body = await server.ask(post(bomb, "content-encoding: gzip"))
            assert (status, code_of(body)) == (400, "invalid_json")

    run(work())


def test_json_that_is_deep_or_wide_is_refused_without_delay() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            deep = b"[" * 100_000 + b"]" * 100_000
            call = {"function": {"name": "f"}}
            wide: list[tuple[dict[str, object], str]] = [
                ({"messages": [{}] * 5000}, "messages"),
                ({"messages": [{"role": "user", "content": [{}] * 9000}]}, "messages"),
                ({"messages": [{"role": "assistant", "tool_calls": [call] * 2500}] * 4}, "messages"),
                ({"messages": HELLO, "chat_template_kwargs": {str(i): 0 for i in range(65)}}, "chat_template_kwargs"),
            ]
            for body, code in ((deep, "invalid_json"), (b'{"messages":' + deep + b"}", "invalid_json")):
                status, answer = await server.ask(post(body))
                assert (status, code_of(answer)) == (400, code)
            for fields, param in wide:
                status, answer = await server.ask(post(json.dumps(fields).encode()))
                assert (status, json.loads(answer)["error"]["param"]) == (400, param)

    run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_its_client_does_not_read_is_cut_off(stream: bool) -> None:
    """The connection ends too, not only the request: its bytes and its descriptor come free."""

    async def work() -> None:
        script = never_ends("abc xyz") if stream else says("abc xyz " * 50, num_top=20)
        async with served(BOUNDS, script, send_buffer=4096) as server:
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(line, ("127.0.0.1", server.port))
            long = {"stream": True} if stream else {"logprobs": True, "top_logprobs": 20}
            await loop.sock_sendall(line, post(json.dumps({"messages": HELLO, **long}).encode()))
            await until(lambda: "slow_reader" in server.refused)
            line.close()

    run(work())


def test_pipelined_requests_are_answered_in_order_and_end_with_the_first_that_is_wrong() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            live = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
            await client.send(live * 50 + b"rubbish\r\n\r\n" + live)
            assert [(await client.answer())[0] for _ in range(51)] == [200] * 50 + [400]
            assert await client.closed() == b""
            client.close()

    run(work())


def test_more_pipelined_requests_than_may_wait_end_the_connection() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            await client.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
            found = [(await client.answer())[0] for _ in range(MAX_PIPELINED + 2)]
            assert found == [200] * (MAX_PIPELINED + 1) + [400]
            assert await client.closed() == b""
            client.close()

    run(work())


def test_a_wrong_body_is_told_behind_the_answer_to_what_came_before() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            await client.send(post(CHAT_BODY) + post(b"zz\r\n", "transfer-encoding: chunked") + post(CHAT_BODY))
            assert [(await client.answer())[0] for _ in range(2)] == [200, 400]
            assert await client.closed() == b""
            client.close()
            assert len(server.dispatcher.generations) == 1

    run(work())


def test_a_client_that_leaves_ends_the_first_of_its_pipelined_requests_and_the_others_never_begin() -> None:
    async def work() -> None:
        async with served(LOOSE, never_ends("abc xyz")) as server:
            client = await server.open()
            await client.send(post(CHAT_BODY) * 3)
            await until(lambda: bool(server.dispatcher.streams))
            client.close()
            await server.dispatcher.streams[0].cancel_seen.wait()
            assert len(server.dispatcher.generations) == 1

    run(work())


def test_what_stands_behind_a_body_is_no_header_and_has_its_bound() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            chunk = f"{len(CHAT_BODY):x}\r\n".encode() + CHAT_BODY + b"\r\n0\r\n"
            trailer = b"authorization: Bearer secret-key\r\n\r\n"
            assert (await server.ask(post(chunk + trailer, "transfer-encoding: chunked", key="wrong")))[0] == 401
            assert (await server.ask(post(chunk + b"x: y\r\n\r\n", "transfer-encoding: chunked")))[0] == 200
            client = await server.open()
            await client.send(post(b"3\r\n{  \r\n0\r\nx: ", "transfer-encoding: chunked"))
            sending = asyncio.ensure_future(client.send(b"y" * 1_000_000))
            status, body = await client.answer()
            assert (status, code_of(body)) == (431, "headers_too_large")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            client.close()

    run(work())


@pytest.mark.parametrize("cut", [0, 3, len(CHAT_BODY)])
def test_a_body_is_read_whose_sender_wishes_for_another_protocol(cut: int) -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            wish = ("connection: upgrade, http2-settings", "upgrade: h2c", f"content-length: {len(CHAT_BODY)}")
            await client.send(post(CHAT_BODY[:cut], *wish))
            await client.send(CHAT_BODY[cut:] + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
            client.close()
            size = f"{len(CHAT_BODY):x}\r\n".encode()
            chunked = post(size + CHAT_BODY + b"\r\n0\r\n\r\n", "transfer-encoding: chunked", *wish[:2])
            assert (await server.ask(chunked))[0] == 200

    run(work())


def test_a_wrong_body_that_waits_to_be_asked_for_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            client = await server.open()
            await client.send(post(b"zz\r\n", "transfer-encoding: chunked", "expect: 100-continue"))
            assert (await client.answer())[0] == 400
            await client.closed()
            client.close()
            await server.serves_others()

    run(work())
    assert "Exception in ASGI application" not in caplog.text
    assert "request_failed" not in caplog.text


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            body = json.dumps({"messages": HELLO, "stream": True}).encode()
            client = await server.open()
            await client.send(post(body, f"content-length: {len(body)}").replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, events = (await client.closed()).partition(b"\r\n\r\n")
            client.close()
            assert head.startswith(b"HTTP/1.1 200")
            assert b"transfer-encoding" not in head
            assert events.startswith(b"data: {")
            assert events.endswith(b"data: [DONE]\n\n")
            whole = await server.ask(b"GET /live HTTP/1.0\r\n\r\n")
            assert whole == (200, b'{"status":"live"}')

    run(work())


def test_an_upgrade_is_ignored_and_passes_no_key_by() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            ask = "GET {} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {}\r\nsec-websocket-key: x\r\n\r\n"
            for protocol in ("websocket", "h2c"):
                assert (await server.ask(ask.format("/v1/models", protocol).encode()))[0] == 401
                assert (await server.ask(ask.format("/live", protocol).encode()))[0] == 200
            client = await server.open()
            await client.send(ask.format("/live", "h2c").encode() + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
            client.close()

    run(work())


def test_a_server_that_ends_waits_for_no_hostile_client() -> None:
    async def work() -> None:
        async with served(LOOSE) as server:
            clients = [await server.open() for _ in range(4)]
            await clients[1].send(b"GET /li")
            await clients[2].send(b"rubbish\r\n\r\n")
            await clients[3].send(b"GET /live HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
            await clients[3].answer()
        for client in clients:
            client.close()

    run(work())


def test_a_label_that_is_cut_at_a_space_is_still_a_header() -> None:
    async def work() -> None:
        async with served() as server:
            label = "a" * (MAX_LABEL_CHARS - 1) + " b"
            status, _ = await server.ask(f"GET /live HTTP/1.1\r\nhost: x\r\nx-request-id: {label}\r\n\r\n".encode())
            assert status == 200

    run(work())
