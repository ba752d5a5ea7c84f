"""What the documents point to exists: files, verbs of make, promises' tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.transactions.schemas import CheckInput
from tests.house.import_graph import drawing
from tests.house.source import PRODUCT, ROOT, modules
from txn.checkback_plan import CheckbackPolicy

NOT_OURS = ("build", "data", "node_modules", "target")


def documents(folder: Path) -> Iterator[Path]:
    """The pages in a folder; folders that are not ours are not entered: they may change."""
    for path in folder.iterdir():
        if path.is_dir():
            if not path.name.startswith(".") and path.name not in NOT_OURS:
                yield from documents(path)
        elif path.suffix == ".md":
            yield path


DOCUMENTS = sorted(documents(ROOT))
VERBS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def test_the_documents_are_found():
    assert {"README.md", "ARCHITECTURE.md", "CHANGELOG.md"} <= {path.name for path in DOCUMENTS}
    assert {"run", "test", "check"} <= VERBS


@each_document
def test_every_link_inside_the_repository_points_to_something(path):
    links = [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))
        if "://" not in link
    ]

    for link in links:
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if heading:
            assert heading in headings(target.read_text("utf-8")), link


def test_no_two_decisions_have_one_number_and_each_says_its_own():
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [path.name[:4] for path in decisions]

    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    for path in decisions:
        assert path.read_text("utf-8").startswith(f"# {path.name[:4]}: ")


@each_document
def test_no_line_is_wider_than_a_hundred_unless_it_is_a_row_of_a_table(path):
    lines = path.read_text("utf-8").splitlines()

    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


@each_document
def test_every_verb_of_make_that_is_named_exists(path):
    text = path.read_text("utf-8")
    named = re.findall(r"`make ([a-z-]+)", text) + re.findall(
        r"^make ([a-z-]+)", text, re.MULTILINE
    )

    assert set(named) <= VERBS


@each_document
def test_every_file_that_is_named_in_full_exists(path):
    """`tests/unit/test_unit.py`; a name without a folder belongs to whatever the sentence
    is about.
    """
    rooms = {child.name for child in ROOT.iterdir() if child.is_dir()} - {"data"}
    for name in re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|toml|md|json))`", path.read_text("utf-8")):
        if name.partition("/")[0] in rooms:
            assert (ROOT / name).exists() or (path.parent / name).exists(), name


def test_every_bare_test_file_that_the_architecture_names_exists():
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}

    for name in re.findall(r"`(test_\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text("utf-8")):
        assert name in tests


def test_every_file_and_folder_of_the_product_that_the_architecture_names_exists():
    """`read/reader.py` or `reader.py`, where the sentence says in which package."""
    files = [f"/{path}" for path in modules(*PRODUCT)]
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = [name for name in re.findall(r"`([\w/]+\.py)`", text) if "test" not in name]
    folders = re.findall(r"`([\w/]+/)`", text)

    assert len(named) > 100
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
    assert [name for name in folders if not any(f"/{name}" in file for file in files)] == []


def test_the_import_graph_of_the_architecture_is_that_of_the_code():
    """`python -m tests.house.import_graph` prints the one of the code."""
    assert f"```\n{drawing()}\n```" in (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def test_every_test_that_a_document_names_exists():
    """`test_file.py::test_name`."""
    named = [
        (path, file, test)
        for path in DOCUMENTS
        for file, test in re.findall(r"`(test_\w+\.py)::(test_\w+)`", path.read_text("utf-8"))
    ]

    assert named
    for path, file, test in named:
        texts = [found.read_text("utf-8") for found in (ROOT / "tests").rglob(file)]
        assert any(re.search(rf"def {test}\(", text) for text in texts), (
            f"{path.name}: {file} has no {test}"
        )


def test_the_defaults_of_checks_are_the_ones_in_the_page():
    """Where they are said, where they are taken, and where they are used."""
    page = (ROOT / "docs" / "transactions.md").read_text("utf-8")
    said = {
        name: value.replace(",", "")
        for name, value in re.findall(r"^\| `(\w+)` \| ([\w,]+) \|", page, re.MULTILINE)
    }

    taken = {name: str(value) for name, value in msgspec.structs.asdict(CheckInput()).items()}
    used = {name: str(value) for name, value in msgspec.structs.asdict(CheckbackPolicy()).items()}

    assert said == taken == used


def headings(text: str) -> set[str]:
    """The names by which headings are linked to."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
