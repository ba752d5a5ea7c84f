"""Tests are sentences about the system; they wait for what happens, never for the clock."""

import ast
import re
from pathlib import PurePath

import pytest

from tests.house.source import called, imported, modules, nodes

pytestmark = pytest.mark.xdist_group("source")  # one worker parses it, once

# The ones that wait for another process, which tells nobody when it is done; and those that kill
# one at a moment of chance; and the receiver and the network whose fault it is to be slow.
WAIT_FOR_PROCESSES = {
    "tests/support/server.py",
    "tests/support/http.py",
    "tests/fault/kill_store.py",
    "tests/fault/kill_service.py",
    "tests/fault/kill_between.py",
    "tests/fault/forked_service.py",
    "tests/fault/group_member.py",
    "tests/fault/topic_deletions.py",
    "tests/fault/hostile_receivers.py",
    "tests/support/fault_proxy.py",
}
VIRTUAL_TIME = "tests.support.simulation"
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LIVES = {"with_house", "with_world"}  # made by `one_life`


def test_no_test_waits_for_the_clock():
    sleepers = {
        path
        for path, module in modules("tests").items()
        if "time.sleep" in {name for name, _ in called(module)}
    }

    assert sleepers <= WAIT_FOR_PROCESSES


def test_nobody_imports_sleep_by_its_bare_name():
    for path, module in modules("tests").items():
        for node in nodes(module):
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
                assert "sleep" not in {alias.name for alias in node.names}, path


def test_a_test_sleeps_on_virtual_time_only():
    """`asyncio.sleep(0)` gives others their turn; any other costs nothing in a simulated world, and
    may stand nowhere else.
    """
    for path, module in modules("tests").items():
        if path in WAIT_FOR_PROCESSES or not _sleeps(module):
            continue
        known = {node.module for node in nodes(module) if isinstance(node, ast.ImportFrom)}
        assert VIRTUAL_TIME in known, f"{path} sleeps on real time"
        for node in module.body:
            if (
                isinstance(node, ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not _is_one_life(node)
            ):
                assert not _sleeps(node), f"{path}: {node.name} runs on the real event loop"


def _is_one_life(test: ast.AsyncFunctionDef) -> bool:
    """Has a simulated world, by a decorator of tests/support/lives.py."""
    return any(
        isinstance(one, ast.Call) and ast.unparse(one.func) in LIVES for one in test.decorator_list
    )


def test_every_test_is_named_as_a_sentence():
    for path, module in modules("tests").items():
        for node in nodes(module):
            if isinstance(node, _FUNCTION) and node.name.startswith("test"):
                assert len(node.name.split("_")) >= 4, f"{path}: {node.name} is no sentence"
                # "nothing it should not" and "more than it should" say what is.
                assert not re.search(r"(?<!_it)_should_", node.name), (
                    f"{path}: {node.name} says what should be; say what is"
                )


def test_every_test_lies_in_a_file_that_is_collected():
    for path, module in modules("tests").items():
        tests = [
            node
            for node in nodes(module)
            if isinstance(node, _FUNCTION) and node.name.startswith("test_")
        ]
        assert not tests or PurePath(path).name.startswith("test_"), (
            f"{path} has tests that nobody runs"
        )


def test_no_part_of_the_house_is_replaced_by_a_mock():
    users = [
        path
        for path, module in modules("tests").items()
        if {"unittest", "mock", "pytest_mock"} & set(imported(module))
    ]

    assert users == []


def _sleeps(node: ast.AST) -> list[ast.Call]:
    """Calls of `asyncio.sleep` with anything but a plain 0."""
    return [
        call
        for name, call in called(node)
        if name == "asyncio.sleep"
        and not (isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)
    ]
