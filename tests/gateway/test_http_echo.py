"""Prompts told back: echoed, and with what they were worth."""

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.generation import Generation, Update
from protocol.sampling import TokenLogprob
from tests.support.http_twin import COMPLETIONS, Api
from tests.support.scripted_dispatcher import Step, ids_of, says, small_model

PROMPT = "The capital of France"
LOGPROB = TokenLogprob(-0.5, (7, 8), (-0.1, -0.2))


def text_of_ids(token_id: int) -> str:
    return small_model().tokenizer.token_bytes(token_id).decode()


def scores_or_says(text: str, pieces: int = 3) -> Any:
    """A worker that scores prompts in a few pieces, and says ``text`` to others."""

    def script(generation: Generation) -> Iterable[Step]:
        forced = generation.sampling.forced_ids
        if not forced:
            num_top = None if generation.sampling.logprobs < 0 else generation.sampling.logprobs
            choices = range(generation.num_choices)
            return [step for choice in choices for step in says(text, choice=choice, num_top=num_top)]
        assert generation.sampling.max_tokens == len(forced)
        size = max(1, len(forced) // pieces)
        parts = [(first, forced[first : first + size]) for first in range(0, len(forced), size)]
        return [
            Update(0, first, part, (LOGPROB,) * len(part), "length" if first + len(part) == len(forced) else "", -1)
            for first, part in parts
        ]

    return script


def complete(api: Api, **fields: Any) -> dict[str, Any]:
    response = api.request("POST", COMPLETIONS, json={"prompt": PROMPT, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


def test_an_echo_is_the_prompt_before_the_answer() -> None:
    api = Api(scores_or_says(" is Paris"))
    [choice] = complete(api, echo=True)["choices"]
    assert choice["text"] == PROMPT + " is Paris"
    assert choice["logprobs"] is None
    assert len(api.dispatcher.generations) == 1


def test_an_echo_with_probabilities_has_those_of_the_prompt_first() -> None:
    api = Api(scores_or_says(" is Paris"))
    [choice] = complete(api, echo=True, logprobs=2)["choices"]
    told, prompt_ids = choice["logprobs"], ids_of(PROMPT)
    assert told["tokens"][: len(prompt_ids)] == [text_of_ids(each) for each in prompt_ids]
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert told["token_logprobs"][1 : len(prompt_ids)] == [-0.5] * (len(prompt_ids) - 1)
    assert len({len(values) for values in told.values()}) == 1
    for offset, token in zip(told["text_offset"], told["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_nothing_but_the_prompt_asks_for_nothing_but_its_scores() -> None:
    """Replays vllm #6521."""
    api = Api(scores_or_says("never"))
    body = complete(api, echo=True, max_tokens=0, logprobs=1)
    [choice] = body["choices"]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(PROMPT))
    assert body["usage"]["completion_tokens"] == 0
    assert body["id"].startswith("cmpl-req")
    [generation] = api.dispatcher.generations
    assert generation.sampling.forced_ids == ids_of(PROMPT)[1:]
    api = Api(scores_or_says("never"))
    assert complete(api, echo=True, max_tokens=0)["choices"][0]["text"] == PROMPT
    assert not api.dispatcher.generations


def test_each_prompt_and_each_choice_has_its_own() -> None:
    api = Api(scores_or_says("!"))
    body = complete(api, prompt=["abc", "hello"], n=2, echo=True, logprobs=1)
    assert [choice["text"] for choice in body["choices"]] == ["abc!", "abc!", "hello!", "hello!"]
    for choice in body["choices"]:
        assert len(choice["logprobs"]["tokens"]) == len(ids_of(choice["text"][:-1])) + 1


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_a_stream_begins_with_the_prompt(max_tokens: int) -> None:
    api = Api(scores_or_says(" is Paris"))
    events = api.complete_events(prompt=PROMPT, echo=True, logprobs=1, max_tokens=max_tokens)
    whole = complete(Api(scores_or_says(" is Paris")), echo=True, logprobs=1, max_tokens=max_tokens)["choices"][0]
    assert events[0]["choices"][0]["text"] == PROMPT
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    for key, values in whole["logprobs"].items():
        streamed = [value for event in events for value in (event["choices"][0]["logprobs"] or {key: []})[key]]
        assert streamed == values
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_prompt_logprobs_are_told_by_id() -> None:
    prompt_ids = ids_of(PROMPT)
    [choice] = complete(Api(scores_or_says("!")), prompt_logprobs=2)["choices"]
    told = choice["prompt_logprobs"]
    assert told[0] is None
    assert len(told) == len(prompt_ids)
    assert told[1]["7"] == {"logprob": -0.1, "rank": 1, "decoded_token": text_of_ids(7)}
    assert told[1][str(prompt_ids[1])]["logprob"] in (-0.5, -0.1, -0.2)
    assert choice["text"] == "!"
    api = Api(scores_or_says("!"))
    chat = api.chat(prompt_logprobs=0).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    api = Api(scores_or_says("!"))
    [choice] = complete(api, prompt=[5], echo=True, logprobs=0)["choices"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(api.dispatcher.generations) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"echo": "yes"}, "echo"),
    ],
)
def test_what_cannot_be_told_is_refused(fields: dict[str, Any], param: str) -> None:
    response = Api().request("POST", COMPLETIONS, json={"prompt": PROMPT, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    error = Api().chat(echo=True).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "echo")


def test_a_model_is_looked_up_before_anything_is_scored() -> None:
    api = Api(scores_or_says("!"), model=small_model())
    response = api.request("POST", COMPLETIONS, json={"prompt": PROMPT, "model": "no", "prompt_logprobs": 1})
    assert response.status_code == 404
    assert not api.dispatcher.generations


def test_each_field_tells_as_many_alternatives_as_it_asked_for() -> None:
    [choice] = complete(Api(scores_or_says("!")), echo=True, logprobs=1, prompt_logprobs=2)["choices"]
    assert set(choice["logprobs"]["top_logprobs"][1]) >= {text_of_ids(7)}
    assert text_of_ids(8) not in choice["logprobs"]["top_logprobs"][1]
    assert {"7", "8"} <= set(choice["prompt_logprobs"][1])
    [choice] = complete(Api(scores_or_says("!")), logprobs=2, prompt_logprobs=0)["choices"]
    assert set(choice["prompt_logprobs"][1]) == {str(ids_of(PROMPT)[1])}
