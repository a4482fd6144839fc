"""What a body's sampling fields become for the workers."""

from typing import Any

import pytest

from protocol.sampling import Sampling
from tests.support.http_twin import Api
from tests.support.scripted_dispatcher import EOS_ID, says


def sampling_for(**fields: Any) -> Sampling:
    """Return what reaches the dispatcher."""
    api = Api(says("abc"))
    assert api.chat(**fields).status_code == 200
    return api.dispatcher.generations[0].sampling


def test_every_field_reaches_the_workers() -> None:
    same: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 7,
        "min_tokens": 2,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    assert sampling_for(**same, logit_bias={"7": -100, "9": 1.5}, stop_token_ids=[9]) == Sampling(
        **same,
        logit_bias=((7, -100.0), (9, 1.5)),
        eos_ids=(EOS_ID,),
        stop_token_ids=(9,),
    )


def test_defaults_are_those_of_openai() -> None:
    sampling = sampling_for(seed=0, max_tokens=5)
    assert sampling == Sampling(eos_ids=(EOS_ID,), max_tokens=5)


@pytest.mark.parametrize(("given", "sent"), [(-1, 2**64 - 1), (0, 0), (2**63 - 1, 2**63 - 1), (-(2**63), 2**63)])
def test_a_seed_is_sixty_four_bits(given: int, sent: int) -> None:
    assert sampling_for(seed=given).seed == sent


def test_without_a_seed_each_request_draws_its_own() -> None:
    seeds = {sampling_for().seed for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_the_newer_limit_wins() -> None:
    assert sampling_for(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_a_top_k_of_minus_one_is_off() -> None:
    assert sampling_for(top_k=-1).top_k == 0


@pytest.mark.parametrize(
    ("fields", "sent"), [({}, -1), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)]
)
def test_the_number_of_alternatives(fields: dict[str, Any], sent: int) -> None:
    num_top = None if sent < 0 else sent
    api = Api(says("abc", num_top=num_top))
    assert api.chat(**fields).status_code == 200
    assert api.dispatcher.generations[0].sampling.logprobs == sent


def test_several_greedy_choices_are_allowed() -> None:
    api = Api([*says("abc", choice=0), *says("abc", choice=1)])
    body = api.chat(temperature=0, n=2).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["abc", "abc"]


def test_the_salt_is_handed_on() -> None:
    api = Api(says("abc"))
    api.chat(cache_salt="tenant")
    assert api.dispatcher.generations[0].cache_salt == "tenant"


def test_without_a_limit_the_answer_may_fill_the_context_that_workers_can_hold() -> None:
    """Small pools shorten the context: asking for the model's whole one would be refused everywhere."""
    api = Api(says("abc"))
    longest = api.chat().json()["usage"]["prompt_tokens"] + 11
    api.dispatcher.longest = longest
    assert api.chat().status_code == 200
    assert api.dispatcher.generations[-1].sampling.max_tokens == 11
    assert api.get("/v1/models").json()["data"][0]["max_model_len"] == longest
    assert api.chat(max_tokens=12).status_code == 400


@pytest.mark.parametrize(("given", "sent"), [(0, 0.0), (5e-324, 0.0), (1e-4, 0.0), (1e-3, 1e-3), (2, 2.0)])
def test_a_temperature_near_zero_is_zero(given: float, sent: float) -> None:
    """Replays vllm #2937, vllm #1623."""
    assert sampling_for(temperature=given).temperature == sent
