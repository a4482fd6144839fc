"""Messages to bytes and back: two pure functions.

A frame is a version byte, then a msgpack array: [tag, sender id, sender epoch, receiver epoch, fields...].
Fields stand in the order of the record; nested records are arrays of their fields.
"""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable
from typing import Any

import msgpack

from protocol.errors import WireError
from protocol.messages import TAGS, Envelope, Message, Peer
from protocol.records import field_names, is_record

WIRE_VERSION = 2
_VERSION_BYTE = bytes([WIRE_VERSION])
_TAG_OF = {cls: tag for tag, cls in TAGS.items()}
_ENVELOPE_FIELDS = 4
MAX_FRAME_BYTES = 64 << 20
"""A longer frame is refused unread: a prompt of a million tokens takes 5 MB."""

Reader = Callable[[Any], Any]


def encode(envelope: Envelope, message: Message) -> bytes:
    """The frame that carries ``message``."""
    head: list[Any] = [_TAG_OF[type(message)], envelope.sender.id, envelope.sender.epoch, envelope.to_epoch]
    body = _WRITERS[type(message)](message)
    packed: bytes = msgpack.packb([*head, *body], use_bin_type=True)
    return _VERSION_BYTE + packed


def decode(frame: bytes) -> tuple[Envelope, Message]:
    """The message in ``frame`` and its envelope. Raises ``WireError``; never returns half a message."""
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
    if frame[:1] != _VERSION_BYTE:
        raise WireError(f"wire version {frame[:1].hex() or 'none'} isn't {WIRE_VERSION}")
    try:
        fields = msgpack.unpackb(memoryview(frame)[1:], raw=False, use_list=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"frame isn't msgpack: {error}") from error
    if not isinstance(fields, tuple) or len(fields) < _ENVELOPE_FIELDS:
        raise WireError("frame has no envelope")
    tag, sender_id, sender_epoch, to_epoch = fields[:_ENVELOPE_FIELDS]
    cls = TAGS.get(tag) if type(tag) is int else None
    if cls is None:
        raise WireError(f"tag {tag!r} is unknown")
    envelope = Envelope(Peer(_text(sender_id), _text(sender_epoch)), _text(to_epoch))
    message: Message = _READERS[cls](fields[_ENVELOPE_FIELDS:])
    return envelope, message


def _text(value: Any) -> str:
    if type(value) is not str:
        raise WireError(f"{value!r} is no text")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise WireError(f"{value!r} is no integer")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise WireError(f"{value!r} is no number")
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise WireError(f"{value!r} is no boolean")
    return value


def _blob(value: Any) -> bytes:
    if type(value) is not bytes:
        raise WireError(f"{type(value).__name__} is no byte string")
    return value


_SCALARS: dict[Any, Reader] = {str: _text, int: _integer, float: _number, bool: _flag, bytes: _blob}


def _integers(value: Any) -> tuple[int, ...]:
    """Token ids: the long lists, so checked without a call per item."""
    if type(value) is not tuple or not set(map(type, value)) <= {int}:
        raise WireError("expected a list of integers")
    return value


def _reader(annotation: Any) -> Reader:
    """A function that checks and builds one value of a field's type."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if is_record(annotation):
        return _class_reader(annotation)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if items == (int, Ellipsis):
            return _integers
        return _list_reader(items[0]) if items[-1] is Ellipsis else _fixed_reader(items)
    raise TypeError(f"no wire form for {annotation!r}")


def _list_reader(annotation: Any) -> Reader:
    read = _reader(annotation)

    def read_list(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise WireError("expected a list")
        return tuple(map(read, value))

    return read_list


def _fixed_reader(annotations: tuple[Any, ...]) -> Reader:
    readers = tuple(_reader(a) for a in annotations)

    def read_fixed(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(readers):
            raise WireError(f"expected a list of {len(readers)}")
        return tuple(read(item) for read, item in zip(readers, value, strict=True))

    return read_fixed


def _class_reader(cls: type[Any]) -> Reader:
    """One comparison of all types lets most objects pass; who fails it is read field by field, and told why."""
    annotations = _field_types(cls)
    readers = tuple(_reader(annotation) for annotation in annotations)
    usual = tuple(_usual_type(annotation) for annotation in annotations)
    nested = tuple((i, readers[i]) for i, annotation in enumerate(annotations) if annotation not in _SCALARS)

    def read_object(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(readers):
            raise WireError(f"{cls.__name__} needs {len(readers)} fields")
        if tuple(map(type, value)) != usual:
            return cls(*[read(item) for read, item in zip(readers, value, strict=True)])
        if not nested:
            return cls(*value)
        items = list(value)
        for place, read in nested:
            if items[place]:  # nothing is to be read in an empty list; what needs fields isn't usual then
                items[place] = read(items[place])
        return cls(*items)

    return read_object


def _usual_type(annotation: Any) -> type[Any] | None:
    """The type that msgpack gives for a field; None, which no value has, where an empty list is no value."""
    if annotation in _SCALARS:
        return typing.cast("type[Any]", annotation)
    is_list = typing.get_origin(annotation) is tuple and typing.get_args(annotation)[-1] is Ellipsis
    return tuple if is_list else None


def _field_types(cls: type[Any]) -> list[Any]:
    hints = typing.get_type_hints(cls)
    return [hints[name] for name in field_names(cls)]


def _writer(annotation: Any) -> Callable[[Any], Any] | None:
    """A function that turns one value into msgpack's types; ``None`` if it is one already."""
    if is_record(annotation):
        return _class_writer(annotation)
    if typing.get_origin(annotation) is tuple:
        write = _writer(typing.get_args(annotation)[0])
        return None if write is None else (lambda items: [write(item) for item in items])
    if isinstance(annotation, types.UnionType):
        raise TypeError("unions have no wire form")
    return None


def _class_writer(cls: type[Any]) -> Callable[[Any], Any]:
    names = field_names(cls)
    writers = [_writer(annotation) for annotation in _field_types(cls)]
    nested = [(place, write) for place, write in enumerate(writers) if write is not None]
    fields_of: Callable[[Any], tuple[Any, ...]] = operator.attrgetter(*names)
    if issubclass(cls, tuple):
        fields_of = tuple
    elif len(names) == 1:  # of which attrgetter gives no tuple
        fields_of = lambda value: (getattr(value, names[0]),)  # noqa: E731
    if not nested:
        return fields_of

    def write_object(value: Any) -> Any:
        items = list(fields_of(value))
        for place, write in nested:
            if items[place]:  # an empty list is written as it is
                items[place] = write(items[place])
        return items

    return write_object


_READERS: dict[type[Any], Reader] = {cls: _class_reader(cls) for cls in TAGS.values()}
_WRITERS: dict[type[Any], Callable[[Any], Any]] = {cls: _class_writer(cls) for cls in TAGS.values()}
