"""A small tokenizer, made once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from bench.passages import Passages, _own_text


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer that knows some English, and splits most words."""
    text = _own_text()
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=ByteLevel.alphabet())
    tokenizer.train_from_iterator([text[:60_000]], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    assert json.loads(path.read_text())["model"]["type"] == "BPE"
    return path


@pytest.fixture(scope="session")
def passages(tokenizer_file: Path) -> Passages:
    """Passages of the generator's own text."""
    from bench.passages import load_passages

    return load_passages(tokenizer_file, None)
