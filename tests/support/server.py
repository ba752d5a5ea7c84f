"""A real service in a process of its own, to talk to over HTTP and to kill."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.support.loaded_command import ForkedProcess, loaded_command

_PROGRAM = Path(sys.executable).with_name("escrowmq")
_SMALL_AND_QUICK = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 24),
    "ESCROWMQ_LOCAL__VERIFY_BYTES_PER_SECOND": str(1 << 30),
}
_START_SECONDS = 120  # of patience, as on a busy machine
_STOP_SECONDS = 60


def reserved_port(port: int = 0) -> socket.socket:
    """A port of loopback that no other program is given while this socket is open.

    `port`: this very one, OSError if it is in use or reserved; 0 is one that is free.

    It never listens: a server that asks for this very port beside it gets it (Linux; SO_REUSEADDR
    on both), and no program is given it by chance, neither for a server of its own nor for the near
    end of a connection. It is bound before it allows others, so that no port is reserved twice.
    """
    holder = socket.socket()
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        raise
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


class Server:
    """`escrowmq serve` on loopback.

    Use as a context manager: whatever is left of it at the end is killed.
    """

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        dev: bool = True,
        environment: Mapping[str, str | None] | None = None,
        open_files: tuple[int, int] | None = None,
        forked: bool = True,
    ) -> None:
        """`environment`: None leaves out what is usual.

        `open_files`: limits of open files of the process, soft and hard.

        `forked`: see loaded_command.py.
        """
        self._forked = forked
        self._open_files = open_files
        self.data_dir = data_dir
        reserved = reserved_port()
        weakref.finalize(self, reserved.close)  # it is started again and again, at the same address
        self.port = int(reserved.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = [*(["--dev"] if dev else []), *arguments]
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.log_path = data_dir.with_suffix(".log")

    @property
    def command(self) -> list[str]:
        port, data_dir = str(self.port), str(self.data_dir)
        return [str(_PROGRAM), "serve", "--port", port, "--data-dir", data_dir, *self._arguments]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def environment(self) -> Mapping[str, str | None]:
        """Settings of the next start."""
        return self._environment

    def configure(self, **settings: str) -> None:
        """Settings of the next start, beside those that it has."""
        self._environment = {**self._environment, **settings}

    def start(self, *, until_ready: bool = True) -> None:
        """Start the process; with `until_ready` return once it serves.

        Raises RuntimeError when it ends instead.
        """
        given = {**clean_environment(), **_SMALL_AND_QUICK, **self._environment}
        environment = {name: value for name, value in given.items() if value is not None}
        with self.log_path.open("ab") as log:
            if self._forked:
                module, *arguments = (
                    self.command[2:] if self.command[1] == "-m" else ["escrowmq", *self.command[1:]]
                )
                self._process = loaded_command().start(
                    module,
                    arguments,
                    environment=environment,
                    output=log.fileno(),
                    open_files=self._open_files,
                )
            else:
                self._process = subprocess.Popen(
                    self.command,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    preexec_fn=self._set_limits,
                )
        if until_ready:
            self.wait_until_ready()

    def _set_limits(self) -> None:
        if self._open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(
                    f"the service ended with {self._process.returncode}:\n{self.log()}"
                )
            if self._is_ready():
                return
            # polling a process is the one place where a test has to wait for the clock
            time.sleep(0.02)
        raise RuntimeError(f"the service was not ready in {_START_SECONDS} s:\n{self.log()}")

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    def listens(self) -> bool:
        """Does it answer, ready or not?"""
        with self.client() as api, suppress(httpx.TransportError):
            return api.get("/livez").status_code == 200
        return False

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_STOP_SECONDS)

    def terminate(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; the exit status."""
        assert self._process is not None
        self._process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        """Until it ends by itself; the exit status."""
        assert self._process is not None
        return self._process.wait(_STOP_SECONDS)

    def client(self, **options: Any) -> httpx.Client:
        # Nothing is encrypted, and reading the certificates that are verified by takes longer than
        # most tests.
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False, **options)

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")


class AsgiServer(Server):
    """The ASGI application under plain uvicorn, without the service's own server."""

    @property
    def command(self) -> list[str]:
        _, *arguments = super().command
        return [sys.executable, "-m", "tests.support.asgi_program", *arguments]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ESCROWMQ_")}
