"""The service, a server that does nothing and a load generator: the two servers on one core, the
load on another.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks import messages
from benchmarks.cpu import SERVER_CORE, on_core
from benchmarks.floor import no_op_server
from benchmarks.generator import Generator, Window, load_generator
from benchmarks.rows import FILLED, QUEUES, Command, Row, constant
from tests.support.server import Server

FLOOR_CONNECTIONS = 64
_WARM_SECONDS = 0.3
_FLOOR_WARM_SECONDS = 0.1
_FLOOR_SECONDS = 0.5
_FASTEST_RECEIVE = 150_000  # messages a second; there are groups enough for it
_FILL_BATCH = 500


class _NamedServer(Server):
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.named_service", *super().command[1:]]


@dataclass
class Bench:
    """`directory` is on the disk that the service uses."""

    directory: Path
    load: Generator
    server: Server
    api: httpx.Client
    floor_pid: int
    floor_port: int
    _groups: int = 0

    def floor(self, connections: int = FLOOR_CONNECTIONS) -> Window:
        """The server that does nothing, with the requests of a single send."""
        command = constant("/", messages.single("synced"))
        return self._run(
            self.floor_pid,
            self.floor_port,
            command,
            connections,
            warm_seconds=_FLOOR_WARM_SECONDS,
            seconds=_FLOOR_SECONDS,
        )

    def row(self, row: Row, seconds: float) -> Window:
        """One run of the row. Raises NotOffered where the load generator cannot send it."""
        return self.run({**row.command, **self._groups_of(row, seconds)}, row.connections, seconds)

    def run(self, command: Command, connections: int, seconds: float) -> Window:
        return self._run(
            self.server.pid, self.server.port, command, connections, warm_seconds=_WARM_SECONDS,
            seconds=seconds
        )  # fmt: skip

    def prepare(self) -> None:
        """Make the topics, and fill the one that is read."""
        for topic in ("load", "filled", "quotes"):
            self.create_topic(topic, QUEUES)
        self.api.put(
            "/v1/groups/workers-0", json={"topics": [{"topic": "quotes"}]}
        ).raise_for_status()
        entries = [{"message": messages.message("buffered")} for _ in range(_FILL_BATCH)]
        for _ in range(FILLED // _FILL_BATCH):
            self.api.post(
                "/v1/topics/filled/messages/batch", json={"entries": entries}
            ).raise_for_status()

    @contextmanager
    def flushing_by_time(self) -> Iterator["Bench"]:
        """The same beside another service, whose messages may be read before they are durable."""
        with (
            _service(
                self.directory / "flushing-by-time", ESCROWMQ_LOCAL__FLUSH="interval"
            ) as server,
            server.client() as api,
        ):
            yield Bench(self.directory, self.load, server, api, self.floor_pid, self.floor_port)

    def create_topic(self, topic: str, queues: int) -> None:
        self.api.post("/v1/topics", json={"topic": topic, "queues": queues}).raise_for_status()

    def _groups_of(self, row: Row, seconds: float) -> Command:
        """Groups that have received nothing yet, for a row that receives."""
        if row.command["work"] != "receive":
            return {}
        self._groups += 1
        count = int((seconds + _WARM_SECONDS) * _FASTEST_RECEIVE / FILLED) + 1
        for number in range(count):
            path = f"/v1/groups/round-{self._groups}-{number}"
            self.api.put(path, json={"topics": [{"topic": "filled"}]}).raise_for_status()
        return {"group": f"round-{self._groups}", "groups": count}

    def _run(
        self, pid: int, port: int, command: Command, connections: int, **times: float
    ) -> Window:
        return self.load.run(lambda: [pid], port=port, connections=connections, **command, **times)


@contextmanager
def opened(
    when_started: Callable[[httpx.Client], None] = lambda api: None, **environment: str
) -> Iterator[Bench]:
    """`environment`: of the service. `when_started` is called before it is filled.

    Raises NotOffered where there is nothing to make load with.
    """
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        closing(load_generator()) as load,
        no_op_server() as (floor_pid, floor_port),
        _service(Path(directory) / "data", **environment) as server,
        server.client() as api,
    ):
        when_started(api)
        bench = Bench(Path(directory), load, server, api, floor_pid, floor_port)
        bench.prepare()
        yield bench


@contextmanager
def _service(data_dir: Path, **environment: str) -> Iterator[Server]:
    environment = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 30), **environment}
    server = _NamedServer(data_dir, environment=environment, forked=False)
    try:
        with on_core(SERVER_CORE):
            server.start()
        yield server
    finally:
        server.kill()
