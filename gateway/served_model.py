"""The one model that this gateway serves, as far as text goes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.chat_template import ChatTemplate
from gateway.errors import ModelFolderError
from gateway.model_card import read_model_card
from gateway.model_style import ModelStyle, model_style
from gateway.tokenizer import TextTokenizer
from gateway.tool_calls.formats import AUTO


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``created`` is in seconds since 1970. Without a template only completions are served."""

    name: str
    tokenizer: TextTokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    vocab_size: int
    max_model_len: int
    created: int
    style: ModelStyle = field(default_factory=ModelStyle)
    special_tokens: Mapping[str, str] = field(default_factory=dict)


def load_served_model(
    folder: Path,
    name: str | None = None,
    max_model_len: int | None = None,
    template_file: Path | None = None,
    tool_parser: str = AUTO,
    reasoning_parser: str = AUTO,
) -> ServedModel:
    """Read tokenizer, template and limits; the weights aren't looked at. ``template_file`` is instead of the model's.

    The parsers are names of ``tool_calls.formats``. Raises ``ModelFolderError`` with one line that says what is wrong.
    """
    folder = Path(folder)
    card = read_model_card(folder)
    if max_model_len is not None and max_model_len > card.max_model_len:
        raise ModelFolderError(
            f"--max-model-len {max_model_len} is more than the model's {card.max_model_len} positions"
        )
    ends = {card.special_tokens[key] for key in ("bos_token", "eos_token") if key in card.special_tokens}
    template = card.template if template_file is None else _read(template_file)
    tokenizer = TextTokenizer.load(folder, frozenset(ends))
    eos_ids = card.eos_ids or _named_eos(card.special_tokens, tokenizer)
    return ServedModel(
        name=name or folder.resolve().name,
        tokenizer=tokenizer,
        template=ChatTemplate(template, card.special_tokens) if template else None,
        eos_ids=eos_ids,
        vocab_size=card.vocab_size,
        max_model_len=max_model_len or card.max_model_len,
        created=int(time.time()),
        special_tokens=card.special_tokens,
        style=model_style(template, tool_parser, reasoning_parser),
    )


def _read(template_file: Path) -> str:
    try:
        text = template_file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ModelFolderError(f"--chat-template {str(template_file)!r} can't be read ({reason})") from error
    if not text.strip():
        raise ModelFolderError(f"--chat-template {str(template_file)!r} is empty")
    return text


def _named_eos(special_tokens: dict[str, str], tokenizer: TextTokenizer) -> tuple[int, ...]:
    text = special_tokens.get("eos_token")
    token_id = tokenizer.token_id(text) if text else None
    return () if token_id is None else (token_id,)
