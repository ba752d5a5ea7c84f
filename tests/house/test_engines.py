"""The interface of a storage engine: how large it is, that all of it is asked of every engine, and
that the service asks no engine what it is.
"""

import ast
import re

import pytest

from tests.house.source import PRODUCT, ROOT, dotted, modules, nodes

pytestmark = pytest.mark.xdist_group("source")  # one worker parses it, once

INTERFACES = {
    "MessageStore": ROOT / "storage/store.py",
    "StoreAdmin": ROOT / "storage/store_admin.py",
}


def interface(name: str) -> tuple[str, set[str]]:
    """The docstring of a Protocol, and the names of its methods."""
    (found,) = [
        node
        for node in ast.parse(INTERFACES[name].read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    methods = [one for one in found.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return ast.get_docstring(found) or "", {one.name for one in methods}


@pytest.mark.parametrize("name", INTERFACES)
def test_an_interface_says_how_many_methods_it_has(name):
    docstring, methods = interface(name)

    assert [int(number) for number in re.findall(r"(\d+) methods", docstring)] == [
        len(methods - {"admin"})
    ]


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "docs/code.md"])
def test_the_documents_say_how_many_methods_an_engine_has(page):
    counts = [str(len(interface(name)[1] - {"admin"})) for name in INTERFACES]

    assert re.findall(r"(\d+)\s+methods", (ROOT / page).read_text("utf-8")) == counts


def test_every_method_of_the_interface_is_asked_of_every_engine():
    called = {
        node.attr
        for path in (ROOT / "tests/conformance").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and dotted(node.value) == "store"
    }

    assert interface("MessageStore")[1] - called == set()


def test_the_service_asks_no_store_for_its_class():
    asked = [
        f"{path}:{node.lineno}"
        for path, module in modules(*PRODUCT).items()
        for node in nodes(module)
        if isinstance(node, ast.Call)
        and dotted(node.func) in ("isinstance", "issubclass")
        and re.search(r"\b_?(?:store|engine)\b", ast.unparse(node.args[0]))
    ]

    assert asked == []
