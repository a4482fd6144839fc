"""A prompt as an answer tells it back: its text, and what its tokens were worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gateway.detokenizer import Detokenizer
from gateway.logprobs import FLOOR, ScoredToken, completion_logprobs, token_text
from gateway.tokenizer import TextTokenizer
from protocol.sampling import TokenLogprob

Json = dict[str, object]


@dataclass
class PromptTold:
    """One prompt; ``num_top`` alternatives are told with an echo, ``num_told`` by id.

    ``scores`` are of its tokens from the second one on, None where nobody asked for any.
    What takes long is found once: some milliseconds for the text of thousands of tokens, tenths of a second for scores.
    """

    tokenizer: TextTokenizer
    token_ids: Sequence[int]
    scores: Sequence[TokenLogprob] | None
    skip_special_tokens: bool
    as_ids: bool = False
    num_top: int = 0
    num_told: int = 0

    @cached_property
    def text(self) -> str:
        """What its tokens stand for."""
        return "".join(self._texts)

    @cached_property
    def logprobs(self) -> Json:
        """Parallel lists, as of an answer's tokens; of the first one nothing is known but its name."""
        texts, scores = self._texts, [_best(score, self.num_top) for score in self.scores or ()]
        offset, scored = len(texts[0]), []
        for token_id, logprob, text in zip(self.token_ids[1:], scores, texts[1:], strict=True):
            scored.append(ScoredToken(token_id, logprob, offset))
            offset += len(text)
        told = completion_logprobs(self.tokenizer, scored, as_ids=self.as_ids)
        first = {"text_offset": 0, "tokens": self._name(self.token_ids[0])}
        return {key: [first.get(key), *values] for key, values in told.items() if isinstance(values, list)}

    @cached_property
    def by_id(self) -> list[Json | None]:
        """VLLM's ``prompt_logprobs``: for each token its own and the likeliest ones' by id; null for the first."""
        told: list[Json | None] = [None]
        for token_id, whole in zip(self.token_ids[1:], self.scores or (), strict=True):
            score = _best(whole, self.num_told)
            ranked = {each: number for number, each in enumerate(score.top_ids, 1)}
            values = {token_id: score.logprob, **dict(zip(score.top_ids, score.top_logprobs, strict=True))}
            told.append(
                {
                    str(each): {
                        "logprob": max(value, FLOOR),
                        "rank": ranked.get(each),
                        "decoded_token": token_text(self.tokenizer, each)[0],
                    }
                    for each, value in values.items()
                }
            )
        return told

    def _name(self, token_id: int) -> str:
        return token_text(self.tokenizer, token_id, as_ids=self.as_ids)[0]

    @cached_property
    def _texts(self) -> list[str]:
        """What each token adds to the text."""
        detokenizer = Detokenizer(self.tokenizer, skip_special_tokens=self.skip_special_tokens)
        return [detokenizer.push(token_id) for token_id in self.token_ids]


def _best(score: TokenLogprob, count: int) -> TokenLogprob:
    """The same with fewer alternatives."""
    return TokenLogprob(score.logprob, score.top_ids[:count], score.top_logprobs[:count])
