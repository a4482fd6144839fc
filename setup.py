"""Compile the CPU kernels when the package is installed; everything else stands in pyproject.toml.

The sources are compiled once per instruction set, and kvferry_kernels.native loads the best one that the
machine can run. Where there is no compiler nothing is built, and the torch twins are used.
OpenMP's symbols are left open: they resolve to the runtime that torch has loaded, so that there is only one.
"""

from __future__ import annotations

import platform

from setuptools import Extension, setup

FOLDER = "kernels/kvferry_kernels/cpu"

SOURCES = ("level", "rows", "attention", "linear", "decoder", "sampling")
HEADERS = (
    "vector",
    "rows",
    "integers",
    "quantize",
    "product_types",
    "product_int8",
    "product_bf16",
    "tiles",
    "results_amx",
    "product_amx",
    "product",
    "attention_tile",
    "attention_amx",
    "attention",
    "meeting",
    "lanes",
    "weights",
    "shortlist",
    "sampling",
)

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-g0",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
]

PRODUCTS = ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"]

X86_LEVELS = {
    "_cpu_v4_amx": [*PRODUCTS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    "_cpu_v4_bf16": PRODUCTS,
    "_cpu_v4": ["-march=x86-64-v4"],
    "_cpu_v3": ["-march=x86-64-v3"],
}


def extensions() -> list[Extension]:
    """Return the baseline, and on x86-64 one per level above it."""
    variants: dict[str, list[str]] = {"_cpu_base": []}
    if platform.machine() in ("x86_64", "AMD64"):
        variants.update(X86_LEVELS)
    return [
        Extension(
            f"kvferry_kernels.{library}",
            [f"{FOLDER}/{name}.c" for name in SOURCES],
            depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
            extra_compile_args=[*FLAGS, *flags],
            optional=True,
        )
        for library, flags in variants.items()
    ]


setup(ext_modules=extensions())
