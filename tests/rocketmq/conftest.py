"""One driver for all tests of a worker, and a store that brokers and services take turns on."""

from collections.abc import Iterator

import pytest

from tests.rocketmq.driver import Driver
from tests.rocketmq.stage import Stage


@pytest.fixture(scope="session")
def driver(tmp_path_factory) -> Iterator[Driver]:
    with Driver(tmp_path_factory.mktemp("driver")) as running:
        yield running


@pytest.fixture
def stage(driver, tmp_path) -> Iterator[Stage]:
    with Stage(driver, tmp_path) as made:
        yield made
