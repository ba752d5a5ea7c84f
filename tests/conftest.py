"""Set-up for every test: warnings are errors (pyproject.toml), log lines stay quiet; and where a
registry may stand.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# the fixtures start this checkout, whatever is installed on the machine
os.environ["ESCROWMQ_EXECUTABLE"] = str(Path(sys.executable).with_name("escrowmq"))
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
# an example may wait for a busy machine
settings.register_profile("escrowmq", settings.default, deadline=None)
settings.load_profile("escrowmq")


def pytest_collection_finish() -> None:
    """Keep seven thousand tests and their modules out of each search for garbage."""
    gc.collect()
    gc.freeze()


_NOBODY = 65_534  # as most systems have it

ON_POSTGRESQL = pytest.mark.xdist_group("postgresql")  # one worker has the server


@pytest.fixture(scope="session")
def postgresql() -> Iterator:
    """A `PostgreSql` that runs; who stops it starts it again."""
    # half a second, which most runs of few tests have no use for
    from tests.support.postgresql import PostgreSql

    with PostgreSql() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)])
def new_database(request, tmp_path) -> Callable[[], str]:
    """Makes an empty database at each call, of one kind and then of the other; its URL."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").new_database
    numbers = count(1)
    return lambda: f"sqlite:///{tmp_path / f'database-{next(numbers)}.db'}"


@pytest.fixture
def database_url(new_database) -> str:
    return new_database()


@pytest.fixture
def folder_of_a_user() -> Iterator[Path]:
    """A folder whose permissions hold for the test: it runs as the owner, and not as root."""
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-"))  # pytest's are root's alone
    before = os.geteuid()
    if before == 0:
        os.chown(folder, _NOBODY, -1)
        os.seteuid(_NOBODY)
    yield folder
    os.seteuid(before)
    shutil.rmtree(folder)
