"""Tool calls of Llama 3.1 and later."""

from typing import ClassVar

from gateway.tool_calls.marked_reader import MarkedReader


class Llama3JsonReader(MarkedReader):
    """Reads ``{"name": ..., "parameters": {...}}``, several with ``;`` in between.

    Without ``<|python_tag|>`` only where the answer begins with it: an object behind other words is an
    example more often than a call. An answer in JSON that is no call is content, but held back to its end.
    """

    BEGIN: ClassVar[str] = "<|python_tag|>"
    END: ClassVar[str] = ";"
    BARE: ClassVar[bool] = True
