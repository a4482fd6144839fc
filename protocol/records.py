"""What messages are made of: dataclasses, and named tuples for the parts that come with every token."""

from __future__ import annotations

import dataclasses
from typing import Any


def is_record(annotation: Any) -> bool:
    """Whether a field of this type is written as the list of its own fields."""
    return dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields")


def field_names(cls: type[Any]) -> tuple[str, ...]:
    """A record's fields in the order of the wire."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    names: tuple[str, ...] = cls._fields
    return names
