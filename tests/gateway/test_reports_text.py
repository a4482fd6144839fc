"""Public bug reports, replayed on real workers with a toy model: text, streams, log probabilities, parameters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.front_rig import all_done
from tests.support.scripted_dispatcher import EOS_ID, ids_of, small_tokenizer
from tests.support.serving import ONE, SPLIT, Serving, joined, served

WORLD = "naïve 你好 🦀 👩‍👩‍👧 ह"
LETTERS = "ABCDEFGHIJKL"
STREAMS = pytest.mark.parametrize("stream", [False, True])


def const(text: str) -> dict[str, Any]:
    """Whatever the model would say, it says this."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 200}


@pytest.mark.parametrize("temperature", [0, 1])
def test_characters_of_several_tokens_come_whole(temperature: float) -> None:
    """Replays llama.cpp #4036, llama-cpp-python #372, tensai #110: replacement marks in streams."""

    async def work(s: Serving) -> None:
        call = await s.chat(stream=True, temperature=temperature, **const(WORLD)).done()
        streamed = joined(call, "chat")
        assert streamed["text"] == WORLD
        assert all("\ufffd" not in (delta.get("content") or "") for delta in streamed["messages"])
        assert len(streamed["messages"]) > 10
        for message in call.sent[1:]:
            message.get("body", b"").decode()
        assert (await s.chatted(temperature=temperature, **const(WORLD)))["text"] == WORLD

    served(work)


@STREAMS
def test_no_part_of_a_stop_string_is_seen(stream: bool) -> None:
    """Replays vllm #3574: its first part had been streamed when its last token came."""

    async def work(s: Serving) -> None:
        for said in (
            await s.completed(stop="DEFGHIJ", stream=stream, **const(LETTERS)),
            await s.chatted(stop="DEFGHIJ", stream=stream, **const(LETTERS)),
        ):
            assert (said["text"], said["finish_reason"]) == ("ABC", "stop")

    served(work)


def test_stop_strings_are_the_same_split_and_on_one_worker() -> None:
    """Replays vllm #57052: stop strings leaked where another process than the generator makes text."""
    seen = [small_tokenizer().decode([each]) for each in ids_of("abc xyz")]

    async def work(s: Serving) -> list[dict[str, Any]]:
        plain = await s.completed(max_tokens=40, ignore_eos=True)
        stop = ["\n", "END", plain["text"][20:23], *seen]
        return [plain, *[await s.completed(max_tokens=40, stop=stop, stream=stream) for stream in (False, True)]]

    (split, stopped, streamed), alone = served(work), served(work, *ONE)
    for ours, theirs in zip((split, stopped, streamed), alone, strict=True):
        assert [ours[key] for key in ("text", "finish_reason")] == [theirs[key] for key in ("text", "finish_reason")]
        assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == streamed["text"] == split["text"][: len(stopped["text"])]
    assert stopped["usage"]["completion_tokens"] < 40


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_usage_of_a_stream_has_a_chunk_of_its_own(path: str) -> None:
    """Replays llama.cpp #15443: it came on a chunk that also had a choice."""

    async def work(s: Serving) -> None:
        events = (await getattr(s, path)(stream=True, n=2, stream_options={"include_usage": True}).done()).events
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 16
        assert all(event["choices"] and event.get("usage") is None for event in events[:-1])

    served(work)


def test_three_streamed_choices_end_once_each_and_say_what_they_say_whole() -> None:
    """Replays sglang #8417: the finish reason came twice, or only for the last choice."""
    fields: dict[str, Any] = {"n": 3, "max_tokens": 5, "temperature": 1, "seed": 4, "ignore_eos": True}

    async def work(s: Serving) -> None:
        streamed = await s.chat(stream=True, **fields).done()
        whole = await s.chat(**fields).done()
        said = [joined(streamed, "chat", choice) for choice in range(3)]
        assert [each["text"] for each in said] == [joined(whole, "chat", choice)["text"] for choice in range(3)]
        assert [each["finish_reason"] for each in said] == ["length"] * 3
        assert len({(event["id"], event["created"], event["model"]) for event in streamed.events}) == 1
        assert all(each["messages"][0]["role"] == "assistant" for each in said)

    served(work)


# -- log probabilities, echo -------------------------------------------------------------------------


