"""Structured logs: one event a line, as text or (KVFERRY_LOG_FORMAT=json) as JSON."""

import logging
import os
import sys
import time
from collections import OrderedDict
from typing import TextIO

from runtime.log_format import ROOT, JsonFormatter, TextFormatter

MAX_RATE_KEYS = 1024
"""Keys remembered by one logger's rate limits; the least recently used is forgotten."""

_OWN_HANDLER = "kvferry-logs"


class _Limits:
    """When each rate-limited key may speak again, and how often it was held back since."""

    def __init__(self) -> None:
        self._state: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def admit(self, seconds: float, key: str) -> int | None:
        """Return how many were held back since the last one admitted, or None to hold back."""
        now = time.monotonic()
        due, held_back = self._state.get(key, (now, 0))
        if now < due:
            self._state[key] = (due, held_back + 1)
            return None
        self._state[key] = (now + seconds, 0)
        self._state.move_to_end(key)
        if len(self._state) > MAX_RATE_KEYS:
            self._state.popitem(last=False)
        return held_back


class Logger:
    """Logs events of one room: a snake_case event name and fields with units in their names."""

    def __init__(
        self,
        target: logging.Logger,
        fields: dict[str, object] | None = None,
        limits: _Limits | None = None,
        *,
        muted: bool = False,
    ) -> None:
        self._target = target
        self._fields = fields or {}
        self._limits = limits or _Limits()
        self._muted = muted

    def bind(self, **fields: object) -> "Logger":
        """Return a logger that adds `fields` to each event."""
        return Logger(self._target, {**self._fields, **fields}, self._limits, muted=self._muted)

    def every(self, seconds: float, key: str) -> "Logger":
        """Return a logger that speaks at most once in `seconds` for `key`, and is mute else.

        An event after some were held back says how many in `held_back`.
        """
        held_back = self._limits.admit(seconds, key)
        if held_back is None:
            return Logger(self._target, muted=True)
        return self.bind(held_back=held_back) if held_back else self

    def debug(self, event: str, /, **fields: object) -> None:
        """Log what only a developer wants to see."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a step in the life of a service or request."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log what went wrong and was dealt with."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, *, cause: BaseException | None = None, **fields: object) -> None:
        """Log what went wrong and cost somebody something, with the traceback of `cause` if any."""
        self._log(logging.ERROR, event, fields, cause)

    def exception(self, event: str, /, **fields: object) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, sys.exception())

    def _log(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        error: BaseException | None = None,
    ) -> None:
        if self._muted or not self._target.isEnabledFor(level):
            return
        merged = {**self._fields, **fields}
        self._target.log(level, "%s", event, extra={"fields": merged}, exc_info=error, stacklevel=3)


def get_logger(room: str) -> Logger:
    """Return the logger of a room, such as `gateway` or `decode_svc.adopt`."""
    return Logger(logging.getLogger(f"{ROOT}.{room}"))


def setup_logs(level: str, service: str, worker: str = "", stream: TextIO | None = None) -> logging.Handler:
    """Send all logs of this process to `stream` (default stderr); call once, from `main`.

    A later call replaces the earlier one's handler. The format is text, or JSON if the
    environment says KVFERRY_LOG_FORMAT=json.

    Raises:
        ValueError: `level` is not one of debug, info, warning, error.

    """
    levels = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
    if level.lower() not in levels:
        raise ValueError(f"log level must be one of {', '.join(levels)}: {level!r}")
    as_json = os.environ.get("KVFERRY_LOG_FORMAT", "text").lower() == "json"
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(_OWN_HANDLER)
    handler.setFormatter(JsonFormatter(service, worker) if as_json else TextFormatter(service, worker))
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == _OWN_HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(levels[level.lower()], logging.INFO))  # other libraries' debug is noise
    logging.getLogger(ROOT).setLevel(levels[level.lower()])
    return handler
