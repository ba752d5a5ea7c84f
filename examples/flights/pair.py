"""Two machines: the service on one, its replica on the other. The machine of the service is lost
again and again, with its disk, and each time the replica takes its place.
"""

import shutil
from pathlib import Path

from examples.flights.process import Process, ReservedPort

_HOST = "127.0.0.1"


class Machine:
    """A directory, and the addresses of what runs in it: the service, or its replica."""

    def __init__(self, directory: Path) -> None:
        self._port, self._replica_port = ReservedPort(), ReservedPort()
        self.url = self._port.url
        self.data_dir = directory
        self._in = ["--data-dir", str(directory)]
        settings = {
            "ESCROWMQ_REPLICA__COPIES": "2",
            "ESCROWMQ_REPLICA__HA_HOST": _HOST,
            "ESCROWMQ_REPLICA__HA_PORT": str(self._replica_port.number),
            "ESCROWMQ_REPLICA__ADVERTISE": self.url,
            "ESCROWMQ_REPLICA__NODE": directory.name,
        }
        self._process = Process(directory.with_suffix(".log"), settings)

    def serve(self) -> None:
        self._process.start(["serve", *self._port.option, *self._in])

    def follow(self, primary: "Machine") -> None:
        address = f"{_HOST}:{primary._replica_port.number}"
        self._process.start(
            ["replica", "follow", "--primary", address, *self._port.option, *self._in]
        )

    def promote(self) -> None:
        """Make the replica the service. Raises ServerFailed."""
        self._process.stop()
        self._process.run(["replica", "promote", *self._in, "--yes"])
        self.serve()

    def wait_until_ready(self) -> None:
        """Raises ServerFailed."""
        self._process.wait_until_ready(self.url)

    def lose(self) -> None:
        """kill -9, and nothing is left on its disk."""
        self._process.kill()
        shutil.rmtree(self.data_dir)

    def stop(self) -> None:
        self._process.stop()

    def close(self) -> None:
        self._port.close()
        self._replica_port.close()


class Pair:
    """Two copies of everything, in the place of one `Server`."""

    def __init__(self, directory: Path) -> None:
        self.kill_count = 0
        self._service, self._other = (Machine(directory / f"machine-{n}") for n in (1, 2))
        self.url = f"{self._service.url},{self._other.url}"

    @property
    def store(self) -> Path:
        """Of the service."""
        return self._service.data_dir / "store"

    def start(self) -> None:
        """The service on one machine, its replica on the other; returns once both are ready.

        After a loss the replica becomes the service, and the machine that was lost comes back,
        empty, as its replica. Raises ServerFailed.
        """
        if self.kill_count:
            self._service, self._other = self._other, self._service
            self._service.promote()
        else:
            self._service.serve()
        self._other.follow(self._service)
        self._service.wait_until_ready()
        self._other.wait_until_ready()

    def kill(self) -> None:
        """Lose the machine of the service."""
        self._service.lose()
        self.kill_count += 1

    def stop(self) -> None:
        """For good: in good order where it can, and in any case.

        Does nothing where nothing runs.
        """
        for machine in (self._service, self._other):
            machine.stop()
            machine.close()
