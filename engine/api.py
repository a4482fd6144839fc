"""What goes in and out of the engine's two queues, as plain values. Imports no torch.

A ``key`` is (request_id, attempt). Commands are obeyed in order between steps, each does the same however
often it comes, and one about an unknown key changes nothing. An expected shortage is a ``Rejected``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.sampling import Sampling, TokenLogprob

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ChoiceTail:
    """A live choice and its tokens so far."""

    choice: int
    token_ids: tuple[int, ...] = ()


# -- commands, io to engine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute prompt and tails and sample the next token of each choice.

    ``hand_over``: report ``Computed`` as blocks fill, and keep them after the first tokens until
    ``Release``; otherwise the choices decode on here. Rejected ("no_space") if more than
    ``max_uncached_tokens`` would have to be computed; -1 is no limit.
    """

    key: Key
    prompt_ids: tuple[int, ...]
    tails: tuple[ChoiceTail, ...]
    sampling: Sampling
    cache_salt: str = ""
    hand_over: bool = False
    max_uncached_tokens: int = -1


@dataclass(frozen=True, slots=True)
class Reserve:
    """Count a request in, without tying blocks. Answered by ``Reserved`` or ``Rejected``."""

    key: Key
    num_prompt_tokens: int
    tail_lens: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Tie physical blocks for a hand-over; stands for a Reserve too. Answered by ``Granted`` or ``Rejected``.

    ``block_hashes`` name the trunk's full blocks in order. With one choice the trunk is prompt and
    tail; with several it is the prompt, and a choice with a tail gets a branch of its own.
    ``choices`` are their numbers in the order of ``tail_lens``; empty means 0, 1, 2 and so on.
    """

    key: Key
    num_prompt_tokens: int
    tail_lens: tuple[int, ...]
    max_tokens: int
    block_hashes: tuple[bytes, ...]
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopt:
    """All granted blocks are filled and verified: the choices join the running batch.

    Each tail includes the token that the prefill worker made last, whose K and V aren't computed yet.
    """

    key: Key
    prompt_ids: tuple[int, ...]
    tails: tuple[ChoiceTail, ...]
    sampling: Sampling
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class StopChoice:
    """End one choice; the others of the request go on."""

    key: Key
    choice: int


@dataclass(frozen=True, slots=True)
class Release:
    """End all that is held for this key, in every state. Answered by ``Released``."""

    key: Key


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life is wanted. Answered by ``Pong`` between steps."""

    number: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop after the current step."""


Command = Prefill | Reserve | Grant | Adopt | StopChoice | Release | Ping | Shutdown


# -- results, engine to io ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and the pool exists; sent once, first."""

    num_blocks: int
    max_model_len: int
    weight_bytes: int
    weights: str
    numerics: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The request is counted in."""

    key: Key


@dataclass(frozen=True, slots=True)
class Granted:
    """Blocks are tied. ``trunk`` covers the trunk from token 0; the first ``num_cached_tokens`` are filled already.

    ``branches[i]`` are the blocks of choice position i's branch, empty if it has none.
    """

    key: Key
    num_cached_tokens: int
    trunk: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command can't be done. ``code`` is in protocol.errors ("no_space", "never_fits", ...)."""

    key: Key
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Computed:
    """Prefill for hand-over went on: K and V of a branch's first ``num_tokens`` tokens of context are final.

    ``choice`` -1 is the trunk, else a choice's branch, whose ``blocks`` start at the block that holds
    token ``first_token``. ``last`` when the branch is complete.
    """

    key: Key
    choice: int
    first_token: int
    num_tokens: int
    blocks: tuple[int, ...]
    last: bool


class NewTokens(NamedTuple):
    """Tokens of one choice made in this step, the first at ``first_index`` of its output.

    ``finish_reason`` "" unless this is its end ("stop" or "length"); ``stop_token`` -1 unless an id ended it.
    ``num_cached_tokens`` are prompt tokens whose compute was skipped here, -1 on a choice that was adopted.
    """

    key: Key
    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    stop_token: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """The prompt's vector, float32 in little-endian order, of length 1."""

    key: Key
    vector: bytes
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing is held for this key any more."""

    key: Key


@dataclass(frozen=True, slots=True)
class GaveBack:
    """There was no room to go on with this key, and computing it again would take too long here: it is ended."""

    key: Key


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ``Ping``."""

    number: int


@dataclass(frozen=True, slots=True)
class Broken:
    """This key was ended by a broken promise inside the engine (an exception's text is in ``message``).

    ``code`` is in protocol.errors: "bad_request" says that nobody could have served it.
    """

    key: Key
    message: str
    code: str = "engine_failed"


class Load(NamedTuple):
    """Where the engine stands after a step or a command."""

    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    held_blocks: int = 0
    reserved_blocks: int = 0
    num_steps: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    tokens_made: int = 0
    num_preemptions: int = 0
    step_ms: float = 0.0
    step_gap_ms: float = 0.0


Result = Ready | Reserved | Granted | Rejected | Computed | NewTokens | Embedded | Released | GaveBack | Broken | Pong


class Report(NamedTuple):
    """What one pass of the loop brought: results in order, and the load after it."""

    results: tuple[Result, ...] = ()
    load: Load = Load()
