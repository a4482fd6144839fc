"""A line that is closed already can be dropped on every Python that is supported."""

import asyncio

import pytest

from runtime.nats_client import abort


class Transport(asyncio.Transport):
    """One whose ``abort`` is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.num_aborts = 0

    def abort(self) -> None:
        self.num_aborts += 1


class ClosedTwice(Transport):
    """As ``asyncio.sslproto`` of Python 3.11.2 leaves it."""

    _ssl_protocol = None

    def abort(self) -> None:
        pytest.fail("there is nothing left to abort")


def test_a_plain_line_is_dropped() -> None:
    transport = Transport()
    abort(transport)
    assert transport.num_aborts == 1


def test_a_tls_line_that_was_closed_twice_is_left() -> None:
    abort(ClosedTwice())
