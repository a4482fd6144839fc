"""LangChain's ChatOpenAI: messages, bound tools and structured output as agents use them."""

from __future__ import annotations

from typing import Any

import contract
import langchain_core.exceptions
import openai
from contract import Ferry, Server, Weather, hold
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def chat(server: Server, **more: Any) -> ChatOpenAI:
    asked = {"model": server.model, "temperature": 0, "max_tokens": contract.MAX_TOKENS, "max_retries": 0}
    return ChatOpenAI(base_url=server.v1, api_key="none", **(asked | more))


def plain(server: Server) -> dict[str, Any]:
    answer = chat(server).invoke(contract.QUESTION)
    return {"text": answer.content, "finish": answer.response_metadata["finish_reason"]}


def stream(server: Server) -> dict[str, Any]:
    chunks = list(chat(server).stream(contract.QUESTION))
    hold(len(chunks) > contract.NUM_READ, "not streamed")
    return {"text": "".join(chunk.content for chunk in chunks)}


def usage(server: Server) -> dict[str, Any]:
    chunks = list(chat(server, stream_usage=True).stream(contract.QUESTION))
    (found,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    return {"prompt_tokens": found["input_tokens"], "completion_tokens": found["output_tokens"]}


def two_tools(server: Server) -> dict[str, Any]:
    """Whole, and streamed: chunks add up to the same message."""
    model = chat(server, max_tokens=contract.FORCED_TOKENS)
    bound = model.bind_tools([Weather, Ferry], tool_choice="any", parallel_tool_calls=False)
    (whole,) = bound.invoke(contract.QUESTION).tool_calls
    first, *others = bound.stream(contract.QUESTION)
    for chunk in others:
        first += chunk
    (streamed,) = first.tool_calls
    hold((streamed["name"], streamed["args"]) == (whole["name"], whole["args"]), f"streamed otherwise: {streamed}")
    return contract.the_tool(streamed["name"], streamed["args"])


def forced_tool(server: Server) -> dict[str, Any]:
    """Then its result is sent back, and answered with text."""
    model = chat(server, max_tokens=contract.FORCED_TOKENS)
    message = model.bind_tools([Weather, Ferry], tool_choice="Ferry").invoke(contract.QUESTION)
    (call,) = message.tool_calls
    hold(call["name"] == "Ferry", call["name"])
    after = [HumanMessage(contract.QUESTION), message, ToolMessage(contract.TOOL_RESULT, tool_call_id=call["id"])]
    hold(chat(server).bind_tools([Ferry], tool_choice="none").invoke(after).content, "no text after the tool's result")
    return contract.the_tool(call["name"], call["args"])


def schema(server: Server) -> dict[str, Any]:
    """Each of its methods."""
    model = chat(server, max_tokens=contract.FORCED_TOKENS)
    found = model.with_structured_output(Ferry, method="json_schema").invoke(contract.QUESTION)
    hold(isinstance(found, Ferry), "not the client's model")
    called = model.with_structured_output(Ferry, method="function_calling").invoke(contract.QUESTION)
    hold(isinstance(called, Ferry), "not the client's model, by a function's call")
    return {"parsed": found.model_dump()}


def n(server: Server) -> dict[str, Any]:
    answers = chat(server, n=2, temperature=1, seed=1).generate([[HumanMessage(contract.QUESTION)]])
    return {"indices": list(range(len(answers.generations[0])))}


def stop(server: Server) -> dict[str, Any]:
    answer = chat(server).invoke(contract.QUESTION, stop=[contract.STOP])
    return {"text": answer.content, "finish": answer.response_metadata["finish_reason"]}


def logprobs(server: Server) -> dict[str, Any]:
    answer = chat(server, logprobs=True, top_logprobs=2).invoke(contract.QUESTION)
    content = answer.response_metadata["logprobs"]["content"]
    return contract.checked_logprobs([(each["logprob"], len(each["top_logprobs"])) for each in content])


def said(error: openai.APIStatusError) -> tuple[int, object]:
    return error.status_code, error.code


def wrong_model(server: Server) -> dict[str, Any]:
    call = lambda: chat(server, model=contract.OTHER_MODEL).invoke(contract.QUESTION)  # noqa: E731
    return contract.refusal(call, langchain_core.exceptions.ModelNotFoundError, said)


def too_long(server: Server) -> dict[str, Any]:
    """It has a class of its own for this one, chosen by the message."""
    kind = langchain_core.exceptions.ContextOverflowError
    return contract.refusal(lambda: chat(server).invoke(contract.TOO_LONG), kind, said)


def abort(server: Server) -> dict[str, Any]:
    model = chat(server, max_tokens=contract.ENDLESS_TOKENS, extra_body=contract.ENDLESS)
    with contract.aborted(server):
        chunks = model.stream(contract.QUESTION)
        read = [chunk for _, chunk in zip(range(contract.NUM_READ), chunks, strict=False)]
        chunks.close()
    return {"num_read": len(read)}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, n, stop, logprobs, wrong_model, too_long, abort)
