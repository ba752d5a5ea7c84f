"""A process of `escrowmq`, which is killed, stopped and started again."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from examples.flights import signals

PROGRAM = Path(sys.executable).with_name("escrowmq")
_START_SECONDS = 60
_STOP_SECONDS = 15


class ServerFailed(Exception):
    """The service did not start."""


class ReservedPort:
    """A free port of loopback. It never listens, and its port is given to no other program by
    chance while it is open: the one that asks for that very port has it.
    """

    def __init__(self) -> None:
        self._holder = holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.number = int(holder.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.number}"
        self.option = ["--port", str(self.number)]

    def close(self) -> None:
        self._holder.close()


class Process:
    """One at a time, with a log that all of them write to."""

    def __init__(self, log_path: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: beside the defaults, which the demo shows whatever is set outside."""
        self._log_path = log_path
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith("ESCROWMQ_")
        }
        self._environment = {**outside, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, arguments: Sequence[str]) -> None:
        with self._log_path.open("ab") as log, signals.deferred():
            # In a process group of its own: a Ctrl-C is for the demo, which then ends the service
            # in good order.
            self._process = subprocess.Popen(
                [str(PROGRAM), *arguments],
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )

    def run(self, arguments: Sequence[str]) -> None:
        """Run a command to its end. Raises ServerFailed."""
        self.start(arguments)
        assert self._process is not None
        if self._process.wait():
            raise ServerFailed(f"escrowmq {' '.join(arguments)} failed:\n{self._last_lines()}")

    def wait_until_ready(self, url: str) -> None:
        """Raises ServerFailed."""
        assert self._process is not None
        give_up = time.monotonic() + _START_SECONDS
        while not _is_ready(url):
            if self._process.poll() is not None:
                raise ServerFailed(
                    "the service ended with status "
                    f"{self._process.returncode}:\n{self._last_lines()}"
                )
            if time.monotonic() > give_up:
                raise ServerFailed(
                    f"the service was not ready after {_START_SECONDS} s:\n{self._last_lines()}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """In good order where it can, and in any case. Does nothing where it does not run."""
        if not self.is_running:
            return
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _last_lines(self) -> str:
        return "\n".join(self._log_path.read_text("utf-8", "replace").splitlines()[-20:])


def _is_ready(url: str) -> bool:
    try:
        # Without reading certificates, which takes longer than the request.
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False, verify=False).is_success
    except httpx.TransportError:
        return False
