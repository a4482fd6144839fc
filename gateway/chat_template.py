"""A model's chat template: from messages to the text of the prompt.

The environment is the one that the templates of model folders are written for: transformers'
documentation of chat templates names its options, extensions and functions.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import GatewayError, ModelFolderError

Messages = Sequence[Mapping[str, object]]

_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words, for training; here its inside is enough."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the tag by its content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter it doesn't escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, object]) -> None:
        """Compile it for ``special_tokens`` (``bos_token`` and the like).

        Raises ``ModelFolderError`` on bad syntax.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFolderError(f"the chat template can't be read: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.knows_developer = "developer" in source
        self.knows_documents = "documents" in source
        self.knows_tools = "tools" in source

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
        documents: Sequence[Mapping[str, object]] = (),
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Return the prompt's text. A template that knows no ``tools`` leaves them out.

        Raises ``GatewayError`` (400) with the template's own words.
        """
        mine = sorted(_OURS & set(variables or {}))
        if mine:
            raise _refused(f"{mine[0]} can't be set here", "chat_template_kwargs")
        if documents and not self.knows_documents:
            raise _refused("it doesn't use documents; put them into a message", "documents")
        values: dict[str, Any] = {
            **self._special_tokens,
            "tools": list(tools) or None,
            "documents": documents or None,
            **(variables or {}),
            "add_generation_prompt": add_generation_prompt,
        }
        if continue_final_message:
            return self._render_open(messages, values)
        return self._render({**values, "messages": messages})

    def _render(self, values: Mapping[str, object]) -> str:
        try:
            return self._template.render(values)
        except jinja2.TemplateError as error:
            raise _refused(error.message or type(error).__name__) from error
        except Exception as error:  # what a template does to a client's values can fail in any way
            raise _refused(f"{type(error).__name__}: {error}") from error

    def _render_open(self, messages: Messages, values: Mapping[str, object]) -> str:
        """Everything up to the end of the last message's content, so that it goes on from there."""
        mark = f"end-of-message-{secrets.token_hex(8)}"
        content = str(messages[-1]["content"])
        # the space behind the mark tells whether the template strips content
        last = {**messages[-1], "content": f"{content}{mark} "}
        text = self._render({**values, "messages": [*messages[:-1], last]})
        place = text.rfind(mark)
        if place < 0:
            raise _refused("it leaves out the message that is to be continued")
        kept = text[:place]
        return kept if text[place:].startswith(f"{mark} ") else kept.rstrip()


def _refused(reason: str, param: str = "messages") -> GatewayError:
    return GatewayError(400, f"The chat template refused this: {reason}", param=param)
