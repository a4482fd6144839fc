"""Subjects carry the role of their process, and nobody speaks for another role."""

from __future__ import annotations

import asyncio

import pytest

from protocol import subjects
from protocol.codec import encode
from protocol.messages import Envelope, GatewayStatus, Peer
from runtime.identity import new_peer, process_id
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.postbox import Postbox


@pytest.mark.parametrize(
    ("process", "inbox", "heartbeat"),
    [
        ("decode-7", "kvferry.inbox.decode.decode-7.*", "kvferry.heartbeat.decode"),
        ("gateway-a", "kvferry.inbox.gateway.gateway-a.*", "kvferry.heartbeat.gateway"),
        ("cli-12", "kvferry.inbox.other.cli-12.*", "kvferry.heartbeat.other"),
        ("decoder", "kvferry.inbox.other.decoder.*", "kvferry.heartbeat.other"),
    ],
)
def test_a_subject_names_the_role(process: str, inbox: str, heartbeat: str) -> None:
    assert subjects.inbox(process) == inbox
    assert subjects.heartbeat(process) == heartbeat


def test_an_id_gets_its_role_in_front_where_it_is_missing() -> None:
    assert process_id("decode", "blue") == "decode-blue"
    assert process_id("decode", "decode-blue") == "decode-blue"
    assert process_id("decode", "prefill-blue") == "decode-prefill-blue"


def test_a_default_id_can_be_a_subject_and_is_no_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for host in ("node-1.example.org", "node-2.example.org", "x" * 100):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        made.append(process_id("prefill", ""))
    assert len(set(made)) == 3
    for each in made:
        subjects.check_process_id(each)


def test_what_comes_on_another_roles_subject_is_refused() -> None:
    async def check() -> None:
        hub = MemoryHub()
        mine, other = MemoryBus(hub), MemoryBus(hub)
        box = Postbox(mine, new_peer("decode-1"))
        heard: list[Peer] = []
        box.on(GatewayStatus, lambda sender, message: heard.append(sender))
        await box.open()
        status = GatewayStatus("http://127.0.0.1:8000", 0)
        forged = (subjects.heartbeat("prefill-1"), subjects.inbox("decode-1", "prefill"))
        for subject in (*forged, subjects.heartbeat("gateway-1"), subjects.inbox("decode-1", "gateway")):
            other.publish(subject, encode(Envelope(Peer("gateway-1", "1"), ""), status))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert heard == 2 * [Peer("gateway-1", "1")]
        assert box.num_refused == len(forged)

    asyncio.run(check())
