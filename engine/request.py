"""Who wants what: requests, their choices, the tasks that compute for them, and hand-overs on their way in."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from engine.api import Granted, Key
from engine.guide import Guide
from engine.layout import BLOCK_SIZE
from engine.pool_memory import mark
from engine.sequence import Sequence, blocks_for
from protocol.sampling import MEAN, Sampling


@dataclass(slots=True, eq=False)
class Choice:
    """One answer in the making.

    ``output`` are its tokens so far, of which the first ``tail_len`` came with the request. ``branch`` are
    blocks tied for a tail of its own until ``task`` takes them over. ``guide`` follows the grammar, if there is one.
    """

    number: int
    age: int
    output: list[int]
    tail_len: int
    branch: list[int] = field(default_factory=list)
    task: Task | None = None
    ended: bool = False
    guide: Guide | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One attempt that computes here.

    ``trunk`` computes what all choices share. With ``hand_over`` nothing runs after the first tokens and
    blocks stay held until the request is released. ``granted`` is the answer that an adopted one had got.
    ``num_cached_tokens`` are prompt tokens that were not computed here, -1 if the prompt never started here.
    No step takes it while it is ``unguided``: its grammar isn't compiled yet.
    """

    key: Key
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    root: bytes
    choices: tuple[Choice, ...]
    hand_over: bool = False
    trunk: Task | None = None
    granted: Granted | None = None
    num_cached_tokens: int = -1
    unguided: bool = False
    ending_ids: frozenset[int] = field(init=False)
    mark: int = field(init=False)

    def __post_init__(self) -> None:
        """What is looked up for each token or step is made once."""
        self.ending_ids = self.sampling.ending_ids()
        self.mark = mark(self.key)

    @property
    def wants_all_rows(self) -> bool:
        """Whether the output at each token matters, so that none may come from the cache."""
        return bool(self.sampling.forced_ids) or self.sampling.pooling == MEAN

    @property
    def live(self) -> list[Choice]:
        """Choices that haven't ended."""
        return [choice for choice in self.choices if not choice.ended]

    @property
    def branch_start(self) -> int:
        """First block that a choice with a tail of its own doesn't share with the trunk."""
        return len(self.prompt_ids) // BLOCK_SIZE

    def branches(self, choice: Choice) -> bool:
        """Whether this choice has a tail that the trunk doesn't cover."""
        return len(self.choices) > 1 and choice.tail_len > 0

    def num_branch_blocks(self, choice: Choice) -> int:
        """Blocks of a choice's branch when it begins; 0 if it has none."""
        if not self.branches(choice):
            return 0
        return blocks_for(len(self.prompt_ids) + choice.tail_len) - self.branch_start

    def ending(self, choice: Choice, max_model_len: int) -> tuple[str, int]:
        """Finish reason and stop token of a choice after its newest token; ("", -1) if it goes on."""
        token = choice.output[-1]
        if token in self.ending_ids or (choice.guide is not None and token in self.sampling.eos_ids):
            return "stop", token
        if choice.guide is not None and choice.guide.is_over:
            return "stop", -1
        num_output = len(choice.output)
        if num_output >= self.sampling.max_tokens:
            return "length", -1
        if len(self.prompt_ids) + num_output >= max_model_len:
            return "length", -1
        return "", -1


@dataclass(slots=True, eq=False)
class Task:
    """A sequence to compute: a choice's, or the trunk's (``choice`` is None).

    ``num_prefill`` leading tokens were known when it came, so computing them is prefill. For a hand-over
    ``num_reported`` tokens have been reported as computed. ``pooled`` is the sum of hidden states that a vector is made
    of, float64 ``[hidden_size]``.
    """

    request: Request
    choice: Choice | None
    sequence: Sequence
    num_prefill: int
    num_reported: int = 0
    pooled: Tensor | None = None

    @property
    def age(self) -> int:
        """Order of arrival; unique."""
        return self.sequence.age

    @property
    def spare(self) -> int:
        """Blocks to keep free for what grows out of this task: one per live choice that decodes here."""
        if self.request.hand_over:
            return 0
        return 1 if self.choice else len(self.request.live)

    def waiting_choices(self) -> list[Choice]:
        """Choices that get their next token from this task's last logits."""
        if self.choice:
            return [self.choice]
        return [choice for choice in self.request.live if not self.request.branches(choice)]


@dataclass(slots=True, eq=False)
class Landing:
    """A request that will be handed over to this engine: counted in and, once ``granted``, with blocks tied.

    ``stopped`` are choices that ended elsewhere before the hand-over was complete.
    """

    key: Key
    num_prompt_tokens: int
    tail_lens: tuple[int, ...]
    max_tokens: int
    choices: tuple[int, ...]
    block_hashes: tuple[bytes, ...] = ()
    granted: Granted | None = None
    stopped: set[int] = field(default_factory=set)

    def blocks(self) -> list[int]:
        """Every hold that the grant stands for, children before parents."""
        if self.granted is None:
            return []
        branches = [block for branch in self.granted.branches for block in reversed(branch)]
        return branches + list(reversed(self.granted.trunk))
