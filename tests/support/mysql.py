"""A MariaDB server for tests, where the machine has one: no package of the index brings it."""

import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType

import pymysql

_PATIENCE_SECONDS = 120  # as on a busy machine

# What a power cut would take is of no use to a test: no syncs.
_OPTIONS = (
    "--no-defaults --datadir=$PWD/data --socket=$PWD/socket --pid-file=$PWD/pid --skip-networking"
    " --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 --innodb-flush-method=nosync"
    " --innodb-buffer-pool-size=32M --innodb-log-file-size=16M"
)
# The shell outlives whoever started it: when its input ends, so does the server, and its folder is
# removed.
_RUN = f"""
mariadb-install-db --no-defaults --datadir=$PWD/data --skip-test-db --skip-name-resolve \
    --auth-root-authentication-method=normal $AS > log 2>&1 || {{ echo failed; exit; }}
mariadbd {_OPTIONS} $AS >> log 2>&1 &
server=$!
until mariadb-admin --no-defaults -S $PWD/socket -u root ping > /dev/null 2>&1; do
    kill -0 $server || {{ echo failed; exit; }}
    sleep 0.05
done
echo ready
read -r end
kill -9 $server
wait $server 2> /dev/null
rm -rf "$PWD"
"""


def is_installed() -> bool:
    return all(map(shutil.which, ("mariadbd", "mariadb-install-db", "mariadb-admin")))


class MySql:
    """A server on a Unix socket in a folder of its own.

    Use as a context manager: it runs in there, and leaves nothing.
    """

    def __init__(self) -> None:
        # not pytest's: the path of a socket is short
        self._folder = Path(tempfile.mkdtemp(prefix="escrowmq-"))
        self._numbers = count(1)

    def __enter__(self) -> "MySql":
        user = "--user=root" if os.geteuid() == 0 else ""
        self._shell = subprocess.Popen(
            ["sh", "-c", _RUN],
            cwd=self._folder,
            env={"PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin", "AS": user},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._shell.stdout is not None
        if self._shell.stdout.readline() != "ready\n":
            raise RuntimeError((self._folder / "log").read_text("utf-8", "replace"))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._shell.communicate("", timeout=_PATIENCE_SECONDS)

    @property
    def socket(self) -> str:
        return str(self._folder / "socket")

    def new_database(self) -> str:
        """Make one; its name."""
        name = f"test_{next(self._numbers)}"
        connection = pymysql.connect(unix_socket=self.socket, user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str) -> str:
        return f"mysql+pymysql://root@localhost/{database}?unix_socket={self.socket}"
