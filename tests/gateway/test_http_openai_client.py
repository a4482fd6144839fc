"""The official client reads our answers, streams and errors."""

from collections.abc import AsyncIterator, Awaitable, Callable

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseCompletedEvent, ResponseCreatedEvent

from gateway.errors import from_code
from gateway.http_settings import HttpSettings
from protocol.errors import Code
from tests.support.http_twin import Api, run, serving
from tests.support.scripted_dispatcher import EOS_ID, says

Talk = Callable[[AsyncOpenAI], Awaitable[None]]

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


def with_client(api: Api, talk: Talk, key: str = "right") -> None:
    """Let the client talk to a real server."""

    async def scenario() -> None:
        async with serving(api.app) as port:
            base = f"http://127.0.0.1:{port}/v1"
            async with AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
                await talk(client)

    run(scenario())


def test_a_chat_is_the_same_streamed_and_not() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        whole = await client.chat.completions.create(model="toy", messages=MESSAGES)
        assert whole.choices[0].message.content == "Paris is nice"
        assert whole.choices[0].message.tool_calls is None
        stream = await client.chat.completions.create(
            model="toy",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "Paris is nice"
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.to_dict() == whole.usage.to_dict()

    with_client(Api(says("Paris is nice", end=EOS_ID)), talk)


def test_log_probabilities_are_read() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        whole = await client.chat.completions.create(
            model="toy",
            messages=MESSAGES,
            logprobs=True,
            top_logprobs=2,
        )
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * len(logprobs.content)

    with_client(Api(says("abc", num_top=2)), talk)


def test_a_completion_and_the_models_are_read() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        whole = await client.completions.create(model="toy", prompt="hello")
        assert whole.choices[0].text == " world"
        stream = await client.completions.create(model="toy", prompt="hello", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == " world"
        assert [model.id async for model in client.models.list()] == ["toy"]

    with_client(Api(says(" world")), talk)


def test_errors_are_the_clients_own() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="other", prompt="hello")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="toy", prompt="hello", temperature=5)
        assert bad.value.param == "temperature"

    with_client(Api(), talk)


def test_a_wrong_key_is_an_authentication_error() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()

    with_client(Api(settings=HttpSettings(api_keys=("right",))), talk, key="wrong")


def test_an_error_in_mid_stream_is_raised() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        stream = await client.completions.create(model="toy", prompt="hello", stream=True)
        with pytest.raises(openai.APIError, match="gone"):
            await drained(stream)

    with_client(Api([*says("abc xyz")[:2], from_code(Code.WORKER_LOST, "gone")]), talk)


async def drained(stream: AsyncIterator[object]) -> None:
    """Read to the end."""
    async for _ in stream:
        pass


def test_a_response_in_the_background_is_left_and_taken_up_again() -> None:
    async def talk(client: AsyncOpenAI) -> None:
        stream = await client.responses.create(model="toy", input="hello", background=True, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if len(seen) == 4:
                break
        await stream.close()
        assert isinstance(seen[0], ResponseCreatedEvent)
        last = seen[-1].sequence_number
        rest = await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=last)
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert isinstance(seen[-1], ResponseCompletedEvent)
        assert seen[-1].response.output_text == "Paris is nice"

    with_client(Api(says("Paris is nice", end=EOS_ID)), talk)