def test_log_probabilities_may_be_asked_for_without_alternatives() -> None:
    """Replays vllm #4795."""

    async def work(s: Serving) -> None:
        body = (await s.chat(logprobs=True, max_tokens=3, ignore_eos=True).done()).json
        entries = body["choices"][0]["logprobs"]["content"]
        assert len(entries) == 3
        assert all(set(entry) >= {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
        assert all(entry["top_logprobs"] == [] for entry in entries)

    served(work)


@pytest.mark.parametrize("seed", range(3))
def test_every_alternative_has_a_name_and_the_chosen_ones_value(seed: int) -> None:
    """Replays vllm #9463, vllm #17421: end of text and other special tokens came as nothing at all."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 20, "temperature": 1, "seed": seed}
    named = f"{small_tokenizer().entry(EOS_ID)}"

    async def work(s: Serving) -> None:
        body = (await s.chat(logit_bias={"2": 2}, **fields).done()).json
        entries = body["choices"][0]["logprobs"]["content"]
        assert entries
        for entry in entries:
            top = entry["top_logprobs"]
            assert len(top) == 20
            assert [each["logprob"] for each in top] == sorted((each["logprob"] for each in top), reverse=True)
            assert all(each["token"] and each["bytes"] for each in top)
            same = [each for each in top if (each["token"], each["bytes"]) == (entry["token"], entry["bytes"])]
            assert all(each["logprob"] == entry["logprob"] for each in same)
        ended = (await s.chat(logit_bias={"2": 100}, **fields).done()).json["choices"][0]
        assert ended["finish_reason"] == "stop"
        [last] = ended["logprobs"]["content"]
        assert (last["token"], bytes(last["bytes"]).decode()) == (named, named)

    served(work)


@pytest.mark.parametrize("workers", [SPLIT, ONE], ids=["split", "one"])
def test_a_prompt_that_is_only_scored_is_told_and_kills_nothing(workers: tuple[str, ...]) -> None:
    """Replays vllm #6521: echo, no token to make and log probabilities ended the server."""

    async def work(s: Serving) -> list[float]:
        body = (await s.complete(prompt="Your answer: Yes", echo=True, max_tokens=0, logprobs=1).done()).json
        [choice] = body["choices"]
        told = choice["logprobs"]
        assert choice["text"] == "Your answer: Yes"
        assert told["token_logprobs"][0] is None
        assert all(value <= 0 for value in told["token_logprobs"][1:])
        assert len(told["tokens"]) == body["usage"]["prompt_tokens"] == len(ids_of("Your answer: Yes"))
        assert body["usage"]["completion_tokens"] == 0
        found = told["token_logprobs"][1:]
        assert isinstance(found, list)
        return found

    assert served(work, *workers) == served(work)


# -- parameters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, -1, None, 2**64 - 1, -(2**63)])
def test_seeds_of_64_bits_make_tokens(seed: int | None) -> None:
    """Replays vllm #4529: one ended the engine."""

    async def work(s: Serving) -> None:
        said = [await s.chatted(seed=seed, temperature=1, ignore_eos=True) for _ in range(2)]
        assert said[0]["usage"]["completion_tokens"] == 8
        assert (said[0]["text"] == said[1]["text"]) is (seed is not None)

    served(work)


def test_a_bias_outside_the_vocabulary_harms_nobody() -> None:
    """Replays vllm #16529, sglang #7670: it took the engine down."""
    fields: dict[str, Any] = {"stream": True, "max_tokens": 200, "ignore_eos": True}

    async def work(s: Serving) -> None:
        calm = (await s.chatted(**fields))["text"]
        beside = [s.chat(**fields) for _ in range(2)]
        vocab = small_tokenizer().vocab_size
        for bias in ({str(vocab): 1}, {str(10**9): 1}, {"-1": 1}, {"abc": 1}, {"5": 500}):
            call = await s.chat(logit_bias=bias).done()
            assert (call.status, call.error["param"]) == (400, "logit_bias")
        assert (await s.chat(logit_bias={str(vocab - 1): 100}).done()).status == 200
        await all_done(beside)
        assert [joined(call, "chat")["text"] for call in beside] == [calm] * 2

    served(work)


def test_a_tiny_temperature_is_greedy() -> None:
    """Replays vllm #2937, vllm #1623: empty text, or numbers that weren't."""

    async def work(s: Serving) -> None:
        said = [
            (await s.completed(temperature=temperature, max_tokens=30, ignore_eos=True))["text"]
            for temperature in (0, 1e-4, 1e-30, 5e-324)
        ]
        assert said[0]
        assert said == [said[0]] * 4

    served(work)


@STREAMS
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_the_token_of_the_prefill_worker_is_handed_on(max_tokens: int, stream: bool) -> None:
    """Replays dynamo #3443: with one token asked for none came, with two one."""

    async def work(s: Serving) -> str:
        said = await s.chatted(max_tokens=max_tokens, ignore_eos=True, stream=stream)
        assert (said["usage"]["completion_tokens"], said["finish_reason"]) == (max_tokens, "length")
        text = said["text"]
        assert isinstance(text, str)
        return text

    assert served(work) == served(work, *ONE)


@STREAMS
def test_a_least_number_of_tokens_is_one_over_both_legs(stream: bool) -> None:
    """Replays dynamo #11408: the prefill leg, of one token, was refused for it."""
    fields: dict[str, Any] = {"min_tokens": 5, "max_tokens": 10, "logit_bias": {str(EOS_ID): 100}, "stream": stream}

    async def work(s: Serving) -> None:
        said = await s.chatted(**fields)
        assert said["usage"]["completion_tokens"] == 6, "five, and the end that was kept back until then"
        assert said["finish_reason"] == "stop"

    served(work)


def test_a_seed_gives_the_same_tokens_whoever_asked_before_or_asks_beside() -> None:
    """Replays text-generation-inference #2670: another answer where a prefix was cached."""
    prefix = "The quick brown fox jumps over the lazy dog. " * 4
    fields: dict[str, Any] = {"seed": 7, "temperature": 1, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}

    async def work(s: Serving) -> None:
        said = [await s.complete(prompt=prefix, cache_salt="alone", **fields).done()]
        for end in ("Paris", "hello", "ABC"):
            await s.complete(prompt=prefix + end).done()
        said.append(await s.complete(prompt=prefix, **fields).done())
        others = [s.complete(prompt=prefix + "abc" * k, temperature=1, max_tokens=30 + k) for k in range(8)]
        await asyncio.sleep(0.001)
        amid = s.complete(prompt=prefix, **fields)
        await all_done([*others, amid])
        said.append(amid)
        assert said[1].json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        choices = [each.json["choices"][0] for each in said]
        assert choices == [choices[0]] * 3

    served(work)
