"""The repository as text: what tests about its own source read."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOWER_FLOORS = ("storage", "txn", "scheduler", "delivery")
PRODUCT = (*LOWER_FLOORS, "app", "audit", "cli", "escrowmq", "client", "pytest_escrowmq")
PACKAGES = tuple("escrowmq_client" if room == "client" else room for room in PRODUCT)
ROOMS = (*PRODUCT, "examples", "benchmarks", "tests")


def modules(*rooms: str) -> dict[str, ast.Module]:
    """The modules of these rooms by their path from the root."""
    paths = sorted(
        path
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if "build" not in path.relative_to(ROOT).parts  # a copy, left by `pip install ./client`
    )
    assert paths, f"nothing is in {rooms}"
    return {path.relative_to(ROOT).as_posix(): _parsed(path) for path in paths}


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """All that is in it, as `ast.walk` goes: once for all tests that ask."""
    return tuple(ast.walk(module))


def imported(module: ast.Module) -> Iterator[str]:
    """The first part of every name that it imports, inside functions too."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def called(part: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the dotted name of what it calls, where that is a name."""
    for node in nodes(part) if isinstance(part, ast.Module) else ast.walk(part):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; a part that is no name is `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))
