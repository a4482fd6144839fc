"""Ports that `up` keeps for its gateways while brokers and workers take any free ones."""

import socket

import pytest

from gateway.listening import listen
from kvferry.brokers import LOOPBACK, free_port
from kvferry.errors import UsageError
from kvferry.up import kept_ports


def test_a_kept_port_is_given_to_nobody_who_takes_any_free_one() -> None:
    port = free_port()
    with kept_ports(LOOPBACK, port, 1), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))


def test_a_gateway_listens_on_a_kept_port_and_does_so_again_after_its_end() -> None:
    port = free_port()
    with kept_ports(LOOPBACK, port, 1):
        for _ in range(2):
            with listen(LOOPBACK, port) as gateway, socket.create_connection((LOOPBACK, port)) as client:
                connection, _ = gateway.accept()
                with connection:
                    connection.sendall(b"here")
                assert client.recv(4) == b"here"


def test_ports_are_free_again_at_the_end() -> None:
    port = free_port()
    with kept_ports(LOOPBACK, port, 1):
        pass
    with socket.socket() as other:
        other.bind((LOOPBACK, port))


def test_a_port_that_was_taken_meanwhile_is_a_usage_error() -> None:
    with (
        listen(LOOPBACK, 0) as other,
        pytest.raises(UsageError, match="choose another with --port"),
        kept_ports(LOOPBACK, other.getsockname()[1], 1),
    ):
        pytest.fail("it is taken")
