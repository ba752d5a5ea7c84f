"""The service itself: a real `escrowmq serve` in a process of its own, to be killed and started
again.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from examples.flights import signals

_START_SECONDS = 60
_STOP_SECONDS = 15


class ServerFailed(Exception):
    """The service did not start."""


class Server:
    """On a free port of loopback, the same one after every start."""

    def __init__(self, directory: Path) -> None:
        self.kill_count = 0
        self._log_path = directory / "server.log"
        self._reserved = _reserved_port()
        port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        program = Path(sys.executable).with_name("escrowmq")
        self._command = [
            str(program),
            "serve",
            "--port",
            str(port),
            "--data-dir",
            str(directory / "service"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it serves. Raises ServerFailed."""
        # The demo shows the defaults, whatever is set outside.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ESCROWMQ_")
        }
        with self._log_path.open("ab") as log, signals.deferred():
            # In a process group of its own: a Ctrl-C is for the demo, which then ends the service
            # in good order.
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, process_group=0
            )
        give_up = time.monotonic() + _START_SECONDS
        while not self._is_ready():
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
        self.kill_count += 1

    def stop(self) -> None:
        """For good: in good order where it can, and in any case.

        Does nothing where it does not run.
        """
        self._reserved.close()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            # Without reading certificates, which takes longer than the request.
            return httpx.get(
                f"{self.url}/readyz", timeout=5, trust_env=False, verify=False
            ).is_success
        except httpx.TransportError:
            return False

    def _last_lines(self) -> str:
        return "\n".join(self._log_path.read_text("utf-8", "replace").splitlines()[-20:])


def _reserved_port() -> socket.socket:
    """It never listens, and its port is given to nobody by chance while it is open: whoever asks
    for that very port has it.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
