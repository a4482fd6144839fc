"""docs/wire.md says what the code does."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_messages_give() -> None:
    render = runpy.run_path(str(ROOT / "scripts" / "write_wire.py"))["render"]
    assert (ROOT / "docs" / "wire.md").read_text(encoding="utf-8") == render(), "run scripts/write_wire.py"
