"""What the command line asks for, checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import Limits
from bench.target import Target
from bench.workload import Workload

CHAT_ENDPOINT = "/v1/chat/completions"
ENDPOINTS = ("/v1/completions", CHAT_ENDPOINT)
KEY_VARIABLE = "KVFERRY_BENCH_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One benchmark."""

    targets: tuple[Target, ...]
    workloads: tuple[Workload, ...]
    seeds: tuple[int, ...]
    """One round each."""

    endpoint: str = ENDPOINTS[0]
    model: str = ""
    """Empty: the first that a server lists."""

    tokenizer: Path | None = None
    dataset: Path | None = None
    num_warmups: int = 4
    limits: Limits = field(default_factory=Limits)
    request_timeout_s: float = 600.0
    extra_body: dict[str, Any] = field(default_factory=dict)
    json_path: Path | None = None
    plot_folder: Path | None = None
    api_key: str = field(default="", repr=False)

    @property
    def is_chat(self) -> bool:
        """Whether prompts are sent as messages."""
        return self.endpoint == CHAT_ENDPOINT

    def in_turn(self, number: int) -> Sequence[Target]:
        """Return the servers in the order of a round: each round begins with the next one."""
        first = number % len(self.targets)
        return self.targets[first:] + self.targets[:first]
