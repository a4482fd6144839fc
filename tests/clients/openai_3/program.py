"""The official Python client; the same program for both of its major versions."""

from __future__ import annotations

from typing import Any

import contract
import openai
from contract import Ferry, Server, Weather, hold

TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Ferry)]


def completions(server: Server) -> Any:
    return openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0).chat.completions


def asked(server: Server, **more: Any) -> dict[str, Any]:
    ask = {"model": server.model, "messages": contract.MESSAGES, "temperature": 0, "max_tokens": contract.MAX_TOKENS}
    return ask | more


def plain(server: Server) -> dict[str, Any]:
    answer = completions(server).create(**asked(server))
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def stream(server: Server) -> dict[str, Any]:
    chunks = list(completions(server).create(**asked(server, stream=True)))
    hold(len(chunks) > contract.NUM_READ, "not streamed")
    return {"text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks)}


def usage(server: Server) -> dict[str, Any]:
    *chunks, last = completions(server).create(**asked(server, stream=True, stream_options={"include_usage": True}))
    hold(not last.choices and not any(chunk.usage for chunk in chunks), "usage comes in a last chunk of its own")
    return {"prompt_tokens": last.usage.prompt_tokens, "completion_tokens": last.usage.completion_tokens}


def two_tools(server: Server) -> dict[str, Any]:
    """Whole, and streamed through the client's own accumulator."""
    ask = asked(server, tools=TOOLS, tool_choice="required", max_tokens=contract.FORCED_TOKENS)
    ask["parallel_tool_calls"] = False
    choice = completions(server).parse(**ask).choices[0]
    hold(choice.finish_reason == "tool_calls", choice.finish_reason)
    hold(isinstance(choice.message.tool_calls[0].function.parsed_arguments, Weather | Ferry), "typed arguments")
    with completions(server).stream(**ask) as events:
        streamed = events.get_final_completion().choices[0].message.tool_calls[0].function
    hold(streamed == choice.message.tool_calls[0].function, f"streamed otherwise: {streamed}")
    return contract.the_tool(streamed.name, streamed.arguments)


def forced_tool(server: Server) -> dict[str, Any]:
    """Then its result is sent back, and answered with text."""
    choice = {"type": "function", "function": {"name": "Ferry"}}
    ask = asked(server, tools=TOOLS, tool_choice=choice, max_tokens=contract.FORCED_TOKENS)
    message = completions(server).create(**ask).choices[0].message
    call = message.tool_calls[0]
    hold(call.function.name == "Ferry", call.function.name)
    result = {"role": "tool", "tool_call_id": call.id, "content": contract.TOOL_RESULT}
    after = asked(server, tools=TOOLS, tool_choice="none") | {"messages": [*contract.MESSAGES, message, result]}
    hold(completions(server).create(**after).choices[0].message.content, "no text after the tool's result")
    return contract.the_tool(call.function.name, call.function.arguments)


def schema(server: Server) -> dict[str, Any]:
    answer = completions(server).parse(**asked(server, response_format=Ferry, max_tokens=contract.FORCED_TOKENS))
    hold(isinstance(answer.choices[0].message.parsed, Ferry), "not the client's model")
    return {"parsed": answer.choices[0].message.parsed.model_dump()}


def n(server: Server) -> dict[str, Any]:
    answer = completions(server).create(**asked(server, n=2, temperature=1, seed=1))
    return {"indices": [choice.index for choice in answer.choices]}


def stop(server: Server) -> dict[str, Any]:
    answer = completions(server).create(**asked(server, stop=[contract.STOP]))
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def logprobs(server: Server) -> dict[str, Any]:
    answer = completions(server).create(**asked(server, logprobs=True, top_logprobs=2))
    return contract.checked_logprobs(
        [(each.logprob, len(each.top_logprobs)) for each in answer.choices[0].logprobs.content]
    )


def said(error: openai.APIStatusError) -> tuple[int, object]:
    return error.status_code, error.code


def wrong_model(server: Server) -> dict[str, Any]:
    ask = asked(server) | {"model": contract.OTHER_MODEL}
    return contract.refusal(lambda: completions(server).create(**ask), openai.NotFoundError, said)


def too_long(server: Server) -> dict[str, Any]:
    ask = asked(server) | {"messages": [{"role": "user", "content": contract.TOO_LONG}]}
    return contract.refusal(lambda: completions(server).create(**ask), openai.BadRequestError, said)


def abort(server: Server) -> dict[str, Any]:
    ask = asked(server, stream=True, extra_body=contract.ENDLESS) | {"max_tokens": contract.ENDLESS_TOKENS}
    with contract.aborted(server), completions(server).create(**ask) as chunks:
        read = [chunk for _, chunk in zip(range(contract.NUM_READ), chunks, strict=False)]
    return {"num_read": len(read)}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, n, stop, logprobs, wrong_model, too_long, abort)
