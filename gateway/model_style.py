"""How a model writes what isn't plain text: tool calls and reasoning."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.tokenizer import TextTokenizer
from gateway.tool_calls.formats import (
    AUTO,
    HERMES,
    READERS,
    REASONING_MARKERS,
    TOOL_FORMATS,
    TOOL_MARKERS,
    ToolFormat,
    guess_format,
)
from gateway.tool_calls.reasoning import ReasoningReader
from gateway.tool_calls.segments import Reader


@dataclass(frozen=True, slots=True)
class ModelStyle:
    """``reasoning`` is what reasoning begins and ends with, None for a model that does without."""

    tools: ToolFormat = HERMES
    reasoning: tuple[str, str] | None = None

    def special_ids(self, tokenizer: TextTokenizer) -> Mapping[str, int]:
        """Markers that are special tokens, with their ids: as text they would be left out."""
        return _special_ids(tokenizer, (*TOOL_MARKERS[self.tools.name], *(self.reasoning or ())))

    def starts_inside(self, prompt: str) -> bool:
        """Whether a prompt ends in the beginning of reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])

    def reader(self, *, with_tools: bool, starts_inside: bool) -> Reader | None:
        """A reader of one answer; None where all of it is content."""
        inner = READERS[self.tools.name]() if with_tools else None
        if self.reasoning is None:
            return inner
        return ReasoningReader(inner, *self.reasoning, starts_inside=starts_inside)


def model_style(template: str | None, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> ModelStyle:
    """The style that flags name, or that a chat template's source speaks of.

    A model whose template knows no tools is told to write calls as Hermes does.
    """
    source = template or ""
    tools = TOOL_FORMATS.get(guess_format(source) if tool_parser == AUTO else tool_parser, HERMES)
    if reasoning_parser == AUTO:
        reasoning = next((pair for pair in REASONING_MARKERS.values() if pair[1] in source), None)
    else:
        reasoning = REASONING_MARKERS.get(reasoning_parser)
    return ModelStyle(tools, reasoning)


@lru_cache(maxsize=8)
def _special_ids(tokenizer: TextTokenizer, markers: tuple[str, ...]) -> Mapping[str, int]:
    """Looked up once for a model: each chat asks."""
    found = {marker: tokenizer.token_id(marker) for marker in markers}
    return {marker: each for marker, each in found.items() if each is not None and tokenizer.is_special(each)}
