"""`python -m tests.house.import_graph`: the import graph as ARCHITECTURE.md draws it."""

import sys
import textwrap
from collections.abc import Mapping, Set

import grimp

from tests.house.source import PACKAGES, ROOT

_DIVIDED = ("storage", "storage.local", "delivery", "app", "audit")  # whose parts are drawn
_WIDTH = 90

Graph = Mapping[str, Set[str]]


def drawing() -> str:
    """One line for each package, and one for each part of the divided ones.

    A part is a module or a package in it; of `app`, whose modules are many, a package.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    groups = [_drawn(_arrows(graph, {name: name for name in PACKAGES}))]
    groups += [
        f"{package.replace('.', '/')}/\n{_drawn(_parts(graph, package))}" for package in _DIVIDED
    ]
    return "\n\n".join(groups)


def _parts(graph: grimp.ImportGraph, package: str) -> Graph:
    parts = graph.find_children(package)
    if package == "app":
        parts = {part for part in parts if (ROOT / part.replace(".", "/")).is_dir()}
    return _arrows(graph, {part: part.removeprefix(f"{package}.") for part in parts})


def _arrows(graph: grimp.ImportGraph, names: Mapping[str, str]) -> Graph:
    """By its name, the names of those that a package imports."""
    within = {
        module: name
        for part, name in names.items()
        for module in {part, *graph.find_descendants(part)}
    }
    arrows: dict[str, set[str]] = {name: set() for name in names.values()}
    for module, name in within.items():
        for imported in graph.find_modules_directly_imported_by(module):
            arrows[name] |= {within[imported]} if imported in within else set()
        arrows[name].discard(name)
    return arrows


def _drawn(arrows: Graph) -> str:
    """Lines in which an arrow goes down only; the last one has those that import none of them."""
    floors: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in floors:
            floors[name] = 1 + max(map(floor, arrows[name]), default=-1)
        return floors[name]

    def order(name: str) -> tuple[int, str]:
        return -floor(name), name

    width = max(map(len, arrows))
    names = sorted(arrows, key=order)
    lines = [
        f"{name:{width}} → {' '.join(sorted(arrows[name], key=order))}"
        for name in names
        if arrows[name]
    ]
    lines.append(" ".join(name for name in names if not arrows[name]))
    indent = " " * (width + 3)
    return "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent=indent) for line in lines)


if __name__ == "__main__":
    sys.stdout.write(f"{drawing()}\n")
