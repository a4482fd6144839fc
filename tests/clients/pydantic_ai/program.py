"""Pydantic AI: agents with typed output; one request each where an agent would go on for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import contract
from contract import Ferry, Server, Weather, hold
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(server: Server, output: Any = str, *, model: str | None = None, **more: Any) -> Agent[None, Any]:
    settings = {"temperature": 0, "max_tokens": contract.MAX_TOKENS, **more}
    provider = OpenAIProvider(base_url=server.v1, api_key="none")
    return Agent(OpenAIChatModel(model or server.model, provider=provider), output_type=output, model_settings=settings)


def plain(server: Server) -> dict[str, Any]:
    found = agent(server).run_sync(contract.QUESTION)
    return {"text": found.output, "finish": found.response.finish_reason}


async def streamed(server: Server) -> tuple[str, Any]:
    async with agent(server).run_stream(contract.QUESTION) as answer:
        pieces = [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]
    hold(len(pieces) > contract.NUM_READ, "not streamed")
    return "".join(pieces), answer.usage


def stream(server: Server) -> dict[str, Any]:
    return {"text": asyncio.run(streamed(server))[0]}


def usage(server: Server) -> dict[str, Any]:
    found = asyncio.run(streamed(server))[1]
    found = found() if callable(found) else found
    return {"prompt_tokens": found.input_tokens, "completion_tokens": found.output_tokens}


def two_tools(server: Server) -> dict[str, Any]:
    """One tool for each kind of output; whole, and streamed."""
    union = agent(server, [Weather, Ferry], max_tokens=contract.FORCED_TOKENS, parallel_tool_calls=False)
    whole = union.run_sync(contract.QUESTION).output

    async def last() -> Any:
        async with union.run_stream(contract.QUESTION) as answer:
            return await answer.get_output()

    hold(asyncio.run(last()) == whole, "streamed otherwise")
    return contract.the_tool(type(whole).__name__, whole.model_dump())


def forced_tool(server: Server) -> dict[str, Any]:
    choice = ["Ferry"]
    kinds = [ToolOutput(Weather, name="Weather"), ToolOutput(Ferry, name="Ferry")]
    found = agent(server, kinds, max_tokens=contract.FORCED_TOKENS, tool_choice=choice).run_sync(contract.QUESTION)
    hold(isinstance(found.output, Ferry), f"{found.output}")
    return contract.the_tool("Ferry", found.output.model_dump())


def schema(server: Server) -> dict[str, Any]:
    found = agent(server, NativeOutput(Ferry), max_tokens=contract.FORCED_TOKENS).run_sync(contract.QUESTION).output
    hold(isinstance(found, Ferry), "not the client's model")
    return {"parsed": found.model_dump()}


def stop(server: Server) -> dict[str, Any]:
    found = agent(server, stop_sequences=[contract.STOP]).run_sync(contract.QUESTION)
    return {"text": found.output, "finish": found.response.finish_reason}


def logprobs(server: Server) -> dict[str, Any]:
    found = agent(server, openai_logprobs=True, openai_top_logprobs=2).run_sync(contract.QUESTION)
    content = found.response.provider_details["logprobs"]
    return contract.checked_logprobs([(each["logprob"], len(each["top_logprobs"])) for each in content])


def said(error: ModelHTTPError) -> tuple[int, object]:
    return error.status_code, error.body["code"]


def wrong_model(server: Server) -> dict[str, Any]:
    one = agent(server, model=contract.OTHER_MODEL)
    return contract.refusal(lambda: one.run_sync(contract.QUESTION), ModelHTTPError, said)


def too_long(server: Server) -> dict[str, Any]:
    return contract.refusal(lambda: agent(server).run_sync(contract.TOO_LONG), ModelHTTPError, said)


def abort(server: Server) -> dict[str, Any]:
    one = agent(server, max_tokens=contract.ENDLESS_TOKENS, extra_body=contract.ENDLESS)

    async def leave() -> int:
        with contract.aborted(server):
            async with one.run_stream(contract.QUESTION) as answer:
                pieces = answer.stream_text(delta=True, debounce_by=None)
                read = [await anext(pieces) for _ in range(contract.NUM_READ)]
                await answer.cancel()
        return len(read)

    return {"num_read": asyncio.run(leave())}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, stop, logprobs, wrong_model, too_long, abort)
