"""Write docs/wire.md from the messages themselves: `python scripts/write_wire.py`. A test keeps the two equal."""

from __future__ import annotations

import inspect
import sys
import typing
from pathlib import Path
from typing import Any

from engine.philox import philox4x32
from kvtransfer import pieces
from protocol import codec, messages, subjects
from protocol.block_hash import HASH_UNIT, HASH_VERSION
from protocol.errors import MEANINGS
from protocol.handover import State
from protocol.records import field_names, is_record

PAGE = Path(__file__).parents[1] / "docs" / "wire.md"

ROLES = ", ".join(f"`{role}`" for role in subjects.ROLES)

INTRO = f"""# The wire

Version {codec.WIRE_VERSION}. This page is written by `scripts/write_wire.py` from the code.

## Frames

A frame is one version byte (`{codec.WIRE_VERSION:02x}`), then a msgpack array:
`[tag, sender id, sender epoch, receiver epoch, field, field, ...]`. Fields stand in the order of the tables below;
nested objects are arrays of their fields. A frame of another version, an unknown tag, a wrong type or count, or more
than {codec.MAX_FRAME_BYTES >> 20} MiB is refused whole. A receiver epoch of "" means any life of the receiver; a frame
for an older life, or from one, is dropped. A frame longer than the server's payload limit travels as `Part`s.

An epoch is the process's start time in milliseconds and 64 random bits, in hex, so that the newest start of an id
sorts last.

## Subjects

| subject | carries |
|---|---|
| `{subjects.PREFIX}.heartbeat.ROLE` | `WorkerStatus` and `GatewayStatus`, each second, to everyone |
| `{subjects.PREFIX}.inbox.ROLE.ID.FROM` | control messages to one gateway or worker, from a process of role FROM |
| `{subjects.contents("ID")}` | pieces to one decode worker, on connections of their own |

ROLE and FROM are what an id begins with: {ROLES}; `{subjects.OTHER}` for an operator's tool. A broker can so permit
each role its own subjects. A message whose sender's id begins with another role than its subject ends with is refused.

Pieces also go by shared memory, and through process groups of two, which the messages tagged 22 to 25 are about.

All of it is core NATS: at most once. What makes it exact is that control messages are repeated until they are
answered, tokens until they are acknowledged, and pieces until they have landed.
"""

PIECES = f"""## Pieces

A piece is not msgpack: a fixed header of {pieces.HEADER_BYTES - pieces.DIGEST_BYTES} bytes (little-endian), a digest of
{pieces.DIGEST_BYTES} bytes, then the bytes.

| field | type |
|---|---|
| version ({pieces.PIECE_VERSION}) | u8 |
| transfer id | 16 ASCII characters |
| piece number | u32 |
| offset: absolute byte of the transfer | u64 |
| branch: 0 the trunk, i + 1 the branch of the demand's i-th choice | u16 |
| cache group, layer within it, first head, number of heads | u16 each |
| first block, number of blocks, of the branch's own table | u32 each |

The bytes are K of the range's blocks and heads, then V. Inside a block K is stored `[head, dim, token]` and V
`[head, token, dim]`; the order is part of the layout's fingerprint. The digest is xxh3-64 over header, then the text
`request|attempt|sender epoch|receiver epoch|layout fingerprint`, then the bytes. The record's `contents_digest` is
xxh3-64 over all pieces' digests in order.
"""

HASHES = f"""## Names of blocks

SHA-256 over tagged, length-prefixed parts (lengths are u32, little-endian). The root of a chain is
`("root", "{HASH_VERSION.decode()}", weights, KV dtype, adapter, salt)`; a block of {HASH_UNIT} tokens is
`("block", parent, ids)` with ids as u32, little-endian.
"""


def render() -> str:
    """The whole page."""
    parts = [INTRO, "## Messages\n"]
    parts += [_message(tag, kind) for tag, kind in messages.TAGS.items()]
    parts.append("## Objects inside messages\n")
    parts += [_table(kind) for kind in _nested()]
    parts += [PIECES, HASHES, _philox(), _codes(), _states()]
    return "\n".join(parts)


def _message(tag: int, kind: type[Any]) -> str:
    return _table(kind, f" (tag {tag})")


def _table(kind: type[Any], suffix: str = "") -> str:
    hints = typing.get_type_hints(kind)
    rows = [f"| `{name}` | {_type(hints[name])} |" for name in field_names(kind)]
    head = [
        f"### {kind.__name__}{suffix}",
        "",
        inspect.cleandoc(kind.__doc__ or ""),
        "",
        "| field | type |",
        "|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def _type(hint: Any) -> str:
    if is_record(hint):
        return str(hint.__name__)
    items = typing.get_args(hint)
    if not items:
        return str(hint.__name__)
    if items[-1] is Ellipsis:
        return f"list of {_type(items[0])}"
    return "[" + ", ".join(map(_type, items)) + "]"


def _nested() -> list[type[Any]]:
    """Records that appear in fields, each once, in the order of their first use."""
    found: dict[type[Any], None] = {}

    def visit(hint: Any) -> None:
        if is_record(hint):
            found.setdefault(hint)
            for field in typing.get_type_hints(hint).values():
                visit(field)
        for item in typing.get_args(hint):
            visit(item)

    for kind in messages.TAGS.values():
        for hint in typing.get_type_hints(kind).values():
            visit(hint)
    return list(found)


def _philox() -> str:
    lines = [
        "## Random numbers",
        "",
        "Philox4x32-10 (Salmon et al., SC 2011) with key (seed low, seed high) and counter (position, choice, 0, 0);",
        "the position is the token's index in the choice's output. Of the four words `x`, the uniform number is",
        "`(((x0 << 32 | x1) >> 11) + 0.5) * 2^-53`. A token is a function of these and of the context alone.",
        "",
        "| seed | choice | position | words |",
        "|---|---|---|---|",
    ]
    for seed, choice, position in ((0, 0, 0), (1234567890123456789, 0, 0), (1234567890123456789, 2, 41)):
        words = philox4x32((position, choice, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
        lines.append(f"| {seed} | {choice} | {position} | `{' '.join(f'{int(w):08x}' for w in words)}` |")
    return "\n".join([*lines, ""])


def _codes() -> str:
    lines = ["## Codes", "", "| code | HTTP status | type | may succeed again |", "|---|---|---|---|"]
    lines += [f"| `{code}` | {m.status} | {m.type} | {'yes' if m.again else 'no'} |" for code, m in MEANINGS.items()]
    return "\n".join([*lines, ""])


def _states() -> str:
    return "## Hand-over states\n\n" + ", ".join(f"`{state}`" for state in State) + ".\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
