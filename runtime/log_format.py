"""How one log record becomes one line."""

import json
import logging
from datetime import UTC, datetime

ROOT = "kvferry"
"""Our loggers are children of this one; the prefix isn't printed."""

MAX_VALUE_LEN = 2000
"""Characters of one value that are logged; values come from outside and must not flood a log."""


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info decode-1 engine: step_done num_seqs=3`."""

    def __init__(self, service: str, worker: str) -> None:
        super().__init__()
        self._who = worker or service

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback follows on indented lines."""
        room, event, fields = _parts_of(record)
        line = f"{_time_of(record)} {record.levelname.lower()} {self._who} {room}: {event}"
        line += "".join(f" {key}={_text_of(value)}" for key, value in fields.items())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {each}" for each in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, service, worker, room, event, then the fields."""

    def __init__(self, service: str, worker: str) -> None:
        super().__init__()
        self._service = service
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        room, event, fields = _parts_of(record)
        entry: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "worker": self._worker,
            "room": room,
            "event": event,
        }
        for key, value in fields.items():
            entry[f"field_{key}" if key in entry else key] = _plain_of(value)
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _time_of(record: logging.LogRecord) -> str:
    stamp = datetime.fromtimestamp(record.created, UTC)
    return stamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{stamp.microsecond // 1000:03d}Z"


def _parts_of(record: logging.LogRecord) -> tuple[str, str, dict[str, object]]:
    """Return room, event and fields; another library's record becomes the event `message`."""
    fields = getattr(record, "fields", None)
    if isinstance(fields, dict):
        return record.name.removeprefix(f"{ROOT}."), record.getMessage(), fields
    return record.name, "message", {"text": record.getMessage()}


def _plain_of(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_VALUE_LEN else text[:MAX_VALUE_LEN] + "..."


def _text_of(value: object) -> str:
    plain = _plain_of(value)
    if not isinstance(plain, str):
        return str(plain).lower()
    simple = plain.isprintable() and not any(char in plain for char in ' "=')
    return plain if plain and simple else json.dumps(plain, ensure_ascii=False)
