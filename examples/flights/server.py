"""The service itself: a real `escrowmq serve` in a process of its own, to be killed and started
again.
"""

from pathlib import Path

from examples.flights.process import Process, ReservedPort


class Server:
    """On a free port of loopback, the same one after every start."""

    def __init__(self, directory: Path) -> None:
        self.kill_count = 0
        self.store = directory / "service" / "store"
        self._port = ReservedPort()
        self.url = self._port.url
        self._arguments = ["serve", *self._port.option, "--data-dir", str(directory / "service")]
        self._process = Process(directory / "server.log")

    def start(self) -> None:
        """Returns once it serves. Raises ServerFailed."""
        self._process.start(self._arguments)
        self._process.wait_until_ready(self.url)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self.kill_count += 1

    def stop(self) -> None:
        """For good: in good order where it can, and in any case.

        Does nothing where it does not run.
        """
        self._port.close()
        self._process.stop()
