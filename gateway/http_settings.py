"""What the HTTP side is told at start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds on what a client may send, and how long it may take.

    ``api_keys``: any of them opens every route that isn't open to all; none (and no file of keys): no key is
    asked for. ``max_header_bytes`` covers request line and headers, ``header_timeout_s`` their arrival.
    A stream's status waits ``first_byte_hold_s`` for the first token: what goes wrong before it is told by one.
    ``max_choices`` bounds prompts times ``n`` of one request. A client that takes nothing of its
    answer for ``write_timeout_s`` is dropped and its request cancelled. A request may take
    ``request_timeout_s`` in all (0: no limit), or less if its client says so. Web pages of
    ``allowed_origins`` may ask from a browser, with ``allow_credentials`` under its user's name.
    ``strict`` refuses fields of a body that nobody knows, ``trust_request_chat_template`` takes templates from bodies.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 32 << 10
    max_connections: int = 2048
    max_choices: int = 128
    max_stop: int = 16
    max_logprobs: int = 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    first_byte_hold_s: float = 10.0
    keepalive_s: float = 15.0
    write_timeout_s: float = 60.0
    request_timeout_s: float = 0.0
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    strict: bool = False
    trust_request_chat_template: bool = False
