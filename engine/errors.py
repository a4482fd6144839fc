"""What the engine can't do, as exceptions. An expected shortage is a value instead (see engine.api)."""

from __future__ import annotations


class EngineError(Exception):
    """Root of the engine's errors. The text is one clear line."""


class ModelError(EngineError):
    """A model folder that can't be served: missing, truncated, or of a kind that isn't built."""


class BrokenPromise(EngineError):  # noqa: N818 - the house's word for a defect
    """The engine's own books don't add up: a defect, never a shortage. The text names the block or key."""
