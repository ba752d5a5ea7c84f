"""Regular expressions of Python can take exponential time, so none comes from a client: each is
written in the source.
"""

import ast

import pytest

from tests.house.source import PRODUCT, dotted, modules, nodes

pytestmark = pytest.mark.xdist_group("source")  # one worker parses it, once

MATCHING = (
    "compile",
    "match",
    "fullmatch",
    "search",
    "finditer",
    "findall",
    "split",
    "sub",
    "subn",
)


def test_every_regular_expression_is_made_when_its_module_is_imported():
    """The patterns of a topic's schema are matched in linear time, by the library of schemas; they
    are no business of `re`.
    """
    for path, module in modules(*PRODUCT).items():
        for function in nodes(module):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and dotted(node.func) in {
                    f"re.{name}" for name in MATCHING
                }:
                    assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}"
