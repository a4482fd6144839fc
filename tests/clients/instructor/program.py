"""Instructor around the official client: answers are models of the client's own, in each of its modes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import contract
import instructor
import openai
from contract import Ferry, Server, Weather, hold
from instructor.core import InstructorRetryException


def patched(server: Server, mode: instructor.Mode = instructor.Mode.TOOLS) -> Any:
    client = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def asked(server: Server, **more: Any) -> dict[str, Any]:
    """An empty ``response_model`` gives the answer as the official client parses it."""
    asked = {"model": server.model, "messages": contract.MESSAGES, "temperature": 0, "max_tokens": contract.MAX_TOKENS}
    return asked | {"response_model": None, "max_retries": 0} | more


def forced(server: Server, kind: Any, **more: Any) -> dict[str, Any]:
    return asked(server, response_model=kind, max_tokens=contract.FORCED_TOKENS, **more)


def plain(server: Server) -> dict[str, Any]:
    answer = patched(server).create(**asked(server))
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def stream(server: Server) -> dict[str, Any]:
    """Text, and a model that fills up as the tool call's arguments come."""
    chunks = list(patched(server).create(**asked(server, stream=True)))
    hold(len(chunks) > contract.NUM_READ, "not streamed")
    partial = list(patched(server).create_partial(**forced(server, Weather)))
    hold(len(partial) > 1 and Weather.model_validate(partial[-1].model_dump()), "not filled up")
    return {"text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks)}


def usage(server: Server) -> dict[str, Any]:
    *_, last = patched(server).create(**asked(server, stream=True, stream_options={"include_usage": True}))
    return {"prompt_tokens": last.usage.prompt_tokens, "completion_tokens": last.usage.completion_tokens}


def two_tools(server: Server) -> dict[str, Any]:
    """Its own way leaves the choice to the model (`auto`); here it is made to call one."""
    must = {"tool_choice": "required", "parallel_tool_calls": False}
    client = patched(server, instructor.Mode.PARALLEL_TOOLS)
    (found,) = client.create(**forced(server, Iterable[Weather | Ferry], extra_body=must))
    return contract.the_tool(type(found).__name__, found.model_dump())


def forced_tool(server: Server) -> dict[str, Any]:
    found = patched(server).create(**forced(server, Ferry))
    return contract.the_tool(type(found).__name__, found.model_dump())


def schema(server: Server) -> dict[str, Any]:
    found = patched(server, instructor.Mode.JSON_SCHEMA).create(**forced(server, Ferry))
    hold(isinstance(found, Ferry), "not the client's model")
    return {"parsed": found.model_dump()}


def n(server: Server) -> dict[str, Any]:
    answer = patched(server).create(**asked(server, n=2, temperature=1, seed=1))
    return {"indices": [choice.index for choice in answer.choices]}


def stop(server: Server) -> dict[str, Any]:
    answer = patched(server).create(**asked(server, stop=[contract.STOP]))
    return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}


def logprobs(server: Server) -> dict[str, Any]:
    """Beside a model: the whole completion comes with it."""
    _, answer = patched(server, instructor.Mode.JSON_SCHEMA).create_with_completion(
        **forced(server, Ferry, logprobs=True, top_logprobs=2)
    )
    content = answer.choices[0].logprobs.content
    return contract.checked_logprobs([(each.logprob, len(each.top_logprobs)) for each in content])


def said(error: InstructorRetryException | openai.APIStatusError) -> tuple[int, object]:
    while not isinstance(error, openai.APIStatusError):
        error = error.__cause__
    return error.status_code, error.code


def wrong_model(server: Server) -> dict[str, Any]:
    ask = forced(server, Ferry) | {"model": contract.OTHER_MODEL}
    return contract.refusal(lambda: patched(server).create(**ask), InstructorRetryException, said)


def too_long(server: Server) -> dict[str, Any]:
    ask = forced(server, Ferry) | {"messages": [{"role": "user", "content": contract.TOO_LONG}]}
    return contract.refusal(lambda: patched(server).create(**ask), InstructorRetryException, said)


def abort(server: Server) -> dict[str, Any]:
    ask = asked(server, stream=True, extra_body=contract.ENDLESS) | {"max_tokens": contract.ENDLESS_TOKENS}
    with contract.aborted(server), patched(server).create(**ask) as chunks:
        read = [chunk for _, chunk in zip(range(contract.NUM_READ), chunks, strict=False)]
    return {"num_read": len(read)}


contract.main(plain, stream, usage, two_tools, forced_tool, schema, n, stop, logprobs, wrong_model, too_long, abort)
