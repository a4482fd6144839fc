"""A chat's tools: the fields that offer them, and what is to become of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gateway.body import Body, invalid, parse
from gateway.errors import GatewayError

MAX_TOOLS = 512
AUTO, NONE, REQUIRED = "auto", "none", "required"

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


_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["function"],
}
ToolChoice = Annotated[object, WithJsonSchema({"anyOf": [{"enum": [AUTO, NONE, REQUIRED]}, _NAMED]})]


class ToolFields(Body):
    """What a chat says of tools. ``tool_choice`` has several forms, told apart by ``tool_use``."""

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the model is shown, as templates read them, and those one of which it must call: none if it needn't.

    ``is_named``: the client has named that one.
    """

    shown: tuple[Mapping[str, object], ...] = ()
    forced: tuple[FunctionSpec, ...] = ()
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
    if choice == AUTO:
        return ToolUse(shown, parallel=fields.parallel_tool_calls)
    if choice == REQUIRED:
        return ToolUse(shown, tuple(tool.function for tool in fields.tools), parallel=fields.parallel_tool_calls)
    return ToolUse(shown, (_named(choice, fields.tools),), is_named=True, parallel=False)


def _named(choice: object, tools: list[Tool]) -> FunctionSpec:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise GatewayError(
            400,
            f"tool_choice: type {kind[:64]!r} isn't supported by this server, only function",
            code="unsupported_parameter",
            param="tool_choice",
        )
    name = parse(NamedTool, choice, "tool_choice").function.name
    for tool in tools:
        if tool.function.name == name:
            return tool.function
    raise invalid("tool_choice", f"there is no tool named {name!r}")


def _check_names(tools: list[Tool]) -> None:
    counts = Counter(tool.function.name for tool in tools)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise invalid("tools", f"two are named {twice!r}")
