"""A line to Redis: its address is read strictly, and an encrypted one proves the server's name."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtime import roster_store
from runtime.logs import get_logger
from runtime.redis_address import RedisAddress
from runtime.roster_store import RosterStore
from runtime.tls import TlsFiles
from tests.support.certificates import Authority


def test_an_address_has_all_its_parts() -> None:
    address = RedisAddress.parse("redis://decode:a%2Fb@[::1]:6400/3")
    assert address == RedisAddress("::1", 6400, 3, "decode", "a/b", encrypted=False)
    assert RedisAddress.parse("redis://:secret@h") == RedisAddress("h", 6379, 0, None, "secret", encrypted=False)
    assert RedisAddress.parse("rediss://h").encrypted
    assert RedisAddress.parse("redis://h", TlsFiles(ca="/ca.pem")).encrypted


@pytest.mark.parametrize(
    "url",
    [
        "http://hush@h",
        "hush",
        "redis://",
        "redis://user:hush/word@h",
        "redis://h/hush",
        "redis://h/-1",
        "redis://user:hush@h:port",
        "rediss://user:hush@h?ssl_cert_reqs=none",
        "unix:///hush",
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="must look like") as caught:
        RedisAddress.parse(url)
    assert "hush" not in str(caught.value)


@contextlib.asynccontextmanager
async def tls_in_front_of(url: str, files: TlsFiles, *, wants_certificate: bool = False) -> AsyncIterator[str]:
    """The address of a relay that ends TLS: the server in our wheel has none itself."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    behind = RedisAddress.parse(url)
    lines: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        lines.add(task)
        there_reader, there_writer = await asyncio.open_connection(behind.host, behind.port)
        try:
            async with asyncio.TaskGroup() as both:
                ways = [(reader, there_writer), (there_reader, writer)]
                ended = [both.create_task(pass_on(*way)) for way in ways]
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                there_writer.close()
                writer.transport.abort()
        finally:
            there_writer.close()
            writer.transport.abort()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"rediss://{behind.user}:{behind.password}@127.0.0.1:{port}/0"
    finally:
        server.close()
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


async def kept(url: str, tls: TlsFiles) -> bool:
    """Whether what was put is found again."""
    store = RosterStore(url, tls)
    await store.put("decode-tls", b"here", 60.0)
    found = b"here" in await store.all()
    await store.remove("decode-tls")
    await store.close()
    return found


@pytest.mark.nats
@pytest.mark.parametrize("scheme", ["rediss://", "redis://"])
def test_a_given_ca_encrypts_whatever_the_address_begins_with(
    redis_url: str, ours: Authority, run: Any, scheme: str
) -> None:
    async def main() -> None:
        async with tls_in_front_of(redis_url, ours.issue("server", "127.0.0.1")) as url:
            assert await kept(url.replace("rediss://", scheme), TlsFiles(ca=str(ours.ca)))

    run(main())


@pytest.mark.nats
def test_both_sides_can_be_asked_for_a_certificate(redis_url: str, ours: Authority, run: Any) -> None:
    async def main() -> None:
        files = ours.issue("server", "127.0.0.1")
        async with tls_in_front_of(redis_url, files, wants_certificate=True) as url:
            assert await kept(url, ours.issue("worker"))
            assert not await kept(url, TlsFiles(ca=str(ours.ca)))

    run(main())


@pytest.mark.nats
def test_another_ca_no_ca_and_another_host_are_refused_and_it_is_said_why(
    redis_url: str,
    ours: Authority,
    tmp_path: Path,
    run: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(url: str, tls: TlsFiles) -> str:
        monkeypatch.setattr(roster_store, "log", get_logger("roster_store"))
        caplog.clear()
        assert not await kept(url, tls)
        (record,) = caplog.records
        return str(vars(record)["fields"]["error"])

    async def main() -> None:
        theirs = TlsFiles(ca=str(Authority(tmp_path, "theirs").ca))
        async with tls_in_front_of(redis_url, ours.issue("server", "127.0.0.1")) as url:
            for tls in (theirs, TlsFiles()):
                assert "certificate verify failed" in await refused(url, tls)
            assert "can't be used" in await refused(url, TlsFiles(ca=str(tmp_path)))
        async with tls_in_front_of(redis_url, ours.issue("elsewhere.example")) as url:
            assert "127.0.0.1" in await refused(url, TlsFiles(ca=str(ours.ca)))

    run(main())


def test_a_server_without_tls_gets_no_login(ours: Authority, run: Any) -> None:
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(1 << 16))
        writer.write(b"+OK\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert not await kept(f"redis://decode:hush@127.0.0.1:{port}/0", TlsFiles(ca=str(ours.ca)))
        server.close()
        await server.wait_closed()

    run(main())
    assert heard.startswith(b"\x16\x03")  # a TLS handshake
    assert b"hush" not in heard
