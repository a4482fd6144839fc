"""POST /v1/completions, streamed and not."""

from collections.abc import Sequence

from gateway.generation import Generation
from tests.support.http_twin import Api, text_of
from tests.support.scripted_dispatcher import EOS_ID, Step, ids_of, says


def repeats_its_prompt(generation: Generation) -> Sequence[Step]:
    """Each choice says the prompt."""
    return [step for choice in range(generation.num_choices) for step in says(generation.prompt_ids, choice=choice)]


def test_a_completion_is_text() -> None:
    body = Api(says(" world", end=EOS_ID)).complete().json()
    assert body["object"] == "text_completion"
    assert body["id"] == "cmpl-req0"
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" world", "stop")


def test_prompts_are_numbered_before_choices() -> None:
    api = Api(repeats_its_prompt)
    body = api.complete(prompt=["abc", "xyz"], n=2).json()
    said = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert said == [(0, "abc"), (1, "abc"), (2, "xyz"), (3, "xyz")]
    assert body["usage"]["prompt_tokens"] == len(ids_of("abc")) + len(ids_of("xyz"))
    assert body["usage"]["completion_tokens"] == 2 * body["usage"]["prompt_tokens"]


def test_all_forms_of_a_prompt_are_taken() -> None:
    for prompt, sent in (
        ("abc", [ids_of("abc")]),
        (["abc", "xyz"], [ids_of("abc"), ids_of("xyz")]),
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ):
        api = Api(repeats_its_prompt)
        assert api.complete(prompt=prompt).status_code == 200
        assert [generation.prompt_ids for generation in api.dispatcher.generations] == sent


def test_a_stream_of_several_prompts_says_each_in_its_own_choice() -> None:
    events = Api(repeats_its_prompt).complete_events(prompt=["abc", "xyz"], stream_options={"include_usage": True})
    assert (text_of(events, 0), text_of(events, 1)) == ("abc", "xyz")
    ends = [part["index"] for event in events for part in event["choices"] if part["finish_reason"]]
    assert sorted(ends) == [0, 1]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] == len(ids_of("abc")) + len(ids_of("xyz"))


def test_a_completion_has_sixteen_tokens_by_default_and_a_chat_the_rest() -> None:
    api = Api(says("abc"))
    api.complete(prompt=[5] * 12)
    api.complete(prompt=[5] * 506)
    api.chat(messages=[{"role": "user", "content": ""}])
    limits = [generation.sampling.max_tokens for generation in api.dispatcher.generations]
    num_prompt = len(api.dispatcher.generations[2].prompt_ids)
    assert limits == [16, 6, 512 - num_prompt]
