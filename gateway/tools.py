"""A chat's tools: the fields that offer them, and what is to become of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gateway.body import Body, invalid, parse
from gateway.errors import GatewayError

MAX_TOOLS = 512
AUTO, NONE, REQUIRED = "auto", "none", "required"
ALLOWED = "allowed_tools"

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class FunctionSpec(Body):
    """A function that the model may call; ``parameters`` is a JSON schema, any object where there is none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Tool(Body):
    """One of ``tools``."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Body):
    """The function that must be called."""

    name: FunctionName


class NamedTool(Body):
    """``tool_choice`` that names one."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(Body):
    """Those of ``tools`` that may be called; ``mode`` says whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Body):
    """``tool_choice`` that leaves some of ``tools`` out."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["function"],
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": ALLOWED},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": [AUTO, REQUIRED]},
                "tools": {"type": "array", "items": _NAMED, "minItems": 1, "maxItems": MAX_TOOLS},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
ToolChoice = Annotated[object, WithJsonSchema({"anyOf": [{"enum": [AUTO, NONE, REQUIRED]}, _NAMED, _ALLOWED]})]


class ToolFields(Body):
    """What a chat says of tools. ``tool_choice`` has several forms, told apart by ``tool_use``."""

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the model is shown, as templates read them, and functions that it may call.

    ``must_call``: one of these at least. ``is_named``: the client has named the only one.
    """

    shown: tuple[Mapping[str, object], ...] = ()
    functions: tuple[FunctionSpec, ...] = ()
    must_call: bool = False
    is_named: bool = False
    parallel: bool = True


NO_TOOLS = ToolUse()


def tool_use(fields: ToolFields, given: object) -> ToolUse:
    """What a chat asks for; tools that may not be called aren't shown. ``given``: its ``tools`` as they came.

    Raises ``GatewayError`` (400): a choice that names no tool, or nothing to choose from.
    """
    choice = AUTO if fields.tool_choice is None else fields.tool_choice
    if isinstance(choice, str) and choice not in (AUTO, NONE, REQUIRED):
        raise invalid("tool_choice", "none, auto, required, or an object that names a function")
    if choice == NONE or (choice == AUTO and not fields.tools):
        return NO_TOOLS
    if not fields.tools:
        raise invalid("tool_choice", "only with tools")
    _check_names(fields.tools)
    shown = tuple(given) if isinstance(given, list) else ()
    functions, parallel = tuple(tool.function for tool in fields.tools), fields.parallel_tool_calls
    if isinstance(choice, str):
        return ToolUse(shown, functions, must_call=choice == REQUIRED, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        return _allowed(parse(AllowedChoice, choice, "tool_choice").allowed_tools, ToolUse(shown, functions), parallel)
    return ToolUse(shown, (_named(choice, functions),), must_call=True, is_named=True, parallel=False)


def _allowed(allowed: AllowedTools, every: ToolUse, parallel: bool) -> ToolUse:
    """Some of ``every``. Where none must be called no grammar keeps the others out: then they aren't shown."""
    names = {tool.function.name for tool in allowed.tools}
    unknown = sorted(names - {function.name for function in every.functions})
    if unknown:
        raise _no_such(unknown[0])
    functions = tuple(function for function in every.functions if function.name in names)
    if allowed.mode == REQUIRED:
        return ToolUse(every.shown, functions, must_call=True, parallel=parallel)
    pairs = zip(every.shown, every.functions, strict=True)
    return ToolUse(tuple(tool for tool, function in pairs if function.name in names), functions, parallel=parallel)


def _named(choice: object, functions: Sequence[FunctionSpec]) -> FunctionSpec:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise GatewayError(
            400,
            f"tool_choice: type {kind[:64]!r} isn't supported by this server, only function and {ALLOWED}",
            code="unsupported_parameter",
            param="tool_choice",
        )
    name = parse(NamedTool, choice, "tool_choice").function.name
    for function in functions:
        if function.name == name:
            return function
    raise _no_such(name)


def _no_such(name: str) -> GatewayError:
    return invalid("tool_choice", f"there is no tool named {name!r}")


def _check_names(tools: list[Tool]) -> None:
    counts = Counter(tool.function.name for tool in tools)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise invalid("tools", f"two are named {twice!r}")
