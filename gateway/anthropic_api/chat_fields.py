"""From a messages body to a chat's."""

from typing import Any

from gateway.anthropic_api.body import ClientTool, CountBody, MessagesBody, ToolChoice
from gateway.anthropic_api.history import Messages, chat_messages
from gateway.body import invalid, parse
from gateway.foreign_fields import unsupported
from gateway.requests import ChatBody
from gateway.tools import AUTO, NONE, REQUIRED

NAMES = {
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "chat_template_kwargs": "thinking",
}
"""Fields of a chat by the names that they have here."""

_CHOICES = {"auto": AUTO, "any": REQUIRED, "none": NONE}


def prompt_fields(body: CountBody) -> dict[str, Any]:
    """The fields of a chat that make its prompt, tools and form. Raises ``GatewayError`` (400)."""
    messages = chat_messages(body.messages, body.system)
    fields: dict[str, Any] = {
        "messages": messages,
        "tools": [_tool(tool, f"tools.{number}") for number, tool in enumerate(body.tools)],
        **_choice(body.tool_choice),
    }
    if body.model is not None:
        fields["model"] = body.model
    if _goes_on(messages):
        fields.update(continue_final_message=True, add_generation_prompt=False)
    if body.thinking is not None:
        shown = body.thinking.type != "disabled"
        fields["chat_template_kwargs"] = {"enable_thinking": shown}
        fields["include_reasoning"] = shown and body.thinking.display != "omitted"
    wanted = body.output_format if body.output_config is None else body.output_config.format or body.output_format
    if wanted is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted.json_schema}}
    return fields


def chat_body(body: MessagesBody) -> tuple[ChatBody, object]:
    """(the chat, its tools as templates read them). Raises ``GatewayError`` (400)."""
    fields = prompt_fields(body)
    fields.update(max_tokens=body.max_tokens, stop=body.stop_sequences)
    for name in ("temperature", "top_p", "top_k"):
        if getattr(body, name) is not None:
            fields[name] = getattr(body, name)
    return parse(ChatBody, fields), fields["tools"]


def _goes_on(messages: Messages) -> bool:
    """Whether the model goes on with the last message, which is its own."""
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if last.get("tool_calls"):
        raise invalid("messages", "a tool_use needs its tool_result in the next message")
    return True


def _tool(tool: object, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise unsupported(where, f"tools of type {kind[:64]!r}")
    given = parse(ClientTool, tool, where)
    function: dict[str, Any] = {"name": given.name, "parameters": given.input_schema}
    if given.description is not None:
        function["description"] = given.description
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    if choice.type == "tool" and choice.name is None:
        raise invalid("tool_choice.name", "Field required")
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tool_choice": _CHOICES.get(choice.type, named),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }
