"""What one choice has said so far: tokens in, pieces of text out."""

from collections import deque
from dataclasses import dataclass, field

from gateway.detokenizer import Detokenizer
from gateway.generation import Update
from gateway.logprobs import ScoredToken
from gateway.stop_strings import StopMatch, StopMatcher
from gateway.tokenizer import TextTokenizer
from protocol.sampling import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How tokens become text. ``logprobs``: whether pieces carry ``tokens``; ``token_ids``: whether they carry ids.

    ``shown_ids`` are special tokens that are text all the same: marks of tool calls and of reasoning.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    token_ids: bool = False
    shown_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Piece:
    """Text that can be shown now. ``choice`` counts over all prompts; ``num_tokens`` so far.

    ``tokens`` are those whose text ends in this piece. ``finish_reason`` "" unless it is the last. ``token_ids``
    are those that came with it, also where their text is still held back.
    """

    choice: int
    text: str
    tokens: list[ScoredToken]
    num_tokens: int
    finish_reason: str = ""
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """A token whose text isn't shown yet; ``end`` None while it is inside a character."""

    token_id: int
    logprob: TokenLogprob
    start: int
    end: int | None


@dataclass(slots=True)
class Transcript:
    """Text, tokens and end of one choice. Offsets count characters from the start of its text."""

    choice: int
    tokenizer: TextTokenizer
    sampling: Sampling
    settings: TextSettings
    num_tokens: int = 0
    finish_reason: str = ""
    stopped_here: bool = False
    _detokenizer: Detokenizer = field(init=False)
    _matcher: StopMatcher = field(init=False)
    _text: str = ""
    _shown: int = 0
    _waiting: deque[_Waiting] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(
            self.tokenizer, skip_special_tokens=self.settings.skip_special_tokens, shown_ids=self.settings.shown_ids
        )
        self._matcher = StopMatcher(self.settings.stop)

    def add(self, update: Update) -> Piece:
        """Take new tokens; ``stopped_here`` says that a stop string ended it before its worker."""
        if update.first_index != self.num_tokens:
            raise RuntimeError(f"choice {self.choice}: tokens at {update.first_index}, have {self.num_tokens}")
        match = self._read(update)
        if match is not None:
            self.finish_reason = "stop"
            self.stopped_here = not update.finish_reason
            limit = match.end if self.settings.include_stop else match.end - len(match.text)
            return self._last_piece(limit, match.text)
        if update.finish_reason:
            self.finish_reason = update.finish_reason
            by_request = update.stop_token in self.sampling.stop_token_ids
            return self._last_piece(self._end, update.stop_token if by_request else None)
        held = 0 if self.settings.include_stop else self._matcher.num_held
        text, tokens = self._show(self._end - held)
        return Piece(self.choice, text, tokens, self.num_tokens)

    @property
    def _end(self) -> int:
        return self._shown + len(self._text)

    def _read(self, update: Update) -> StopMatch | None:
        hidden = self._hidden_token(update)
        for place, token_id in enumerate(update.token_ids):
            start = self._end
            self.num_tokens += 1
            text = "" if place == hidden else self._detokenizer.push(token_id)
            self._text += text
            if self.settings.logprobs:
                self._note(token_id, update.logprobs[place], start)
            armed = self.num_tokens >= self.sampling.min_tokens
            match = self._matcher.push(text, armed=armed)
            if match is not None:
                return match
        return None

    def _hidden_token(self, update: Update) -> int:
        """Place of the token that ended the choice, which is no text; -1 if there is none."""
        ids = update.token_ids
        ended = update.stop_token >= 0 and bool(ids) and ids[-1] == update.stop_token
        return len(ids) - 1 if ended and not self.settings.include_stop else -1

    def _note(self, token_id: int, logprob: TokenLogprob, start: int) -> None:
        if self._detokenizer.inside_character:
            self._waiting.append(_Waiting(token_id, logprob, start, None))
            return
        for token in reversed(self._waiting):
            if token.end is not None:
                break
            token.end = self._end
        self._waiting.append(_Waiting(token_id, logprob, start, self._end))

    def _show(self, safe: int) -> tuple[str, list[ScoredToken]]:
        """Text up to ``safe``; with log probabilities only whole tokens, so that both line up."""
        tokens: list[ScoredToken] = []
        if self.settings.logprobs:
            border = self._shown
            while self._waiting and self._waiting[0].end is not None:
                if self._waiting[0].end > safe:
                    break
                token = self._waiting.popleft()
                border = token.end or border
                tokens.append(ScoredToken(token.token_id, token.logprob, token.start))
            safe = border
        return self._cut(safe), tokens

    def _last_piece(self, limit: int, stop_reason: str | int | None) -> Piece:
        tokens = [ScoredToken(token.token_id, token.logprob, min(token.start, limit)) for token in self._waiting]
        self._waiting.clear()
        text = self._cut(limit)
        self._text = ""
        return Piece(self.choice, text, tokens, self.num_tokens, self.finish_reason, stop_reason)

    def _cut(self, end: int) -> str:
        length = end - self._shown
        shown, self._text = self._text[:length], self._text[length:]
        self._shown += len(shown)
        return shown
