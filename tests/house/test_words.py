"""The public text is plain English: words that need a glossary stay out of it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.problems import CODES
from tests.house.source import PRODUCT, ROOMS, ROOT, modules, nodes

PRIVATE = re.compile(
    r"\b(?:whoever|anybody|somebody|nobody|anew|lent|(?:was|is|are)\s+told|of\s+its\s+own\s+accord)\b",
    re.IGNORECASE,
)
MOST_IN_THE_DOCUMENTS = 10
BEGINNING = re.compile(r"(?:What|That|Who|Whoever)\b")
# of a docstring that leaves out its noun
PRONOUN = re.compile(r"(?:Of|Those|They|It|Its|Their|So\s+many|None)\b")
# of one that says first who may call, and nothing else
OWNER = re.compile(r"The\s+\w+(?:\s+(?:lane|loop|thread))?'s\s*[.,;:]|The\s+\w+\s+lane's\b")
FEWEST_WORDS = 4  # of the docstring of a class
REFUSALS = {"Refusal", "invalid_field", "FieldError", "too_large", "UrlRefused"}
REFUSALS |= {error.__name__ for error in CODES}
# in the detail of a refusal, which clients read
ODD = re.compile(
    r"\b(?:stands?|lies?|said|go(?:es)?\s+with|cannot\s+be\s+had|(?:is|are)\s+taken"
    r"|as\s+(?:may\s+be|(?:they|it|there)\s+may))\b|(?<!there\s)\bis\s+no\b(?!\slonger)"
)


def private_words(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {word}" for word in PRIVATE.findall(path.read_text("utf-8"))
    ]


@pytest.mark.parametrize("name", ["openapi/openapi.json", "app/problems.toml"])
def test_the_contract_has_no_private_words(name):
    assert private_words(ROOT / name) == []


def test_the_documents_have_hardly_any_private_words():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += [*sorted((ROOT / "clients").glob("*/README.md")), ROOT / "client" / "README.md"]

    found = [word for page in pages for word in private_words(page)]

    assert len(found) <= MOST_IN_THE_DOCUMENTS, found


def test_every_page_says_first_what_it_is_for():
    """A heading, then a sentence: no page begins with a table, a list or a figure.

    The decisions have a form of their own.
    """
    for page in sorted((ROOT / "docs").glob("*.md")):
        title, empty, first = page.read_text("utf-8").split("\n")[:3]

        assert title.startswith("# "), page.name
        assert empty == "", page.name
        assert re.match(r"[A-Z`]", first), f"{page.name} begins with {first!r}"


def files_of(room: str) -> dict[str, ast.Module]:
    """The product files whose path is this room, or begins with it."""
    return {
        path: module
        for path, module in modules(*PRODUCT).items()
        if path == room or path.startswith(f"{room}/")
    }


Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def documented(room: str) -> Iterator[tuple[str, Documented]]:
    for path, module in files_of(room).items():
        for node in nodes(module):
            if isinstance(node, Documented):
                yield path, node


def place(path: str, node: Documented) -> str:
    return f"{path}:{node.lineno} {node.name}"


@pytest.mark.parametrize("room", PRODUCT)
def test_a_docstring_begins_with_a_verb_or_a_noun(room):
    assert files_of(room)

    found = [
        place(path, node)
        for path, node in documented(room)
        if BEGINNING.match(ast.get_docstring(node) or "")
    ]
    found += [
        path
        for path, module in files_of(room).items()
        if BEGINNING.match(ast.get_docstring(module) or "")
    ]

    assert found == []


@pytest.mark.parametrize("room", PRODUCT)
def test_a_docstring_does_not_begin_with_a_pronoun(room):
    found = [
        place(path, node)
        for path, node in documented(room)
        if PRONOUN.match(ast.get_docstring(node) or "")
    ]

    assert found == []


@pytest.mark.parametrize("room", PRODUCT)
def test_a_docstring_says_what_before_it_says_in_which_lane(room):
    found = [
        place(path, node)
        for path, node in documented(room)
        if OWNER.match(ast.get_docstring(node) or "")
    ]

    assert found == []


@pytest.mark.parametrize("room", PRODUCT)
def test_the_docstring_of_a_class_has_at_least_four_words(room):
    found = [
        place(path, node)
        for path, node in documented(room)
        if isinstance(node, ast.ClassDef)
        and (text := ast.get_docstring(node)) is not None
        and len(text.split()) < FEWEST_WORDS
    ]

    assert found == []


@pytest.mark.parametrize("room", PRODUCT)
def test_the_code_has_no_private_words(room):
    assert [word for path in files_of(room) for word in private_words(ROOT / path)] == []


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


@pytest.mark.parametrize("room", PRODUCT)
def test_the_detail_of_a_refusal_is_in_plain_words(room):
    found = [
        f"{path}:{text.lineno} {text.value}"
        for path, module in files_of(room).items()
        for node in nodes(module)
        if isinstance(node, ast.Call) and called(node) in REFUSALS
        for text in ast.walk(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and ODD.search(text.value)
    ]

    assert found == []


@pytest.mark.parametrize("room", PRODUCT)
def test_no_product_file_is_named_like_a_test(room):
    names = [Path(path).name for path in files_of(room)]

    assert [name for name in names if re.match(r"test_.*\.py|.*_test\.py", name)] == []


@pytest.mark.parametrize("room", PRODUCT)
def test_no_two_public_classes_of_a_folder_have_one_name(room):
    found = Counter(
        (str(Path(path).parent), node.name)
        for path, node in documented(room)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [name for name, count in found.items() if count > 1] == []


def test_no_page_and_no_file_counts_the_methods_of_the_engine_in_words():
    """The number of methods of `MessageStore` changes; a count in prose does not."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files = [ROOT / path for path in modules(*ROOMS)]

    found = [
        path.name for path in pages + files if re.search(r"nine\s+methods", path.read_text("utf-8"))
    ]

    assert found == []
