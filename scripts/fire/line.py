"""One worker's line to the bus: a TCP relay that can be cut, so that nothing passes and nobody is told."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

MAX_READ_BYTES = 1 << 16
DIAL_S = 5.0


class Line:
    """Relays each connection to ``host:port``; while cut, bytes wait where they are and new connections get no word.

    That is what a pulled cable or a dropped route looks like: no FIN, no RST.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listen on a free port of the loopback interface."""
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = {self._listener}
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._open.clear()

    def mend(self) -> None:
        """Everything passes again, what waited first."""
        self._open.set()

    def close(self) -> None:
        """End every connection."""
        self.mend()
        for each in list(self._sockets):
            with suppress(OSError):  # its other end was first
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._sockets.add(near)
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(self._target, DIAL_S)
        except OSError:  # the bus is away: so says the relay
            self._sockets.discard(near)
            near.close()
            return
        far.settimeout(None)
        self._sockets.add(far)
        other = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        other.start()
        self._pump(near, far)
        other.join()
        for each in (near, far):
            self._sockets.discard(each)
            each.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Bytes one way until an end; that end is passed on."""
        with suppress(OSError):  # either end is gone, and the other hears it below
            while data := source.recv(MAX_READ_BYTES):
                self._open.wait()
                sink.sendall(data)
        self._open.wait()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
