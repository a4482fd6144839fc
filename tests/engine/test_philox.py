"""Random numbers are the published generator's, and a function of seed, choice and position."""

import pytest

from engine.philox import philox4x32, uniform

ONES = 0xFFFFFFFF

# Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox4x32(counter, key) == words


def test_uniform_is_made_of_the_first_two_words() -> None:
    bits = ((0x6627E8D5 << 32) | 0xE169C58D) >> 11
    assert uniform(0, 0, 0) == (bits + 0.5) / 2**53


def test_uniform_depends_on_both_halves_of_the_seed_on_choice_and_on_position() -> None:
    base = (5, 1, 2)
    others = [(6, 1, 2), (5 + 2**32, 1, 2), (5, 2, 2), (5, 1, 3), (5, 2, 1)]
    assert uniform(*base) not in {uniform(*other) for other in others}


def test_uniform_is_above_zero_at_most_one_and_spread_evenly() -> None:
    numbers = [uniform(42, 0, position) for position in range(4000)]
    assert 0 < min(numbers) < 0.01
    assert 0.99 < max(numbers) <= 1
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
