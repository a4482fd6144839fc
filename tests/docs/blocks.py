"""Fenced blocks of pages, and the command lines in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SHELLS = frozenset({"sh", "bash", "shell", "console"})

_FENCED = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n+)+")
_OPTION = re.compile(r"--?[a-z][\w-]*")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, the other words of its info string, its lines."""

    language: str
    words: frozenset[str]
    text: str

    @property
    def title(self) -> str:
        """Its first line."""
        return self.text.splitlines()[0] if self.text else ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line on a page, as a shell would split it."""

    words: tuple[str, ...]

    @property
    def flags(self) -> list[str]:
        """Names of its flags, without values."""
        options = [word.partition("=")[0] for word in self.words[1:] if word.startswith("-")]
        return [option for option in options if _OPTION.fullmatch(option)]

    def __str__(self) -> str:
        return shlex.join(self.words)


def fenced(text: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(language, frozenset(rest.split()), body) for language, rest, body in _FENCED.findall(text)]


def commands(text: str, programs: frozenset[str]) -> list[Command]:
    """Command lines of a page that begin with one of ``programs``: in shell blocks, indented lines and code spans."""
    blocks = fenced(text)
    prose = _FENCED.sub("", text)
    lines = [line for block in blocks if block.language in SHELLS for line in _lines(block.text)]
    lines += [line.strip() for block in _INDENTED.findall(prose) for line in _lines(block)]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _INDENTED.sub("\n", prose))]
    return [Command(words) for line in lines if (words := _words(line)) and words[0] in programs]


def _lines(body: str) -> list[str]:
    """Lines of a block; one that ends in a backslash goes on in the next."""
    return body.replace("\\\n", " ").splitlines()


def _words(line: str) -> tuple[str, ...]:
    try:
        words = shlex.split(line.strip(), comments=True)
    except ValueError:  # a quotation that goes over several lines: none of ours
        words = []
    return tuple(words)
