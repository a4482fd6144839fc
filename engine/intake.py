"""From commands to requests: what can't be served is said here, before anything is held."""

from __future__ import annotations

from engine.admission import demand
from engine.api import Adopt, Grant, Prefill, Rejected, Reserve
from engine.book import Book
from engine.layout import BLOCK_SIZE
from engine.request import Choice, Request, Task
from engine.sequence import Sequence
from engine.settings import EngineSettings
from protocol.block_hash import root_hash
from protocol.sampling import LAST, MEAN

BAD_REQUEST, MISMATCH, TOO_LONG = "bad_request", "mismatch", "context_length_exceeded"
FIRST_ATTEMPT = 1
NEVER_FITS, NO_SPACE = "never_fits", "no_space"
"""Codes of ``protocol.errors``, which the engine may not import."""


class Intake:
    """Checks commands against one engine's limits, and makes requests of them."""

    def __init__(self, book: Book, settings: EngineSettings, vocab_size: int) -> None:
        """``vocab_size``: ids are below it."""
        self._book = book
        self._settings = settings
        self._vocab_size = vocab_size

    def never(self, command: Prefill | Reserve | Grant) -> Rejected | None:
        """Why this engine can never serve the command, or None."""
        if isinstance(command, Prefill):
            fault = self.fault(command)
            if fault:
                return Rejected(command.key, BAD_REQUEST, fault)
            forced = command.sampling.forced_ids
            num_prompt_tokens = len(command.prompt_ids) + max(len(forced) - 1, 0)
            tail_lens = tuple(0 if forced else len(tail.token_ids) for tail in command.tails)
            max_tokens, hand_over = command.sampling.max_tokens, command.hand_over
        else:
            if not command.tail_lens or command.num_prompt_tokens < 1:
                return Rejected(command.key, BAD_REQUEST, "a request needs a prompt and a choice")
            num_prompt_tokens, tail_lens = command.num_prompt_tokens, command.tail_lens
            max_tokens, hand_over = command.max_tokens, False
        longest = num_prompt_tokens + max(tail_lens)
        if longest >= self._settings.max_model_len:
            limit = self._settings.max_model_len
            text = f"{longest} tokens leave no room for an answer within {limit}"
            return Rejected(command.key, TOO_LONG, text)
        wanted = demand(num_prompt_tokens, tail_lens, max_tokens)
        least, total = wanted.tied if hand_over else wanted.least, self._book.pool.num_blocks
        if least > total:
            return Rejected(command.key, NEVER_FITS, f"needs {least} blocks, the pool has {total}")
        return None

    def over_budget(self, command: Prefill, request: Request) -> Rejected | None:
        """The refusal of a prefill that would compute more tokens than it may, or None."""
        limit, trunk = command.max_uncached_tokens, request.trunk
        if limit < 0 or trunk is None:
            return None
        cached = len(trunk.sequence.find_cached(self._book.pool)) * BLOCK_SIZE
        branches = sum(choice.tail_len for choice in request.choices if request.branches(choice))
        uncached = len(trunk.sequence.token_ids) - cached + branches
        if uncached <= limit:
            return None
        return Rejected(command.key, NO_SPACE, f"{uncached} tokens to compute, {limit} may be computed here")

    def fault(self, command: Prefill | Adopt) -> str:
        """What is wrong with the tokens, choices or sampling; "" if nothing."""
        numbers = [tail.choice for tail in command.tails]
        if not command.prompt_ids or len(set(numbers)) != len(numbers) or not numbers:
            return "a request needs a prompt and at least one choice, each with a number of its own"
        ids = [command.prompt_ids, *(tail.token_ids for tail in command.tails if tail.token_ids)]
        if any(min(part) < 0 or max(part) >= self._vocab_size for part in ids):
            return f"token ids go from 0 to {self._vocab_size - 1}"
        if any(len(tail.token_ids) >= command.sampling.max_tokens for tail in command.tails):
            return "a choice has all its tokens already"
        bias = [token for token, _ in command.sampling.logit_bias]
        sampling = command.sampling
        named = [
            *bias,
            *sampling.allowed_ids,
            *sampling.forced_ids,
            *(token for word in sampling.bad_words for token in word),
        ]
        if named and (min(named) < 0 or max(named) >= self._vocab_size):
            return f"ids that sampling names go from 0 to {self._vocab_size - 1}"
        if not all(sampling.bad_words):
            return "a bad word has at least one id"
        if sampling.pooling not in ("", MEAN, LAST):
            return "pooling is mean or last"
        if sampling.pooling and (len(numbers) != 1 or isinstance(command, Adopt)):
            return "what is pooled has one choice, and is never handed over"
        return _fault_in_forced(command) if sampling.forced_ids else ""

    def request(self, command: Prefill | Adopt) -> Request:
        """A request with its choices, and no task yet. Ages are in order: trunk, then choices."""
        salt, settings = command.cache_salt, self._settings
        age = self._book.take_ages(len(command.tails) + 1, moved=command.key[1] > FIRST_ATTEMPT)
        choices = tuple(
            Choice(tail.choice, age + i, list(tail.token_ids), len(tail.token_ids))
            for i, tail in enumerate(command.tails, start=1)
        )
        return Request(
            command.key,
            command.prompt_ids,
            command.sampling,
            root_hash(settings.weights, settings.kv_dtype, salt=salt),
            choices,
        )

    def prefill(self, command: Prefill) -> Request:
        """A request whose trunk waits to be computed."""
        request = self.request(command)
        request.hand_over = command.hand_over
        tokens = list(command.prompt_ids)
        if len(request.choices) == 1:
            tokens += request.choices[0].output
        forced = request.sampling.forced_ids
        tokens += forced[len(request.choices[0].output) : -1] if forced else ()
        trunk = Sequence(request.choices[0].age - 1, tokens, request.root, reads_cache=not request.wants_all_rows)
        request.trunk = Task(request, None, trunk, len(tokens))
        return request


def _fault_in_forced(command: Prefill | Adopt) -> str:
    forced, tails = command.sampling.forced_ids, command.tails
    if len(tails) != 1 or len(forced) != command.sampling.max_tokens or isinstance(command, Adopt):
        return "forced ids are the whole output of one choice, and nothing that is handed over"
    if tails[0].token_ids != forced[: len(tails[0].token_ids)]:
        return "the output so far isn't how the forced ids begin"
    return ""
