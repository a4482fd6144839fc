"""Prompts are real text of exactly the asked length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.passages import Passages, load_passages


@pytest.mark.parametrize("length", [1, 2, 16, 257, 2000])
def test_a_passage_has_exactly_the_asked_number_of_tokens(passages: Passages, length: int) -> None:
    rng = random.Random(length)
    for _ in range(5):
        assert passages.count(passages.cut(length, rng)) == length


def test_passages_of_one_lead_share_its_tokens_and_add_exactly_their_own(passages: Passages) -> None:
    rng = random.Random(3)
    lead = passages.cut(100, rng)
    first, second = (passages.cut(32, rng, lead) for _ in range(2))
    assert passages.count(first) == passages.count(second) == 132
    assert passages._encode(first).ids[:100] == passages._encode(second).ids[:100] == passages._encode(lead).ids
    assert first != second


def test_a_seed_gives_its_passages_again_and_another_seed_gives_others(passages: Passages) -> None:
    texts = [passages.cut(40, random.Random(seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_passages_come_from_the_given_file(tokenizer_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("salt and pepper " * 200)
    passage = load_passages(tokenizer_file, text).cut(50, random.Random(0))
    assert passage[:40] in "salt and pepper " * 4


def test_text_beyond_ascii_is_cut_between_characters(tokenizer_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("größe naïve 東京 ещё " * 300, encoding="utf-8")
    found = load_passages(tokenizer_file, text)
    for seed in range(10):
        passage = found.cut(60, random.Random(seed))
        assert found.count(passage) == 60
        assert "�" not in passage


@pytest.mark.parametrize("content", ["", "only a few words"])
def test_a_text_that_is_too_short_is_refused_in_one_line(tokenizer_file: Path, tmp_path: Path, content: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text(content)
    with pytest.raises(BenchError, match="too few for prompts of 100 tokens"):
        load_passages(tokenizer_file, text).cut(100, random.Random(0))


def test_a_missing_or_broken_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is no file"):
        load_passages(tmp_path, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BenchError, match="can't be read"):
        load_passages(tmp_path, None)
