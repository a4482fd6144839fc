"""A bare NATS connection: it says and hears whatever an attacker likes."""

import json
import socket
from urllib.parse import urlsplit

DEADLINE_S = 20.0


class Line:
    """A bare NATS connection, which says and hears whatever it likes."""

    def __init__(self, url: str, login: dict[str, str] | None = None) -> None:
        """``login`` in place of what stands in ``url``."""
        address = urlsplit(url)
        if login is None:
            login = {"user": address.username or "", "pass": address.password or ""}
        self._socket = socket.create_connection((address.hostname, address.port), timeout=DEADLINE_S)
        self._heard = b""
        self._number = 0
        self.say(f"CONNECT {json.dumps({**login, 'verbose': False, 'echo': True})}\r\n".encode())

    def __enter__(self) -> "Line":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, subject: str, payload: bytes = b"x") -> None:
        self.say(f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def subscribe(self, subject: str) -> None:
        self._number += 1
        self.say(f"SUB {subject} {self._number}\r\n".encode())

    def answer(self) -> str:
        """All that came until the server has dealt with what was said, or has hung up."""
        try:
            self.say(b"PING\r\n")
            while b"PONG\r\n" not in self._heard and (data := self._socket.recv(1 << 16)):
                self._heard += data
        except (ConnectionResetError, BrokenPipeError):
            self._heard += b"(reset)"
        said, self._heard = self._heard, b""
        return said.decode(errors="replace")
