"""One service for all tests of the client; topics and groups are made by name, so that no test
meets another's.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest

from escrowmq_client import Client
from tests.support.server import Server

MakeName = Callable[[], str]


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("client-service") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    # Nothing is encrypted, and reading the certificates takes longer than most tests.
    with httpx.Client(trust_env=False, verify=False) as opened:
        yield opened


@pytest.fixture
def client(server, http) -> Client:
    return Client(server.url, http=http)


_numbers = count(1)


@pytest.fixture
def topic(client) -> str:
    """A new topic of one queue; its name."""
    return client.create_topic(f"topic-{next(_numbers)}", queues=1).topic


@pytest.fixture
def group(client, topic) -> str:
    """A new group that reads the topic; its name."""
    return client.put_group(f"group-of-{topic}", topics=[topic]).group


@pytest.fixture
def not_captured() -> Iterator[None]:
    """Switch the client's log off: pytest-xdist cannot report one that has a lone surrogate."""
    logs = [logging.getLogger(name) for name in ("escrowmq_client", "escrowmq_client.checker")]
    for log in logs:
        log.disabled = True
    yield
    for log in logs:
        log.disabled = False
