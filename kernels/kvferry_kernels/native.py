"""Finds and loads the compiled CPU kernels: one library per instruction set, the best that this machine runs."""

from __future__ import annotations

import ctypes
import logging
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Torch brings the OpenMP runtime that the library's open symbols resolve to: it must come first.
import torch  # noqa: F401

log = logging.getLogger(__name__)

LEVELS = {"_cpu_v4_amx": 6, "_cpu_v4_bf16": 5, "_cpu_v4": 4, "_cpu_v3": 3, "_cpu_base": 0}
"""Libraries, best first, and what kvferry_cpu_level must return at least."""

POINTER, INT64, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

SIGNATURES = {
    "kvferry_rms_norm": (None, [POINTER] * 4 + [INT64] * 2 + [FLOAT, INT]),
    "kvferry_silu_and_mul": (None, [POINTER] * 2 + [INT64] * 2 + [INT]),
    "kvferry_quantize": (None, [POINTER] * 4 + [INT64] * 3 + [INT]),
    "kvferry_choose_tokens": (INT, [POINTER] * 3 + [INT64] * 2 + [POINTER] * 2 + [INT64]),
    "kvferry_rope_and_cache": (INT, [POINTER] * 10 + [INT64] * 6 + [FLOAT, INT]),
    "kvferry_paged_attention": (INT, [POINTER] * 7 + [INT64] * 7 + [FLOAT, INT]),
    "kvferry_linear": (None, [POINTER] * 4 + [INT64] * 3 + [INT]),
    "kvferry_linear_int8": (None, [POINTER] * 6 + [INT64] * 4 + [INT]),
    "kvferry_decoder_layers": (INT, [POINTER] * 2 + [INT64] * 3 + [POINTER]),
    "kvferry_leave_claimed_cores": (None, [POINTER, INT64, INT64, INT64]),
    "kvferry_cpu_level": (INT, []),
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """A loaded library and its name without the underscore ("cpu_v4")."""

    name: str
    library: ctypes.CDLL


def available() -> list[str]:
    """Names of the libraries that were built and that this machine can run, best first."""
    try:
        level = open_library("_cpu_base").library.kvferry_cpu_level()
    except OSError:
        return []
    return [name for name, needed in LEVELS.items() if needed <= level and library_path(name).exists()]


def load() -> Kernels | None:
    """Load the best library; None, and one warning, where there is none."""
    names = available()
    if not names:
        log.warning("no compiled CPU kernels here: using the torch reference, which is slow")
        return None
    return open_library(names[0])


def open_library(name: str) -> Kernels:
    """Load one library by its name in LEVELS; OSError if it isn't there or doesn't link."""
    library = ctypes.CDLL(str(library_path(name)))
    for function, (result, arguments) in SIGNATURES.items():
        entry = getattr(library, function)
        entry.restype, entry.argtypes = result, arguments
    return Kernels(name.removeprefix("_"), library)


def library_path(name: str) -> Path:
    """Where the installer puts the library of this name."""
    return Path(__file__).with_name(name + str(sysconfig.get_config_var("EXT_SUFFIX")))
