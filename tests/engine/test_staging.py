"""A model whose cache isn't the pool's memory: what is shipped was fetched, what was landed is placed."""

from __future__ import annotations

import pytest

from engine.api import ChoiceTail
from engine.staging import Staging
from tests.support.engine_rig import SEEDED, HandOver, Rig, generate, prompt


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("length", [5, 16, 100])
def test_a_hand_over_between_two_devices_gives_the_tokens_of_one(length: int, num_choices: int) -> None:
    choices = tuple(ChoiceTail(c) for c in range(num_choices))
    whole = generate(Rig(), prompt(length), SEEDED, choices=choices)
    apart = [Rig(staging=lambda memory: Staging(memory, apart=True)) for _ in range(2)]
    assert HandOver(*apart, prompt(length), SEEDED, choices).whole() == whole
