"""The default model's tokenizer and template, against transformers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.detokenizer import Detokenizer
from gateway.served_model import ServedModel, load_served_model

pytestmark = pytest.mark.model

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve 🦀"}],
    [
        {"role": "user", "content": "  A\n\n"},
        {"role": "assistant", "content": "B <b>&amp;</b>"},
        {"role": "user", "content": "{{ 7 * 7 }} <|im_end|>"},
    ],
]

TEXTS = (
    "naïve 你好 🦀 👩‍👩‍👧 ह",
    "مرحبا بالعالم، كيف حالك؟",
    "def f(x):\n\treturn x ** 2  # π\n\n\n",
    "日本語のテキスト、한국어 텍스트 🇫🇷🏳️‍🌈",
    "1234567890 <|im_end|> tail",
)


@pytest.fixture(scope="module")
def model(model_dir: Path) -> ServedModel:
    return load_served_model(model_dir)


@pytest.fixture(scope="module")
def theirs(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("generation", [True, False])
def test_prompts_equal_those_of_transformers(
    model: ServedModel, theirs: Any, chat: list[dict[str, Any]], generation: bool
) -> None:
    assert model.template is not None
    text = model.template.render(chat, add_generation_prompt=generation)
    options = {"add_generation_prompt": generation, "tokenize": False}
    assert text == theirs.apply_chat_template(chat, **options)
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    assert list(ids) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_as_decoding_at_once_gives_it(model: ServedModel, theirs: Any, text: str) -> None:
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    for skip in (True, False):
        detokenizer = Detokenizer(model.tokenizer, skip_special_tokens=skip)
        pieces = [detokenizer.push(token_id) for token_id in ids]
        assert "".join(pieces) == theirs.decode(ids, skip_special_tokens=skip)
        assert not any("\ufffd" in piece for piece in pieces)


def test_every_entry_of_the_vocabulary_is_read_like_theirs(model: ServedModel, theirs: Any) -> None:
    for token_id in range(0, model.vocab_size, 7):
        ours = model.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        assert ours == theirs.decode([token_id])


def test_the_end_token_is_the_one_that_ends_a_turn(model: ServedModel) -> None:
    assert [model.tokenizer.token_bytes(each) for each in model.eos_ids] == [b"<|im_end|>"]
    assert model.max_model_len == 8192


def test_a_gateway_with_a_real_model_never_imports_torch(model_dir: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gateway.app import create_app\n"
        "from gateway.http_settings import HttpSettings\n"
        "from gateway.served_model import load_served_model\n"
        "model = load_served_model(Path(sys.argv[1]))\n"
        "create_app(None, model, HttpSettings()).openapi()\n"
        "ids = model.tokenizer.encode(model.template.render([]), add_special_tokens=True)\n"
        "heavy = {'torch', 'transformers', 'triton', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model_dir)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
