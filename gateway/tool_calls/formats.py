"""The formats of tool calls and of reasoning, by the names that vLLM's flags have for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.tool_calls.hermes import HermesReader
from gateway.tool_calls.llama3_json import Llama3JsonReader
from gateway.tool_calls.mistral import MistralReader
from gateway.tool_calls.segments import Reader

AUTO, NONE = "auto", "none"
"""Words of the flags: what the chat template speaks of; no reasoning."""

READERS: dict[str, Callable[[], Reader]] = {
    "hermes": HermesReader,
    "llama3_json": Llama3JsonReader,
    "mistral": MistralReader,
}
"""A new reader of each tool format."""

TOOL_MARKERS: dict[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
}
"""What each format may write as tokens of their own."""

REASONING_MARKERS: dict[str, tuple[str, str]] = {
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
}
"""What reasoning begins and ends with."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model is made to write calls, so that the reader of the same name finds them and nothing else.

    Each call is a JSON object of two members, ``name_key`` first, with any white space that JSON allows.
    Between ``begin`` and ``end`` there is at least one, and ``between`` parts them.
    """

    name: str
    begin: str
    between: str
    end: str
    name_key: str
    arguments_key: str

    def text(self, calls: Sequence[str]) -> str:
        """Return what the model writes for ``calls``, which are JSON objects."""
        return self.begin + self.between.join(calls) + self.end


HERMES = ToolFormat(
    name="hermes",
    begin="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    end="\n</tool_call>",
    name_key="name",
    arguments_key="arguments",
)
r"""``<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>``"""

LLAMA3_JSON = ToolFormat(
    name="llama3_json", begin="", between="; ", end="", name_key="name", arguments_key="parameters"
)
"""``{"name": "f", "parameters": {"x": 1}}``"""

MISTRAL = ToolFormat(
    name="mistral", begin="[TOOL_CALLS][", between=", ", end="]", name_key="name", arguments_key="arguments"
)
"""``[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]``"""

TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in (HERMES, LLAMA3_JSON, MISTRAL)}

_XML_INSIDE = ("<function=", "<arg_key>")
"""Qwen 3 Coder and GLM write XML between the markers of Hermes."""


def guess_format(template: str) -> str:
    """Return the tool format that a chat template's source speaks of; "" if none of ``READERS``."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and not any(sign in template for sign in _XML_INSIDE):
        return "hermes"
    if "ipython" in template and '"parameters"' in template:
        return "llama3_json"
    return ""
