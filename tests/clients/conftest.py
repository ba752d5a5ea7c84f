"""The service that clients talk to, and the figures of the clients that were generated."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support import mysql
from tests.support.server import Server

KEY = "a-key"
_figures: list[str] = []


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """A service with the topic and the group that live programs use; it wants a key."""
    with Server(tmp_path / "data", environment={"ESCROWMQ_API_KEYS": f'["{KEY}"]'}) as running:
        yield running


@pytest.fixture
def mariadb() -> Iterator[mysql.MySql | None]:
    """A MariaDB server, where the machine has one."""
    if not mysql.is_installed():
        yield None
        return
    with mysql.MySql() as running:
        yield running


@pytest.fixture
def figures() -> list[str]:
    """Rows of a table that is printed when all tests are done."""
    return _figures


def pytest_terminal_summary(terminalreporter) -> None:
    if _figures:
        terminalreporter.write_line("| client | lines | install s | generate s | compile s |")
        terminalreporter.write_line("|---|---|---|---|---|")
        for row in _figures:
            terminalreporter.write_line(row)


def owner(server: Server) -> httpx.Client:
    return server.client(headers={"authorization": f"Bearer {KEY}"})
