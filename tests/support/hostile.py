"""A gateway's real HTTP server on a loopback port, with tight bounds, and a client that can misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.app import create_app
from gateway.http_server import serve_http
from gateway.http_settings import HttpSettings
from tests.support.http_twin import CHAT, HELLO
from tests.support.scripted_dispatcher import ScriptedDispatcher, Step, says, small_model

BOUNDS = HttpSettings(
    header_timeout_s=0.15,
    body_timeout_s=0.15,
    write_timeout_s=0.15,
    max_header_bytes=4096,
    max_body_bytes=100_000,
    max_connections=20,
    api_keys=("secret-key",),
)
CHAT_BODY = json.dumps({"messages": HELLO}).encode()


@dataclass
class Server:
    port: int
    refused: list[str]
    dispatcher: ScriptedDispatcher

    async def open(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send it on a connection of its own and read until the server closes it or one answer is there."""
        client = await self.open()
        try:
            await client.send(request)
            return await client.answer()
        finally:
            client.close()

    async def serves_others(self) -> None:
        status, _ = await self.ask(post(CHAT_BODY))
        assert status == 200


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def closed(self) -> bytes:
        """Wait for the server to close; return what came before."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def served(
    settings: HttpSettings = BOUNDS, script: Iterable[Step] | None = None, send_buffer: int = 0
) -> AsyncIterator[Server]:
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    dispatcher = ScriptedDispatcher(lambda _: says("abc") if script is None else script)
    app = create_app(dispatcher, small_model(), settings)
    server, stop = Server(listener.getsockname()[1], [], dispatcher), asyncio.Event()

    async def drain() -> None:
        """At once."""

    task = asyncio.ensure_future(serve_http(app, listener, stop, drain, settings, server.refused.append))
    try:
        yield server
    finally:
        stop.set()
        await task


def post(body: bytes, *headers: str, key: str = "secret-key", path: str = CHAT) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
