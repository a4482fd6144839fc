"""Tools for a model whose chat template knows none: told in words, and calls in the history written out as text."""

import json
from collections.abc import Mapping, Sequence

from gateway.tool_calls.formats import ToolFormat

Messages = list[dict[str, object]]


def with_tools_told(messages: Messages, tools: Sequence[Mapping[str, object]], style: ToolFormat) -> Messages:
    """The same messages, with ``tools`` in the system's and earlier calls in the assistant's own words."""
    told = [_written_out(message, style) for message in messages]
    if not tools:
        return told
    text = _description(tools, style)
    if told and told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _description(tools: Sequence[Mapping[str, object]], style: ToolFormat) -> str:
    call = f'{{"{style.name_key}": the function\'s name, "{style.arguments_key}": an object of its arguments}}'
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    intro = "You may call functions. These are described by JSON, one a line:"
    return "\n".join([intro, *lines, "A call is written like this:", style.text([call])])


def _written_out(message: dict[str, object], style: ToolFormat) -> dict[str, object]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    told = [call["function"] for call in calls]
    texts = [
        json.dumps({style.name_key: call["name"], style.arguments_key: call["arguments"]}, ensure_ascii=False)
        for call in told
    ]
    content = message.get("content") or ""
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": f"{content}\n{style.text(texts)}" if content else style.text(texts)}
