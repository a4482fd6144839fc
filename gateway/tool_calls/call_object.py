"""One call that is written as a JSON object."""

from gateway.tool_calls.held import Held
from gateway.tool_calls.json_scan import ObjectScan, ValueScan, decoded
from gateway.tool_calls.segments import CallArguments, CallStart, Segment

NAME_KEY = "name"
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
"""Models mix them up, so each format takes both."""


class CallObject:
    """``{"name": ..., "arguments": {...}}``, its keys in any order, read as it comes.

    It is told from the moment that its name is known and its arguments are known to be an object: then
    ``told`` is set. Arguments that are null, or that are missing beside a mere name, are ``{}``. Of keys
    that come twice the first counts. Other keys are passed over. It ends ``done``, which includes that it
    was told, or ``broken``: not JSON, no call, or more to hold back than there is room for.
    """

    def __init__(self, index: int, held: Held) -> None:
        """Keep back in ``held`` what isn't told; it is emptied when the call is told, and when it is done."""
        self.told = False
        self.done = False
        self.broken = False
        self._index = index
        self._held = held
        self._scan = ObjectScan()
        self._value: ValueScan | None = None
        self._role = ""
        self._value_text: list[str] = []
        self._name: str | None = None
        self._arguments: list[str] | None = None
        self._has_others = False

    def read(self, text: str, start: int, told: list[Segment]) -> int:
        """Read on at ``start`` and add to ``told`` what is certain; return the place behind what was read."""
        while start < len(text) and not self.done and not self.broken:
            end = self._scan.read(text, start)
            piece = text[start:end]
            self._look_at_value()
            if self.told and self._role == "arguments":
                if piece:
                    told.append(CallArguments(self._index, piece))
                start = end
            else:
                start += self._held.add(piece)
            self.broken = self._scan.broken or start < end
            if not self.broken:
                self._judge(piece, told)
        return start

    def _look_at_value(self) -> None:
        """Say what the value at hand is for, if it is a new one."""
        if self._scan.value is self._value:
            return
        self._value, self._value_text, self._role = self._scan.value, [], ""
        if self._value is None:
            return
        if self._scan.key == NAME_KEY and self._name is None:
            self._role = "name"
        elif self._scan.key in ARGUMENT_KEYS and self._arguments is None:
            self._role = "arguments"
        else:
            self._has_others = True

    def _judge(self, piece: str, told: list[Segment]) -> None:
        if self._value is not None and self._role == "name":
            self._judge_name(self._value, piece)
        elif self._value is not None and self._role == "arguments" and not self.told:
            self._judge_arguments(self._value, piece)
        elif self._scan.done and self._arguments is None and not self._has_others:
            self._arguments = ["{}"]
        if not self.broken and not self.told and self._name is not None and self._arguments is not None:
            self._tell(self._name, "".join(self._arguments), told)
        if self._scan.done:
            self.done, self.broken = self.told, not self.told
            if self.done:
                self._held.take()

    def _judge_name(self, value: ValueScan, piece: str) -> None:
        self.broken = value.kind != '"'
        self._value_text.append(piece)
        if value.done:
            self._name = decoded("".join(self._value_text)) or None
            self.broken = self._name is None

    def _judge_arguments(self, value: ValueScan, piece: str) -> None:
        self._value_text.append(piece)
        if value.kind == "{":
            self._arguments = self._value_text
        elif value.kind:
            self.broken = True
        elif value.done:
            self.broken = "".join(self._value_text) != "null"
            self._arguments = ["{}"]

    def _tell(self, name: str, arguments: str, told: list[Segment]) -> None:
        told += [CallStart(self._index, name), CallArguments(self._index, arguments)]
        self._held.take()
        self._arguments = []
        self.told = True
