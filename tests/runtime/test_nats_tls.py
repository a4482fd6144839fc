"""An encrypted bus: the server proves its name, and nothing is ever sent in the clear."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from runtime.bus_address import BusAddress
from runtime.nats_bus import connect_bus
from runtime.tls import NO_TLS_FILES, TlsFiles
from tests.support.certificates import Authority

pytestmark = pytest.mark.nats


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def server_files(ours: Authority) -> TlsFiles:
    return ours.issue("server", "127.0.0.1", "localhost")


def start(server: Any, files: TlsFiles, *options: str) -> None:
    server.start("--tls", "--tlscert", files.cert, "--tlskey", files.key, *options)


def encrypted(server: Any) -> str:
    return str(server.url).replace("nats://", "tls://")


async def reason(url: str, tls: TlsFiles, word: str) -> str:
    """What the bus says it waits for, once ``word`` is in it; it is given up then."""
    said: asyncio.Queue[str] = asyncio.Queue()
    waiting = asyncio.create_task(connect_bus(url, name="t", tls=tls, on_wait=said.put_nowait))
    why = ""
    while word not in why:
        why = await said.get()
    waiting.cancel()
    await asyncio.wait([waiting])
    return why


async def round_trip(bus: Any) -> bytes:
    got: asyncio.Queue[bytes] = asyncio.Queue()
    bus.subscribe("x", lambda _, payload: got.put_nowait(payload))
    await bus.ready()
    bus.publish("x", b"z" * 300_000)
    return await got.get()


@pytest.mark.parametrize("scheme", ["tls://", "nats://"])
def test_a_given_ca_encrypts_whatever_the_address_begins_with(
    nats_server: Any, ours: Authority, server_files: TlsFiles, run: Any, scheme: str
) -> None:
    start(nats_server, server_files)

    async def main() -> None:
        url = nats_server.url.replace("nats://", scheme)
        bus = await connect_bus(url, name="t", tls=TlsFiles(ca=str(ours.ca)), on_wait=pytest.fail)
        assert len(await round_trip(bus)) == 300_000
        await bus.close()

    run(main())


def test_an_encrypted_bus_comes_back_after_its_server(
    nats_server: Any, ours: Authority, server_files: TlsFiles, run: Any
) -> None:
    start(nats_server, server_files)

    async def main() -> None:
        tls = TlsFiles(ca=str(ours.ca))
        bus = await connect_bus(encrypted(nats_server), name="t", tls=tls, on_wait=pytest.fail)
        changes: asyncio.Queue[bool] = asyncio.Queue()
        bus.on_state(changes.put_nowait)
        nats_server.kill()
        while await changes.get():
            pass
        start(nats_server, server_files)
        while not await changes.get():
            pass
        assert len(await round_trip(bus)) == 300_000
        await bus.close()

    run(main())


def test_a_server_of_another_ca_is_refused_and_it_is_said_why(
    nats_server: Any, server_files: TlsFiles, tmp_path: Path, run: Any
) -> None:
    start(nats_server, server_files)
    theirs = TlsFiles(ca=str(Authority(tmp_path, "theirs").ca))
    why = run(reason(encrypted(nats_server), theirs, "certificate"))
    assert why.startswith(f"waiting for the bus at {encrypted(nats_server)}: its certificate is refused: ")
    assert "issuer" in why


def test_a_ca_that_only_we_know_is_refused_by_who_was_not_told(
    nats_server: Any, server_files: TlsFiles, run: Any
) -> None:
    start(nats_server, server_files)
    assert "is refused" in run(reason(encrypted(nats_server), NO_TLS_FILES, "certificate"))
    assert "is refused" in run(reason(nats_server.url, NO_TLS_FILES, "certificate"))


def test_a_certificate_for_another_host_is_refused(nats_server: Any, ours: Authority, run: Any) -> None:
    start(nats_server, ours.issue("elsewhere.example"))
    why = run(reason(encrypted(nats_server), TlsFiles(ca=str(ours.ca)), "certificate"))
    assert "127.0.0.1" in why
    assert "mismatch" in why


@pytest.mark.parametrize(("scheme", "ca"), [("tls://", True), ("tls://", False), ("nats://", True)])
def test_a_server_that_offers_no_tls_gets_no_login(ours: Authority, run: Any, scheme: str, ca: bool) -> None:
    """Also what somebody in between would do: take TLS out of the server's first line."""
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "s", "version": "2.10.0", "max_payload": 1 << 20, "auth_required": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        heard.extend(await reader.read(1 << 16))
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        url = f"{scheme}worker:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        why = await reason(url, TlsFiles(ca=str(ours.ca) if ca else ""), "TLS")
        server.close()
        await server.wait_closed()
        return why

    assert "offers no TLS" in run(main())
    assert not heard


def test_both_sides_can_be_asked_for_a_certificate(
    nats_server: Any, ours: Authority, server_files: TlsFiles, tmp_path: Path, run: Any
) -> None:
    start(nats_server, server_files, "--tlsverify", "--tlscacert", str(ours.ca))
    mine = ours.issue("worker")
    stranger = Authority(tmp_path, "theirs").issue("stranger")

    async def main() -> None:
        bus = await connect_bus(encrypted(nats_server), name="t", tls=mine, on_wait=pytest.fail)
        assert len(await round_trip(bus)) == 300_000
        await bus.close()
        for tls in (TlsFiles(ca=str(ours.ca)), TlsFiles(str(ours.ca), stranger.cert, stranger.key)):
            assert "TLS failed" in await reason(encrypted(nats_server), tls, "TLS")

    run(main())


def test_files_that_cant_be_used_are_named(ours: Authority, tmp_path: Path, free_port: int, run: Any) -> None:
    mine = ours.issue("mine")
    (tmp_path / "empty.pem").write_text("")
    bad = str(tmp_path / "empty.pem")
    url = f"tls://127.0.0.1:{free_port}"
    for tls in (TlsFiles(ca=bad), TlsFiles(ca=mine.ca, cert=bad), TlsFiles(key=bad), TlsFiles(cert=mine.cert, key=bad)):
        why = run(reason(url, tls, " in /"))
        assert any(path in why for path in (bad, mine.cert))
        assert "\n" not in why


def test_one_server_with_tls_among_several_means_tls_for_all() -> None:
    assert str(BusAddress.parse("nats://a,tls://b:1")) == "tls://a:4222,tls://b:1"
    assert BusAddress.parse("nats://a", TlsFiles(ca="/ca.pem")).encrypted
    assert not BusAddress.parse("nats://a").encrypted
