"""The body of POST /v1/responses."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway.body import Body
from gateway.body_schema import schema_of
from gateway.requests import TemplateKwargs
from gateway.responses_api.described import INPUT
from gateway.sampling_fields import SamplingFields
from gateway.tools import AUTO, MAX_TOOLS, NONE, REQUIRED, FunctionName

NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "prompt": (),
    "conversation": (),
    "context_management": (),
    "previous_input_messages": (),
    "enable_response_messages": (),
    "kvferry": (),
    "return_token_ids": (),
    "return_tokens_as_token_ids": (),
    "prompt_logprobs": (),
}
"""Fields that aren't built, with the values that ask for nothing."""

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What may be asked to be told besides. All but the first are about what doesn't occur here, and change nothing."""

MAX_INCLUDED = 64
MAX_METADATA = 16
MAX_METADATA_NAME = 64
MAX_METADATA_TEXT = 512
MAX_ID_CHARS = 128


def _metadata(value: dict[str, str]) -> dict[str, str]:
    """Bound it as OpenAI does."""
    if len(value) > MAX_METADATA:
        raise ValueError(f"at most {MAX_METADATA} entries")
    if any(len(name) > MAX_METADATA_NAME or len(text) > MAX_METADATA_TEXT for name, text in value.items()):
        raise ValueError(f"names have up to {MAX_METADATA_NAME} characters, texts {MAX_METADATA_TEXT}")
    return value


class TextFormat(Body):
    """What the answer's text must be; ``strict`` is always kept to."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, object] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """``verbosity`` is a hint, and changes nothing here."""

    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Body):
    """Hints, which change nothing here."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class FunctionTool(Body):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class NamedFunction(Body):
    """``tool_choice`` that names one."""

    type: Literal["function"]
    name: FunctionName


class AllowedFunctions(Body):
    """``tool_choice`` that leaves some of ``tools`` out."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


_TOOLS = {"type": "array", "items": schema_of(FunctionTool), "maxItems": MAX_TOOLS}
_CHOICE = {"anyOf": [{"enum": [AUTO, NONE, REQUIRED]}, schema_of(NamedFunction), schema_of(AllowedFunctions)]}


class ResponsesBody(SamplingFields):
    """POST /v1/responses. ``input``, ``tools`` and ``tool_choice`` are checked apart."""

    input: Annotated[object, WithJsonSchema(INPUT)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[object], Field(max_length=MAX_TOOLS), WithJsonSchema(_TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[object, WithJsonSchema(_CHOICE)] = None
    parallel_tool_calls: bool = True
    text: TextConfig = Field(default_factory=TextConfig)
    reasoning: ReasoningConfig = Field(default_factory=ReasoningConfig)
    include: Annotated[list[str], Field(fail_fast=True, max_length=MAX_INCLUDED)] = Field(default_factory=list)
    top_logprobs: Annotated[int, Field(ge=0)] = 0
    metadata: Annotated[dict[str, str], AfterValidator(_metadata)] = Field(default_factory=dict)
    store: bool = True
    background: bool = False
    previous_response_id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    user: Annotated[str, Field(max_length=MAX_METADATA_TEXT)] | None = None
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
