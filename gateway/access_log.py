"""What is known of one HTTP request, and the one line that is logged when it is over."""

import time
from dataclasses import dataclass, field, replace

from starlette.types import Scope

from gateway.generation import Journey
from gateway.limiter import Stay
from protocol.errors import Code
from runtime.logs import get_logger

log = get_logger("gateway.access")

CLIENT_CLOSED = 499
"""Status of a request whose client has gone; nobody is left to read it."""

KEY = "kvferry.record"
"""Where an ASGI scope holds the record."""

MAX_LABEL_CHARS = 128
"""Of a client's x-request-id; the rest is cut off."""

MAX_JOURNEYS = 4
"""Prompts whose tries are told in a line."""

QUIET_ROUTES = frozenset({"/health", "/ping", "/live", "/ready", "/metrics", "/load"})
"""Asked every few seconds by machines: logged for developers only."""


@dataclass(slots=True)
class RequestRecord:
    """Filled in as the request goes on. ``started`` and ``first_token`` are monotonic seconds.

    ``key`` is the name of the client's key and ``owner`` the mark of what it leaves behind, "" without keys; ``stay``
    is what it may do if it is limited. ``hurried``: the client has set a deadline of its own. ``handed_over``: the stay
    goes on in the record of what runs on after the answer.
    """

    label: str = ""
    started: float = field(default_factory=time.monotonic)
    method: str = ""
    route: str = "none"
    status: int = 0
    request_id: str = ""
    path: str = ""
    num_attempts: int = 0
    journeys: list[Journey] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    first_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error_code: str = ""
    reason: str = ""
    key: str = ""
    owner: str = ""
    stay: Stay | None = None
    hurried: bool = False
    handed_over: bool = False

    @property
    def num_charged_tokens(self) -> int:
        """What counts against the key's tokens: prompt and answer as in usage.

        A request that was refused, or failed before its first token, costs nothing; one whose client left, or
        gave it too little time, does: else prompts could be computed for nothing.
        """
        own_fault = self.status == CLIENT_CLOSED or (self.hurried and self.error_code == Code.DEADLINE)
        free = self.first_token is None and not own_fault
        return 0 if free else self.num_prompt_tokens + self.num_tokens

    def hand_over(self, route: str) -> "RequestRecord":
        """Return a record for what runs on after the answer; what it uses is charged at its own end."""
        self.handed_over = True
        return replace(self, route=route, handed_over=False, journeys=[], finish_reasons=[])

    def write(self, seconds: float) -> None:
        """Log it. ``seconds`` is how long the request took."""
        fields: dict[str, object] = {
            "method": self.method, "route": self.route, "status": self.status,
            "request_id": self.request_id, "label": self.label, "key": self.key, "path": self.path,
            "attempts": self.num_attempts, "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens, "tokens": self.num_tokens,
            "finish": ",".join(self.finish_reasons), "error": self.error_code,
            "reason": self.reason, "tries": " | ".join(each.told() for each in self.journeys[:MAX_JOURNEYS]),
        }  # fmt: skip
        if self.journeys:
            fields.update({f"{phase}_ms": spent for phase, spent in self.journeys[0].phases_ms.items()})
        if self.first_token is not None:
            fields["first_token_ms"] = round((self.first_token - self.started) * 1000, 1)
        fields["total_ms"] = round(seconds * 1000, 1)
        known = {name: value for name, value in fields.items() if value not in ("", 0)}
        write = log.debug if self.route in QUIET_ROUTES else log.info
        write("request", **known)


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of this scope's request."""
    record = scope[KEY]
    assert isinstance(record, RequestRecord)
    return record
