"""`python -m tests.house.figures [DIR]`: the figures of docs/code.md.

Sizes are those of the sources in DIR, another checkout say. Hops are those of this code: requests
go to a service in this process as bytes of a connection, and `sys.setprofile` counts the calls.
"""

import ast
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import structlog

from storage.local.options import FlushPolicy
from tests.house.source import PRODUCT, ROOT
from tests.support.two_ways import Way

Function = ast.FunctionDef | ast.AsyncFunctionDef

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_LONG_LINES = 60  # of a function
_WARM_UP, _ROUNDS = 5, 9
_TOPIC = "/v1/topics/orders/messages"
_GROUP = "/v1/groups/billing"


class Sizes(NamedTuple):
    """Lines and statements of the files of some packages; an `__init__.py` is no file here."""

    lines: int
    statements: int
    files: list[int]
    functions: list[int]
    complexities: list[int]

    def row(self) -> str:
        return (
            f"{self.lines:,} lines, {self.statements:,} statements, {len(self.files)} files of "
            f"{_spread(self.files)}, {len(self.functions):,} functions of "
            f"{_spread(self.functions)}, {sum(n > _LONG_LINES for n in self.functions)} over "
            f"{_LONG_LINES}; complexity {_spread(self.complexities)}"
        )


def sizes(root: Path, packages: Sequence[str]) -> Sizes:
    """The sizes of packages in a checkout."""
    found = Sizes(0, 0, [], [], [])
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        text = path.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        found = found._replace(
            lines=found.lines + len(text.splitlines()),
            statements=found.statements + sum(isinstance(node, ast.stmt) for node in nodes),
        )
        if path.name != "__init__.py":
            found.files.append(len(text.splitlines()))
        for node in nodes:
            if isinstance(node, Function):
                lines, complexity = function_size(node)
                found.functions.append(lines)
                found.complexities.append(complexity)
    return found


def function_size(function: Function) -> tuple[int, int]:
    """(lines of the body without the docstring, cyclomatic complexity)."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
    nodes = list(ast.walk(function))
    complexity = (
        1
        + sum(isinstance(node, _BRANCHES) for node in nodes)
        + sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
        + sum(1 + len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    )
    return lines, complexity


def _spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"{median(ordered):g} / {ordered[len(ordered) * 9 // 10]} / {ordered[-1]}"


class Hops(NamedTuple):
    """The way of one request through our files."""

    files: int
    calls: int
    switches: int  # from one file to another, call by call
    foreign: int  # Python calls in packages that are not ours


class _Count:
    """Counts the calls of all threads while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._files: Counter[str] = Counter()
        self._switches = self._foreign = 0
        self._last: dict[int, str] = {}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_on or event != "call":
            return
        path = frame.f_code.co_filename
        if not path.startswith(_OURS):
            self._foreign += "site-packages" in path
            return
        thread = threading.get_ident()
        self._switches += self._last.get(thread, path) != path
        self._last[thread] = path
        self._files[path] += 1

    async def of(self, way: Way, request: bytes) -> tuple[Hops, bytes]:
        """Ask; the hops of the request, and its answer."""
        self._files.clear()
        self._last.clear()
        self._switches = self._foreign = 0
        self._is_on = True
        answer = await way.ask(request)
        self._is_on = False
        calls = sum(self._files.values())
        return Hops(len(self._files), calls, self._switches, self._foreign), answer


_OURS = tuple(f"{ROOT / package}/" for package in PRODUCT)


def hops(directory: Path) -> dict[str, Hops]:
    """The fewest hops of several requests of each kind: loops run in between at times."""
    count = _Count()
    threading.setprofile(count.note)
    sys.setprofile(count.note)
    try:
        return asyncio.run(_hops(directory, count))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _hops(directory: Path, count: _Count) -> dict[str, Hops]:
    found: dict[str, list[Hops]] = {}
    async with Way(directory, is_direct=True, flush=FlushPolicy.BEFORE_ACK) as way:
        await way.ask(_request(f"POST {_TOPIC}", {"payload": "first"}, is_plain=True))
        subscription = {"topics": [{"topic": "orders"}]}
        await way.ask(_request(f"PUT {_GROUP}", subscription, is_plain=True))
        for is_plain in (True, False):
            for number in range(_WARM_UP + _ROUNDS):
                async for name, one in _round(way, count, is_plain=is_plain, number=number):
                    if number >= _WARM_UP:
                        found.setdefault(name, []).append(one)
    return {name: min(several, key=lambda one: one.calls) for name, several in found.items()}


async def _round(
    way: Way, count: _Count, *, is_plain: bool, number: int
) -> AsyncIterator[tuple[str, Hops]]:
    """One request of each kind, each after those that it needs."""

    async def ask(name: str, target: str, value: object = None) -> dict[str, Any]:
        request = _request(target, value, is_plain=is_plain)
        one, answer = await count.of(way, request)
        assert answer.startswith(b"HTTP/1.1 20"), answer
        asked.append((f"{name}, {'plain' if is_plain else 'any other'}", one))
        body: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return body

    asked: list[tuple[str, Hops]] = []
    place = await ask("send", f"POST {_TOPIC}", {"payload": "x"})
    queue = f"/v1/topics/orders/queues/{place['queue_id']}/messages"
    await ask("pull", f"GET {queue}?offset={place['queue_offset']}")
    received = await ask("receive", f"POST {_GROUP}/receive", {"max_messages": 1})
    handles = [{"receipt_handle": one["receipt_handle"]} for one in received["messages"]]
    await ask("ack", f"POST {_GROUP}/ack", {"entries": handles})
    begun = await ask(
        "begin",
        "POST /v1/transactions",
        {"producer_group": "shop", "messages": [{"topic": "bills", "message": {"payload": "x"}}]},
    )
    await ask("commit", f"POST /v1/transactions/{begun['transaction_id']}/commit")
    for one in asked:
        yield one


def _request(target: str, value: object, *, is_plain: bool) -> bytes:
    body = b"" if value is None else json.dumps(value).encode()
    more = b"" if is_plain else b"X-Trace: 1\r\n"  # not a head that the server remembers
    length = b"" if target.startswith("GET") else b"Content-Length: %d\r\n" % len(body)
    head = b"%b HTTP/1.1\r\nHost: localhost\r\n%b%b\r\n" % (target.encode(), more, length)
    return head + body


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for packages in (*((package,) for package in PRODUCT), PRODUCT, ("tests",)):
        name = packages[0] if len(packages) == 1 else "product"
        sys.stdout.write(f"{name}: {sizes(root, packages).row()}\n")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with tempfile.TemporaryDirectory() as directory:
        for name, one in hops(Path(directory)).items():
            sys.stdout.write(f"{name}: {one}\n")


if __name__ == "__main__":
    main()
