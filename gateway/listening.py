"""The port."""

import socket

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Raises ``OSError``: it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Where it is, as heartbeats say it."""
    return "http://{}:{}".format(*listener.getsockname()[:2])
