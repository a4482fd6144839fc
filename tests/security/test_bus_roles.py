"""Whoever has taken over one role's process can use that role's subjects on the bus, and no others."""

from urllib.parse import urlsplit

import pytest

from kvferry.broker_access import OPERATOR, ROLES
from kvferry.brokers import Broker
from protocol import subjects
from tests.support.bus_line import Line

pytestmark = pytest.mark.nats

IDS = {"gateway": "gateway-1", "prefill": "prefill-1", "decode": "decode-1", OPERATOR: "cli-1"}
EVERYTHING = (">", "*", "kvferry.>", "kvferry.*.*", "kvferry.inbox.*.*.*", "kvferry.inbox.>")
INSIDE = ("$SYS.>", "$JS.API.>", "$JS.API.INFO", "_INBOX.>", "$SYS.REQ.SERVER.PING", "test")


def refused(said: str) -> bool:
    return "Permissions Violation" in said


def inbox(role: str, sender_role: str = "*") -> str:
    return subjects.inbox(IDS[role], subjects.role_of(IDS[sender_role]) if sender_role in IDS else "*")


@pytest.mark.parametrize("role", ROLES)
def test_each_role_can_do_its_work(bus: Broker, role: str) -> None:
    with Line(bus.urls[role]) as line:
        line.subscribe(inbox(role))
        line.subscribe(subjects.HEARTBEATS)
        if role in subjects.ROLES:
            line.publish(subjects.heartbeat(IDS[role]))
        if role == "decode":
            line.subscribe(subjects.contents(IDS[role]))
        if role == "prefill":
            line.publish(subjects.contents("decode-1"))
        said = line.answer()
        assert not refused(said)
        assert "-ERR" not in said


@pytest.mark.parametrize("role", ROLES)
def test_nobody_hears_what_is_meant_for_another_role(bus: Broker, role: str) -> None:
    others = [inbox(other) for other in ROLES if other != role]
    contents = [] if role == "decode" else [subjects.contents("decode-1"), "kvferry.contents.*", "kvferry.contents.>"]
    with Line(bus.urls[role]) as line:
        for subject in (*others, *contents, *EVERYTHING, *INSIDE):
            line.subscribe(subject)
            assert refused(line.answer()), subject


@pytest.mark.parametrize("role", ROLES)
def test_nobody_speaks_as_another_role_or_to_who_has_no_business_with_it(bus: Broker, role: str) -> None:
    beats = [subjects.heartbeat(IDS[other]) for other in ROLES if other != role or role == OPERATOR]
    # A worker never writes to one of its own kind, nor a gateway to another; operators are heard by gateways alone.
    strangers = [inbox(role, role)]
    strangers += [inbox(other, role) for other in ("prefill", "decode", OPERATOR) if role == OPERATOR]
    strangers += [inbox(OPERATOR, role)] if role in ("prefill", "decode") else []
    # Nor may it write to whom it may write to in the name of another role.
    strangers += [inbox(to, other) for to in ROLES for other in ROLES if other != role]
    contents = [] if role == "prefill" else [subjects.contents("decode-1")]
    with Line(bus.urls[role]) as line:
        for subject in (
            *beats,
            *strangers,
            *contents,
            "kvferry.heartbeat",
            "$JS.API.STREAM.CREATE.x",
            "test",
            "_INBOX.x",
        ):
            line.publish(subject)
            assert refused(line.answer()), subject


def test_what_is_refused_reaches_nobody(bus: Broker) -> None:
    with Line(bus.urls["decode"]) as decode, Line(bus.urls["gateway"]) as gateway:
        decode.subscribe(subjects.contents("decode-1"))
        decode.subscribe(inbox("decode"))
        decode.answer()
        gateway.publish(subjects.contents("decode-1"), b"forged")
        gateway.publish(inbox("decode", "gateway"), b"honest")
        gateway.answer()
        said = decode.answer()
        assert "honest" in said
        assert "forged" not in said


@pytest.mark.parametrize(
    "login", [{}, {"user": "gateway", "pass": ""}, {"user": "gateway", "pass": "x"}, {"auth_token": "x"}]
)
def test_without_the_password_nothing_is_answered(bus: Broker, login: dict[str, str]) -> None:
    with Line(bus.urls["gateway"], login) as line:
        line.subscribe(subjects.HEARTBEATS)
        said = line.answer()
        assert "PONG" not in said
        assert "Authorization Violation" in said or said.endswith("(reset)")


def test_one_roles_password_opens_no_other_role(bus: Broker) -> None:
    password = urlsplit(bus.urls["gateway"]).password or ""
    for user in ("prefill", "decode", OPERATOR, "kvferry", "root", ""):
        with Line(bus.urls["gateway"], {"user": user, "pass": password}) as line:
            assert "PONG" not in line.answer()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"PUB kvferry.heartbeat.gateway 1048577\r\n", "Maximum Payload Violation"),
        (b"PUB kvferry.heartbeat.gateway 99999999999999999999\r\n", "(reset)"),
        (b"SUB " + b"x" * 5000 + b" 1\r\n", "maximum control line"),
        (b"\x00\xff" * 100 + b"\r\n", "Unknown Protocol"),
    ],
)
def test_what_is_too_long_or_no_nats_ends_that_connection_alone(bus: Broker, said: bytes, error: str) -> None:
    with Line(bus.urls["decode"]) as other, Line(bus.urls["gateway"]) as line:
        line.say(said)
        answer = line.answer()
        assert error.lower() in answer.lower() or "PONG" not in answer
        assert "PONG" in other.answer()


def test_one_connection_cant_subscribe_without_end(bus: Broker) -> None:
    with Line(bus.urls["gateway"]) as line:
        for number in range(300):
            line.subscribe(f"kvferry.inbox.gateway.g{number}.*")
        assert "maximum subscriptions exceeded" in line.answer().lower()
