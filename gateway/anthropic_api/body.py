"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gateway.anthropic_api.described import MESSAGES, SYSTEM
from gateway.body import Body
from gateway.body_schema import schema_of
from gateway.tools import MAX_TOOLS, FunctionName

MaxTokens = Annotated[int, Field(ge=1)]

NEUTRAL: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": (),
    "fallbacks": (),
    "inference_geo": (),
    "mcp_servers": (),
    "speed": ("standard",),
}
"""Fields that aren't built, with the values that ask for nothing."""


class ClientTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, object]


class ToolChoice(Body):
    """Whether tools must be called: ``any`` of them, or the one that ``tool`` names."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether the model should reason, and whether that is shown. A budget is a hint, and changes nothing here."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Body):
    """What the answer must be."""

    type: Literal["json_schema"]
    json_schema: dict[str, object] = Field(alias="schema")


class OutputConfig(Body):
    """``effort`` is a hint, and changes nothing here."""

    effort: str | None = None
    format: JsonFormat | None = None


_TOOLS = {"type": "array", "items": schema_of(ClientTool), "maxItems": MAX_TOOLS}


class CountBody(Body):
    """What a prompt is made of. ``messages`` and ``system`` are checked one by one, by ``history``."""

    model: str | None = None
    messages: Annotated[list[object], Field(min_length=1), WithJsonSchema(MESSAGES)]
    system: Annotated[object, WithJsonSchema(SYSTEM)] = None
    tools: Annotated[list[object], Field(max_length=MAX_TOOLS), WithJsonSchema(_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    cache_control: object = None


class MessagesBody(CountBody):
    """POST /v1/messages. What can't be told by type alone is checked as a chat's field is."""

    max_tokens: MaxTokens
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] = Field(default_factory=list)
    stream: bool = False
    diagnostics: object = None
    user_profile_id: object = None
    workspace_id: object = None
