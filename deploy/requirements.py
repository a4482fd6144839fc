"""What others wrote that the named extras of pyproject.toml need: `python requirements.py worker fetch`."""

import sys
import tomllib
from pathlib import Path


def requirements(extras: list[str]) -> list[str]:
    """Return the project's own dependencies and those of the extras, as pip reads them."""
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["project"]
    found = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    return [each for each in found if not each.startswith(project["name"])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(sys.argv[1:])) + "\n")
