"""LiteLLM as a library; its own classes for answers and errors."""

from __future__ import annotations

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices

import contract
import litellm
import openai
from contract import Ferry, Server, Weather, hold

litellm.suppress_debug_info = True  # prints among the results

TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Ferry)]


def ask(server: Server, **more: Any) -> Any:
    asked = {"model": f"openai/{server.model}", "messages": contract.MESSAGES, "temperature": 0, "max_retries": 0}
    asked |= {"api_base": server.v1, "api_key": "none", "max_tokens": contract.MAX_TOKENS}
    return litellm.completion(**(asked | more))


def plain(server: Server) -> dict[str, Any]:
    answer = ask(server)
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def stream(server: Server) -> dict[str, Any]:
    """And the client's builder makes the whole answer of its chunks."""
    chunks = list(ask(server, stream=True))
    hold(len(chunks) > contract.NUM_READ, "not streamed")
    return {"text": litellm.stream_chunk_builder(chunks).choices[0].message.content}


def usage(server: Server) -> dict[str, Any]:
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}))
    found = chunks[-1].usage
    return {"prompt_tokens": found.prompt_tokens, "completion_tokens": found.completion_tokens}


def two_tools(server: Server) -> dict[str, Any]:
    """Whole, and streamed through the client's builder."""
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    asked["max_tokens"] = contract.FORCED_TOKENS
    choice = ask(server, **asked).choices[0]
    hold(choice.finish_reason == "tool_calls", choice.finish_reason)
    whole = choice.message.tool_calls[0].function
    built = litellm.stream_chunk_builder(list(ask(server, stream=True, **asked)))
    streamed = built.choices[0].message.tool_calls[0].function
    hold(streamed.arguments == whole.arguments, f"streamed otherwise: {streamed}")
    return contract.the_tool(streamed.name, streamed.arguments)


def forced_tool(server: Server) -> dict[str, Any]:
    """Then its result is sent back, and answered with text."""
    choice = {"type": "function", "function": {"name": "Ferry"}}
    message = ask(server, tools=TOOLS, tool_choice=choice, max_tokens=contract.FORCED_TOKENS).choices[0].message
    call = message.tool_calls[0]
    hold(call.function.name == "Ferry", call.function.name)
    result = {"role": "tool", "tool_call_id": call.id, "content": contract.TOOL_RESULT}
    after = ask(server, tools=TOOLS, tool_choice="none", messages=[*contract.MESSAGES, message, result])
    hold(after.choices[0].message.content, "no text after the tool's result")
    return contract.the_tool(call.function.name, call.function.arguments)


def schema(server: Server) -> dict[str, Any]:
    answer = ask(server, response_format=Ferry, max_tokens=contract.FORCED_TOKENS)
    return {"parsed": Ferry.model_validate_json(answer.choices[0].message.content).model_dump()}


def n(server: Server) -> dict[str, Any]:
    answer = ask(server, n=2, temperature=1, seed=1)
    return {"indices": [choice.index for choice in answer.choices]}


def stop(server: Server) -> dict[str, Any]:
    answer = ask(server, stop=[contract.STOP])
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def logprobs(server: Server) -> dict[str, Any]:
    content = ask(server, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    return contract.checked_logprobs([(each.logprob, len(each.top_logprobs)) for each in content])


def wrong_model(server: Server) -> dict[str, Any]:
    call = lambda: ask(server, model=f"openai/{contract.OTHER_MODEL}")  # noqa: E731
    return contract.refusal(call, litellm.NotFoundError, said)


def too_long(server: Server) -> dict[str, Any]:
    """It has a class of its own for this one, chosen by the message."""
    messages = [{"role": "user", "content": contract.TOO_LONG}]
    return contract.refusal(lambda: ask(server, messages=messages), litellm.ContextWindowExceededError, said)


def said(error: openai.APIStatusError) -> tuple[int, object]:
    return error.status_code, error.code


def abort(server: Server) -> dict[str, Any]:
    with contract.aborted(server):
        chunks = ask(server, stream=True, extra_body=contract.ENDLESS, max_tokens=contract.ENDLESS_TOKENS)
        read = [chunk for _, chunk in zip(range(contract.NUM_READ), chunks, strict=False)]
        chunks.close()
    return {"num_read": len(read)}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, n, stop, logprobs, wrong_model, too_long, abort)
