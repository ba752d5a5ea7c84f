"""The closed list of problem codes: all that is raised has one, all that is listed is raised, and
each explains itself.
"""

import ast
from collections.abc import Iterator

import pytest

from app.health import endpoints as health
from app.problems import CODES, PROBLEMS, Refusal
from storage.errors import MessagingError, RejectedError, StorageError, UnavailableError
from tests.house.source import PRODUCT, called, dotted, modules, nodes

pytestmark = pytest.mark.xdist_group("source")  # one worker parses it, once

# who can act; what is raised is one of their kinds
SIDES = {MessagingError, RejectedError, UnavailableError, StorageError}


def test_every_error_of_the_house_has_a_code():
    assert set(tree(MessagingError)) == set(CODES)


def test_every_code_of_an_error_is_in_the_list():
    assert set(CODES.values()) <= set(PROBLEMS)


def test_every_code_that_the_door_refuses_with_is_in_the_list():
    codes = refused_with()

    assert codes - set(PROBLEMS) == set()
    assert len(codes) > 10


def test_the_codes_that_nothing_raises_are_marked_as_reserved_and_no_others():
    """The list is closed: a code has its page before a release answers with it, and the page says
    that none does yet.
    """
    names = raised_names()
    raised = {CODES[kind] for kind in tree(MessagingError) if kind.__name__ in names}

    assert {code for code, kind in PROBLEMS.items() if kind.is_reserved} == set(
        PROBLEMS
    ) - raised - refused_with()


def test_every_error_of_the_house_is_raised_somewhere():
    unused = {kind.__name__ for kind in tree(MessagingError) if kind not in SIDES} - raised_names()
    parents = {parent.__name__ for kind in tree(MessagingError) for parent in kind.__bases__}

    assert unused - parents == set()


def test_the_house_raises_an_error_of_its_tree_or_one_of_our_own_mistakes():
    """A bare Exception says neither where nor who can act."""
    for path, module in modules(*PRODUCT).items():
        for node in nodes(module):
            if isinstance(node, ast.Raise) and node.exc is not None:
                what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                assert dotted(what) not in ("Exception", "BaseException"), f"{path}:{node.lineno}"


def test_the_first_paragraph_of_every_error_is_its_default_text_in_one_line():
    for kind in tree(MessagingError):
        first = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        assert first.endswith("."), kind.__name__
        assert first[0].isupper(), kind.__name__


@pytest.mark.parametrize("code", PROBLEMS)
async def test_every_code_has_a_page_that_says_why_and_what_to_do(code):
    kind = PROBLEMS[code]

    page = bytes((await health.problem(code)).body).decode()

    assert 400 <= kind.status < 600
    for text in (kind.title, kind.cause, kind.remedy):
        assert len(text) >= 4
        assert text.strip() == text
    assert kind.cause.endswith(".")
    assert kind.remedy.endswith(".")
    assert all(
        f"<h2>{title}</h2><p>" in page for title in ("Cause", "What to do", "Is it safe to repeat?")
    )
    assert code in page
    assert ("No operation of this release" in page) == kind.is_reserved


def tree(kind: type[MessagingError]) -> Iterator[type[MessagingError]]:
    """The errors that have their code in `CODES`: all but the Refusal, which carries its own."""
    yield kind
    for child in kind.__subclasses__():
        if child is not Refusal:
            yield from tree(child)


def raised_names() -> set[str]:
    """The classes that the product makes an instance of, or raises by their bare name."""
    names = set()
    for module in modules(*PRODUCT).values():
        names |= {name.rpartition(".")[2] for name, _ in called(module)}
        names |= {
            dotted(node.exc)
            for node in nodes(module)
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name)
        }
    return names


def refused_with() -> set[str]:
    """Every code that stands in a call of Refusal, in `invalid_field`, or in a table that such a
    call looks it up in.
    """
    codes = set()
    for module in modules("app", "cli").values():
        tables = {
            target.id: node.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for name, call in called(module):
            if name != "Refusal":
                continue
            code = call.args[0]
            if isinstance(code, ast.Subscript):
                codes |= texts(ast.List(elts=tables[dotted(code.value)].values))
            elif isinstance(code, ast.IfExp):
                codes |= texts(code.body) | texts(code.orelse)
            else:
                codes |= texts(code)
    return codes


def texts(node: ast.AST) -> set[str]:
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
