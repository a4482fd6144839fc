"""Which servers are measured."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.errors import BenchError

_LABELED = re.compile(r"([\w.+-]{1,40})=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Target:
    """One server, and what it is called in reports."""

    name: str
    base_url: str
    """Without the path of the API."""


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Read ``URL`` or ``name=URL``, one a server. Raises `BenchError`."""
    targets = tuple(_parse(text) for text in texts)
    names = [target.name for target in targets]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise BenchError(f"--base-url: two servers are called {doubled.pop()!r}; give labels (name=http://...)")
    return targets


def _parse(text: str) -> Target:
    labeled = _LABELED.fullmatch(text)
    name, url = labeled.groups() if labeled else ("", text)
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BenchError(f"--base-url: {url[:80]!r} is no http(s) URL")
    if parts.username or parts.password:
        raise BenchError("--base-url: no credentials in URLs; give a key in KVFERRY_BENCH_API_KEY")
    if parts.query or parts.fragment:
        raise BenchError(f"--base-url: {url[:80]!r} has more than a path")
    base = url.rstrip("/").removesuffix("/v1")
    return Target(name or parts.netloc, base)
