"""The public text is plain English: words that need a glossary stay out of it."""

import re
from pathlib import Path

import pytest

from tests.house.source import ROOT

PRIVATE = re.compile(
    r"\b(?:whoever|anybody|somebody|nobody|anew|lent|(?:was|is|are)\s+told|of\s+its\s+own\s+accord)\b", re.IGNORECASE
)
MOST_IN_THE_DOCUMENTS = 10


def private_words(path: Path) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {word}" for word in PRIVATE.findall(path.read_text("utf-8"))]


@pytest.mark.parametrize("name", ["openapi/openapi.json", "app/problems.toml"])
def test_the_contract_has_no_private_words(name):
    assert private_words(ROOT / name) == []


def test_the_documents_have_hardly_any_private_words():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

    found = [word for page in pages for word in private_words(page)]

    assert len(found) <= MOST_IN_THE_DOCUMENTS, found


def test_every_page_says_first_what_it_is_for():
    """A heading, then a sentence: no page begins with a table, a list or a figure. The decisions have a form of their own."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        title, empty, first = page.read_text("utf-8").split("\n")[:3]

        assert title.startswith("# "), page.name
        assert empty == "", page.name
        assert re.match(r"[A-Z`]", first), f"{page.name} begins with {first!r}"
