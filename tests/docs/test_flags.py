"""docs/flags.md says what the settings say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_settings_give() -> None:
    render = runpy.run_path(str(ROOT / "scripts" / "write_flags.py"))["render"]
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == render(), "run scripts/write_flags.py"
