"""Pages name files that exist, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "kernels" / "README.md"],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|md|c|h|toml|txt|json))`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")
BRITISH = re.compile(r"\b\w*(?:behaviour|colour|favour|neighbour|labelled|cancelled|cancelling|organis|recognis)\w*")
ADR_PARTS = ("Context.", "Decision.", "Cost.", "What would change our mind.")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert [name for name in FILE.findall(text_of(page)) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(text_of(page)) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_is_plain_text_in_american_spelling(page: Path) -> None:
    text = text_of(page)
    prose = re.sub(r"```.*?```|`[^`]*`|(?m:^    [^\n]*$)", "", text, flags=re.DOTALL)
    assert BRITISH.findall(prose.lower()) == []
    assert [char for char in text if ord(char) >= 0x2600] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=named)
def test_a_decision_has_its_four_parts_on_one_page(page: Path) -> None:
    text = text_of(page)
    assert [part for part in ADR_PARTS if f"**{part}**" not in text] == []
    assert text.startswith(f"# {page.name[:4]}: ")
    assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(page.name[:4]) for page in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
