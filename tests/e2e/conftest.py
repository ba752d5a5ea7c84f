"""One service for all tests that leave it as they found it; topics are made by name, so that no
test meets another's.
"""

import logging
import os
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest
import structlog

from tests.support.http import ok
from tests.support.server import Server

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service") / "data", dev=False, forked=False) as running:
        yield running


@pytest.fixture(scope="session")
def api(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def logging_as_before():
    """For commands that run in this process, and configure its log."""
    before, handlers, level = structlog.get_config(), logging.root.handlers[:], logging.root.level
    yield
    structlog.configure(**before)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def no_settings_of_the_machine(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ESCROWMQ_")]:
        monkeypatch.delenv(name)


_numbers = count(1)


@pytest.fixture
def make_topic(api) -> MakeTopic:
    """A new topic of one queue, unless another number is asked for; its name."""

    def make(**settings) -> str:
        name = f"topic-{next(_numbers)}"
        ok(api.post("/v1/topics", json={"topic": name, "queues": 1, **settings}), 201)
        return name

    return make


@pytest.fixture
def topic(make_topic) -> str:
    return make_topic()
