"""Compiles every shipped kernel for the cards we name, on any machine: no card is needed.

``python -m kvferry_kernels.gpu.ahead`` prints what each takes of a multiprocessor, as the table of kernels/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvferry_kernels.gpu.shipped import EXACT, FUSED, Shipped

MODULES = (
    *("paged_decode", "splits", "paged_prefill", "cache", "block_copy"),
    *("norm", "rotary", "rotary_cache", "activation", "sampling", "quantized_rows", "fp8_matmul", "matmul"),
)
"""Modules of this package with kernels; each has a function ``shipped() -> list[Shipped]``."""

WARP = 32
ALIGNMENT, EVEN = 16, ":16"
PROCESSES = 2
TOOL_TIMEOUT_S = 60.0

USED = re.compile(r"REG:(\d+) STACK:(\d+)")
"""What cuobjdump says of a kernel. None has arrays of its own, so its stack holds what didn't fit into registers."""

HEADER = (
    "| kernel | card | registers | spilled bytes | shared memory, bytes |",
    "|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel's machine code takes: registers and spilled bytes of a thread, shared memory of a program."""

    name: str
    architecture: int
    registers: int
    spilled_bytes: int
    shared_bytes: int


def shipped() -> list[tuple[Shipped, int]]:
    """Every configuration of every kernel that we ship, with a card it is meant for."""
    kernels = [one for name in MODULES for one in importlib.import_module(f"{__package__}.{name}").shipped()]
    return [(one, architecture) for one in kernels for architecture in one.architectures]


def compile_one(kernel: Shipped, architecture: int) -> Compiled:
    """Compile for one kind of card. ValueError if the configuration doesn't name the kernel's arguments, each once."""
    function = kernel.kernel
    if not isinstance(function, triton.JITFunction):
        raise TypeError(f"{kernel.name} is interpreted: TRITON_INTERPRET was set when it was imported")
    names = function.arg_names
    if sorted(names) != sorted([*kernel.signature, *kernel.constants]):
        raise ValueError(f"{kernel.name}: not its arguments, which are {names}")
    types = {name: kernel.signature.get(name, "constexpr") for name in names}
    even = [place for place, name in enumerate(names) if types[name].startswith("*") or types[name].endswith(EVEN)]
    aligned = {(place,): [["tt.divisibility", ALIGNMENT]] for place in even}
    types = {name: kind.removesuffix(EVEN) for name, kind in types.items()}
    fusion = FUSED if kernel.is_fused else EXACT
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **fusion}
    source = ASTSource(function, types, dict(kernel.constants), aligned)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, WARP), options=options)
    registers, spilled_bytes = used(made.asm["cubin"])
    return Compiled(kernel.name, architecture, registers, spilled_bytes, made.metadata.shared)


def compile_all(pattern: str) -> list[Compiled]:
    """Compile what a pattern finds in its name, for each of its cards; several at once, in processes of their own."""
    wanted = [place for place, (one, _) in enumerate(shipped()) if re.search(pattern, one.name)]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        return list(pool.map(_compile_place, wanted))


def table(found: Sequence[Compiled]) -> str:
    """Markdown, one row for each."""
    rows = (
        f"| {one.name} | sm_{one.architecture} | {one.registers} | {one.spilled_bytes} | {one.shared_bytes:,} |"
        for one in found
    )
    return "\n".join((*HEADER, *rows)) + "\n"


def used(cubin: bytes) -> tuple[int, int]:
    """Registers and spilled bytes of a thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TOOL_TIMEOUT_S).stdout
    found = USED.search(said)
    if found is None:
        raise RuntimeError(f"cuobjdump said: {said}")
    return int(found[1]), int(found[2])


def main() -> None:
    """Compile and print the table; an argument is a pattern for the names of kernels wanted."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("pattern", nargs="?", default="", help="regular expression for names (all)")
    sys.stdout.write(table(compile_all(arguments.parse_args().pattern)))


def _compile_place(place: int) -> Compiled:
    """Compile one by its place, for a kernel doesn't travel between processes."""
    return compile_one(*shipped()[place])


if __name__ == "__main__":
    main()
