"""LlamaIndex's OpenAILike, as a chat model that can call functions."""

from __future__ import annotations

import gc
from typing import Any

import contract
import openai
from contract import Ferry, Server, Weather, hold
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

ASKED = [ChatMessage(role="user", content=contract.QUESTION)]


def tool(kind: type[Weather | Ferry]) -> FunctionTool:
    return FunctionTool.from_defaults(
        lambda **_: contract.TOOL_RESULT, name=kind.__name__, description=kind.__doc__, fn_schema=kind
    )


TOOLS = [tool(Weather), tool(Ferry)]


def model(server: Server, **more: Any) -> OpenAILike:
    asked = {"model": server.model, "temperature": 0, "max_tokens": contract.MAX_TOKENS, "max_retries": 0}
    asked |= {"is_chat_model": True, "is_function_calling_model": True, "api_base": server.v1, "api_key": "none"}
    return OpenAILike(**(asked | more))


def plain(server: Server) -> dict[str, Any]:
    answer = model(server).chat(ASKED)
    return {"text": answer.message.content, "finish": answer.raw.choices[0].finish_reason}


def stream(server: Server) -> dict[str, Any]:
    chunks = list(model(server).stream_chat(ASKED))
    hold(len(chunks) > contract.NUM_READ, "not streamed")
    hold("".join(chunk.delta for chunk in chunks) == chunks[-1].message.content, "pieces and whole differ")
    return {"text": chunks[-1].message.content}


def usage(server: Server) -> dict[str, Any]:
    *_, last = model(server).stream_chat(ASKED, stream_options={"include_usage": True})
    counts = last.additional_kwargs
    return {"prompt_tokens": counts["prompt_tokens"], "completion_tokens": counts["completion_tokens"]}


def two_tools(server: Server) -> dict[str, Any]:
    """Whole, and streamed."""
    one = model(server, max_tokens=contract.FORCED_TOKENS)
    (whole,) = one.get_tool_calls_from_response(one.chat_with_tools(TOOLS, contract.QUESTION, tool_required=True))
    *_, last = one.stream_chat_with_tools(TOOLS, contract.QUESTION, tool_required=True)
    (streamed,) = one.get_tool_calls_from_response(last)
    hold(streamed.tool_kwargs == whole.tool_kwargs, f"streamed otherwise: {streamed}")
    return contract.the_tool(whole.tool_name, whole.tool_kwargs)


def forced_tool(server: Server) -> dict[str, Any]:
    """Then its result is sent back, and answered with text."""
    one = model(server, max_tokens=contract.FORCED_TOKENS)
    answer = one.chat_with_tools(TOOLS, contract.QUESTION, tool_choice="Ferry")
    (call,) = one.get_tool_calls_from_response(answer)
    hold(call.tool_name == "Ferry", call.tool_name)
    result = ChatMessage(
        role="tool", content=contract.TOOL_RESULT, additional_kwargs={"tool_call_id": call.tool_id, "name": "Ferry"}
    )
    after = one.chat_with_tools(TOOLS, chat_history=[*ASKED, answer.message, result], tool_choice="none")
    hold(after.message.content, "no text after the tool's result")
    return contract.the_tool(call.tool_name, call.tool_kwargs)


def schema(server: Server) -> dict[str, Any]:
    one = model(server, max_tokens=contract.FORCED_TOKENS, should_use_structured_outputs=True)
    found = one.structured_predict(Ferry, PromptTemplate(contract.QUESTION))
    hold(isinstance(found, Ferry), "not the client's model")
    return {"parsed": found.model_dump()}


def stop(server: Server) -> dict[str, Any]:
    answer = model(server).chat(ASKED, stop=[contract.STOP])
    return {"text": answer.message.content, "finish": answer.raw.choices[0].finish_reason}


def logprobs(server: Server) -> dict[str, Any]:
    answer = model(server, logprobs=True, top_logprobs=2).chat(ASKED)
    return contract.checked_logprobs([(of_token[0].logprob, len(of_token)) for of_token in answer.logprobs])


def said(error: openai.APIStatusError) -> tuple[int, object]:
    return error.status_code, error.code


def wrong_model(server: Server) -> dict[str, Any]:
    call = lambda: model(server, model=contract.OTHER_MODEL).chat(ASKED)  # noqa: E731
    return contract.refusal(call, openai.NotFoundError, said)


def too_long(server: Server) -> dict[str, Any]:
    messages = [ChatMessage(role="user", content=contract.TOO_LONG)]
    return contract.refusal(lambda: model(server).chat(messages), openai.BadRequestError, said)


def abort(server: Server) -> dict[str, Any]:
    one = model(server, max_tokens=contract.ENDLESS_TOKENS, additional_kwargs={"extra_body": contract.ENDLESS})
    with contract.aborted(server):
        chunks = one.stream_chat(ASKED)
        read = [chunk for _, chunk in zip(range(contract.NUM_READ), chunks, strict=False)]
        chunks.close()
        gc.collect()  # its wrappers keep the stream in a cycle; until then the request runs on
    return {"num_read": len(read)}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, stop, logprobs, wrong_model, too_long, abort)
