"""Tool calls of Mistral's models, of both kinds."""

import re
from typing import ClassVar

from gateway.tool_calls.json_scan import ValueScan
from gateway.tool_calls.marked_reader import MarkedReader
from gateway.tool_calls.markers import stands_at
from gateway.tool_calls.segments import CallArguments, CallStart

_ARGUMENTS = "[ARGS]"
_ID = "[CALL_ID]"
_NAME = re.compile(r"[\w.:/-]*")


class MistralReader(MarkedReader):
    """Reads a list of objects or a name with arguments, each behind ``[TOOL_CALLS]``.

    That is ``[{"name": ..., "arguments": {...}}, ...]`` or ``name{...}``; between name and arguments
    there may be ``[CALL_ID]`` with an id, which is passed over, and ``[ARGS]``.
    """

    BEGIN: ClassVar[str] = "[TOOL_CALLS]"

    def __init__(self) -> None:
        super().__init__()
        self._in_list = False
        self._name: list[str] = []
        self._arguments = ValueScan("{")

    def _behind_marker(self) -> bool:
        if not self._hold_space():
            return False
        self._in_list = self._text[self._start] == "["
        if self._in_list:
            self._hold(1)
            self._step = self._before_object
        elif self._num_matching_name():
            self._name = []
            self._step = self._in_name
        else:
            self._step = self._before_object
        return True

    def _behind_object(self) -> bool:
        if not self._drop_space():
            return False
        sign = self._text[self._start]
        if not self._in_list:
            self._step = self._behind_call
        elif sign in ",]":
            self._start += 1
            self._step = self._before_object if sign == "," else self._behind_call
        else:
            self._step = self._in_content
        return True

    def _in_name(self) -> bool:
        start = self._start
        self._hold(self._num_matching_name())
        self._name.append(self._text[start : self._start])
        if self._start == len(self._text):
            return False
        self._step = self._before_arguments
        return True

    def _before_arguments(self) -> bool:
        if not self._hold_space():
            return False
        if self._text[self._start] == "{":
            self._begin_arguments()
            return True
        found_arguments = stands_at(self._text, self._start, _ARGUMENTS)
        found_id = stands_at(self._text, self._start, _ID)
        if found_arguments:
            self._hold(len(_ARGUMENTS))
        elif found_id:
            self._hold(len(_ID))
            self._step = self._in_id
        elif found_arguments is None or found_id is None:
            return False
        else:
            self._give_back()
        return True

    def _in_id(self) -> bool:
        self._hold(self._num_matching_name())
        if self._start == len(self._text):
            return False
        self._step = self._before_arguments
        return True

    def _begin_arguments(self) -> None:
        self._held.take()
        self._told.append(CallStart(self._num_calls, "".join(self._name)))
        self._told.append(CallArguments(self._num_calls, "{"))
        self._arguments = ValueScan("{")
        self._start += 1
        self._step = self._in_arguments

    def _in_arguments(self) -> bool:
        arguments = self._arguments
        end = arguments.read(self._text, self._start)
        if end > self._start:
            self._told.append(CallArguments(self._num_calls, self._text[self._start : end]))
        self._start = end
        if not arguments.done and not arguments.broken:
            return False
        self._num_calls += 1
        self._step = self._behind_call
        return True

    def _num_matching_name(self) -> int:
        match = _NAME.match(self._text, self._start)
        return len(match[0]) if match else 0
