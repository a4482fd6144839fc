"""docs/compatibility.md is what `make test-clients` wrote of the clients and versions that are pinned now."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts" / "write_compatibility.py")


def test_the_page_is_the_one_that_a_green_run_wrote() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    measured = re.search(r"Measured on (\S+)\.", page)
    assert measured
    render = runpy.run_path(SCRIPT)["render"]
    assert page == render(measured[1]), "run make test-clients"


def test_a_run_that_left_cells_out_writes_no_page(tmp_path: Path) -> None:
    script = runpy.run_path(SCRIPT)
    names = script["main"].__globals__
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    names.update(RESULTS=results, PAGE=page)
    green = [script["cell_name"](*cell) for cell in (*script["CELLS"], script["EVALUATION"])]
    results.write_text(json.dumps({"date": "2026-11-30", "green": green[1:]}))
    with pytest.raises(SystemExit, match=re.escape(green[0])):
        script["main"]()
    assert not page.exists()
    results.write_text(json.dumps({"date": "2026-11-30", "green": green}))
    script["main"]()
    assert page.exists()
