"""Tool calls of Hermes, Qwen 2.5, Qwen 3 and others."""

from typing import ClassVar

from gateway.tool_calls.marked_reader import MarkedReader


class HermesReader(MarkedReader):
    """Reads ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, with any white space inside."""

    BEGIN: ClassVar[str] = "<tool_call>"
    END: ClassVar[str] = "</tool_call>"
