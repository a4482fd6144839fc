"""The clients and the features: which cells the matrix has. Versions are read from each client's pins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).parent
SHARED = HERE / "shared"

FEATURES = {
    "plain": "plain",
    "stream": "stream",
    "usage": "usage in stream",
    "two_tools": "two tools",
    "forced_tool": "forced tool",
    "schema": "schema",
    "n": "n = 2",
    "stop": "stop",
    "logprobs": "log probabilities",
    "wrong_model": "wrong model",
    "too_long": "too long",
    "abort": "abort",
}
"""What programs call them, and what the page does."""

NO_CHOICES = "its answers have one choice"


class Client(NamedTuple):
    """A client library: its folder here, the package that the page names, and what it has no notion of, with reasons.

    ``program``: where the folder has pins alone, the folder whose program it runs.
    """

    folder: str
    package: str
    name: str
    without: Mapping[str, str] = MappingProxyType({})
    program: str = ""

    @property
    def is_node(self) -> bool:
        """Runs on Node, else on Python."""
        return (HERE / self.folder / "package.json").exists()

    @property
    def pins(self) -> Path:
        """The file with the exact version of everything that gets installed."""
        return HERE / self.folder / ("package-lock.json" if self.is_node else "requirements.txt")

    @property
    def version(self) -> str:
        """Of the package, by the pins."""
        text = self.pins.read_text(encoding="utf-8")
        if self.is_node:
            found: str = json.loads(text)["packages"][f"node_modules/{self.package}"]["version"]
            return found
        return dict(line.split("==") for line in text.splitlines())[self.package]

    @property
    def program_path(self) -> Path:
        """What is run: `PROGRAM BASE_URL MODEL FEATURE`."""
        return HERE / (self.program or self.folder) / ("program.mjs" if self.is_node else "program.py")


CLIENTS = (
    Client("openai_2", "openai", "openai (Python)", program="openai_3"),
    Client("openai_3", "openai", "openai (Python)"),
    Client("openai_node", "openai", "openai (Node)"),
    Client("litellm", "litellm", "litellm"),
    Client("langchain", "langchain-openai", "langchain-openai"),
    Client("instructor", "instructor", "instructor"),
    Client("pydantic_ai", "pydantic-ai-slim", "pydantic-ai-slim", {"n": NO_CHOICES}),
    Client("llama_index", "llama-index-llms-openai-like", "llama-index-llms-openai-like", {"n": NO_CHOICES}),
    Client(
        "ai_sdk",
        "ai",
        "ai with @ai-sdk/openai-compatible (Vercel)",
        {"n": NO_CHOICES, "logprobs": "its answers have no place for them"},
    ),
)

LM_EVAL = Client("lm_eval", "lm_eval", "lm-eval")
EVALUATION = (LM_EVAL, "scores")
"""Not a library that programs call: its cell stands apart (`test_lm_eval.py`)."""

CELLS = [(client, feature) for client in CLIENTS for feature in FEATURES if feature not in client.without]


def cell_name(client: Client, feature: str) -> str:
    """As results say it: a green cell is one of this version."""
    return f"{client.folder} {client.version} {feature}"
