"""The JSON of POST /v1/completions: the same form streamed and not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answer import Json
from gateway.logprobs import completion_logprobs
from gateway.prompt_scores import Scores
from gateway.prompt_told import PromptTold
from gateway.responses import joined
from gateway.tokenizer import TextTokenizer
from gateway.transcript import Piece


@dataclass(slots=True)
class CompletionShape:
    """One answer's. ``prompt_ids`` are one prompt for each choice.

    They are told, and choices' own ids with them, ``with_ids``. Where it ``echoes`` a choice begins with its prompt's
    text and, with ``logprobs``, what that was worth; which is told by id too, as vLLM does, if it ``tells_scores``.
    """

    tokenizer: TextTokenizer
    logprobs: bool
    as_ids: bool
    prompt_ids: Sequence[Sequence[int]]
    with_ids: bool = False
    echoes: bool = False
    tells_scores: bool = False
    skip_special_tokens: bool = True
    num_choices: int = 1
    num_top: int = 0
    num_told: int = 0
    scores: list[Scores] = field(default_factory=list, init=False)
    id_prefix: str = field(default="cmpl-", init=False)
    whole_object: str = field(default="text_completion", init=False)
    chunk_object: str = field(default="text_completion", init=False)
    _told: dict[int, PromptTold] = field(default_factory=dict, init=False)

    @property
    def num_reasoning_tokens(self) -> int:
        """None: all text is the answer."""
        return 0

    def opening(self, choice: int) -> Json | None:
        """Return the prompt, if it is echoed."""
        if not self.echoes:
            return None
        prompt = self._prompt(choice)
        return {
            "index": choice,
            "text": prompt.text,
            "logprobs": prompt.logprobs if self.logprobs else None,
            "finish_reason": None,
        }

    def piece(self, piece: Piece) -> list[Json]:
        """Return text; a finish reason comes without."""
        said = []
        if piece.text or ((piece.tokens or piece.token_ids) and not piece.finish_reason):
            said.append(self._choice(piece, piece.text, bool(piece.tokens), None))
            piece.tokens, piece.token_ids = [], ()
        if piece.finish_reason:
            ending = self._choice(piece, "", bool(piece.tokens), piece.finish_reason)
            said.append({**ending, "stop_reason": piece.stop_reason})
        return said

    def whole(self, pieces: list[Piece]) -> Json:
        """Return all text."""
        piece = joined(pieces)
        choice = self._choice(piece, piece.text, self.logprobs, piece.finish_reason)
        choice["stop_reason"] = piece.stop_reason
        if self.echoes:
            opening = self.opening(piece.choice) or {}
            choice["text"] = opening["text"] + choice["text"]
            if self.logprobs:
                own = choice["logprobs"]
                choice["logprobs"] = {key: values + own[key] for key, values in opening["logprobs"].items()}
        if self.tells_scores:
            choice["prompt_logprobs"] = self._prompt(piece.choice).by_id
        return choice

    def once(self) -> Json:
        """Return nothing: each choice has its own prompt."""
        return {}

    def _choice(self, piece: Piece, text: str, logprobs: bool, finish_reason: str | None) -> Json:
        told = completion_logprobs(self.tokenizer, piece.tokens, as_ids=self.as_ids) if logprobs else None
        if told is not None and self.echoes:
            shift = len(self._prompt(piece.choice).text)
            told["text_offset"] = [token.offset + shift for token in piece.tokens]
        choice = {"index": piece.choice, "text": text, "logprobs": told, "finish_reason": finish_reason}
        if self.with_ids:
            choice["token_ids"] = piece.token_ids
            if piece.num_tokens == len(piece.token_ids):  # its first
                choice["prompt_token_ids"] = self.prompt_ids[piece.choice]
        return choice

    def _prompt(self, choice: int) -> PromptTold:
        number = choice // self.num_choices
        if number not in self._told:
            scores = self.scores[number] if self.scores else None
            ids, top, told = self.prompt_ids[choice], self.num_top, self.num_told
            self._told[number] = PromptTold(
                self.tokenizer, ids, scores, self.skip_special_tokens, self.as_ids, top, told
            )
        return self._told[number]
