"""The databases of producers: SQLite, PostgreSQL and, where the machine has a server, MySQL."""

from collections.abc import Iterator

import pytest

from escrowmq_client import Client, Retry
from pytest_escrowmq.service import EscrowMQ
from tests.client.transactions.databases import (
    Database,
    MySqlDatabase,
    PostgreSqlDatabase,
    SqliteDatabase,
)
from tests.support import mysql as mysql_server

ON_POSTGRESQL = pytest.mark.xdist_group("postgresql")  # one worker has the server
ON_MYSQL = [
    pytest.mark.xdist_group("mysql"),
    pytest.mark.skipif(
        not mysql_server.is_installed(),
        reason="no mariadbd on PATH, and no package of the index brings one",
    ),
]


@pytest.fixture(scope="session")
def mysql() -> Iterator[mysql_server.MySql]:
    with mysql_server.MySql() as server:
        yield server


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=ON_POSTGRESQL),
        pytest.param("mysql", marks=ON_MYSQL),
    ]
)
def database(request, tmp_path) -> Database:
    """An empty database, of one kind after the other."""
    if request.param == "postgresql":
        return PostgreSqlDatabase(request.getfixturevalue("postgresql").new_database())
    if request.param == "mysql":
        server = request.getfixturevalue("mysql")
        return MySqlDatabase(server.socket, server.new_database())
    return SqliteDatabase(str(tmp_path / "shop.db"))


@pytest.fixture(scope="session")
def running(tmp_path_factory) -> Iterator[EscrowMQ]:
    """One service for all these tests: their topics and groups are new at each."""
    with EscrowMQ(tmp_path_factory.mktemp("escrowmq")) as service:
        yield service


@pytest.fixture
def service(running) -> Iterator[EscrowMQ]:
    yield running
    running.mend()


@pytest.fixture
def client(service) -> Iterator[Client]:
    """It repeats nothing, so that a lost answer is one."""
    with Client(service.url, retry=Retry(total_ms=0)) as made:
        yield made
