"""What is read from a model's folder, and folders that can't be served."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from gateway.errors import ModelFolderError
from gateway.served_model import load_served_model
from gateway.tokenizer import TextTokenizer
from tests.support.scripted_dispatcher import small_tokenizer

MARK = "\u2581"


def folder_of(tmp_path: Path, **files: Any) -> Path:
    """Write a model's folder; a value None leaves a file out."""
    contents: dict[str, Any] = {
        "config.json": {"vocab_size": 400, "max_position_embeddings": 2048, "eos_token_id": 2},
        "tokenizer_config.json": {
            "bos_token": "<|im_start|>",
            "eos_token": {"content": "<|im_end|>", "special": True},
        },
        "tokenizer.json": small_tokenizer().to_json(),
        **{name.replace("_json", ".json").replace("_jinja", ".jinja"): x for name, x in files.items()},
    }
    for name, content in contents.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_name_limits_and_template_come_from_the_folder(tmp_path: Path) -> None:
    model = load_served_model(folder_of(tmp_path, chat_template_jinja="{{ bos_token }}{{ eos_token }}"))
    assert model.name == tmp_path.name
    assert (model.vocab_size, model.max_model_len) == (400, 2048)
    assert model.template is not None
    assert model.template.render([]) == "<|im_start|><|im_end|>"


def test_name_and_length_can_be_given(tmp_path: Path) -> None:
    model = load_served_model(folder_of(tmp_path), "mine", 100)
    assert (model.name, model.max_model_len, model.template) == ("mine", 100, None)


def test_end_tokens_come_from_the_first_file_that_names_them(tmp_path: Path) -> None:
    assert load_served_model(folder_of(tmp_path)).eos_ids == (2,)
    generation = {"eos_token_id": [2, 0]}
    assert load_served_model(folder_of(tmp_path, generation_config_json=generation)).eos_ids == (2, 0)
    config = {"vocab_size": 400, "max_position_embeddings": 2048}
    (tmp_path / "generation_config.json").unlink()
    assert load_served_model(folder_of(tmp_path, config_json=config)).eos_ids == (2,)


def test_a_template_may_stand_in_the_tokenizers_settings(tmp_path: Path) -> None:
    for template in ("{{ 1 }}", [{"name": "rag", "template": "x"}, {"name": "default", "template": "{{ 1 }}"}]):
        model = load_served_model(folder_of(tmp_path, tokenizer_config_json={"chat_template": template}))
        assert model.template is not None
        assert model.template.render([]) == "1"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config_json": None}, "no config.json"),
        ({"tokenizer_json": None}, "no tokenizer.json"),
        ({"config_json": "{"}, "not JSON"),
        ({"config_json": []}, "not a JSON object"),
        ({"config_json": {"vocab_size": 5}}, "max_position_embeddings"),
        ({"tokenizer_json": "{}"}, "can't be read"),
        ({"chat_template_jinja": "{% if %}"}, "chat template"),
    ],
)
def test_a_broken_folder_is_one_clear_line(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFolderError, match=words) as caught:
        load_served_model(folder_of(tmp_path, **files))
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_too_long_a_context_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="no such folder"):
        load_served_model(tmp_path / "none")
    with pytest.raises(ModelFolderError, match="2048"):
        load_served_model(folder_of(tmp_path), None, 4096)


def sentencepiece_like() -> Tokenizer:
    """A tokenizer that marks spaces and spells unknown characters as bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), MARK]
    pieces += [*"Helo,wrd!endü12", f"{MARK}w"]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(MARK, "w")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return tokenizer


def test_marked_spaces_and_single_bytes_are_read() -> None:
    tokenizer = TextTokenizer(sentencepiece_like())
    ids = tokenizer.encode("Hello w 你", add_special_tokens=False)
    raw = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
    assert raw.decode() == " Hello w 你"
    assert tokenizer.is_special(1)


def test_a_tokenizer_that_cant_be_read_exactly_is_refused() -> None:
    tokenizer = sentencepiece_like()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelFolderError, match="decoder"):
        TextTokenizer(tokenizer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.Replace("l", "L")])
    with pytest.raises(ModelFolderError, match="isn't supported"):
        TextTokenizer(tokenizer)


def test_truncation_and_padding_of_the_file_are_off() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer().to_json())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    assert len(TextTokenizer(tokenizer).encode("hello " * 5, add_special_tokens=False)) > 4
    assert len(TextTokenizer(tokenizer).encode("a", add_special_tokens=False)) == 1


def test_a_text_never_has_fewer_tokens_than_promised() -> None:
    tokenizer = small_tokenizer()
    for text in ("hello world " * 50, "<|endoftext|>" * 20, "你好🦀" * 10):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.fewest_tokens("x" * 1000) > 10
