"""A replica in a process of its own, which follows a service."""

import json
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.registry.registry_files import read_files
from app.replicas.folder import read_note
from tests.support.http import WAIT_SECONDS, ok, until
from tests.support.server import Server, clean_environment, reserved_port

_PROGRAM = Path(sys.executable).with_name("escrowmq")


class Primary(Server):
    """A service that serves replicas at `ha_port`."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environment: Mapping[str, str | None] | None = None,
        at: Server | None = None,
    ) -> None:
        """`at`: has the address; it is not running."""
        reserved = reserved_port()
        weakref.finalize(self, reserved.close)
        self.ha_port = int(reserved.getsockname()[1])
        served = {
            "ESCROWMQ_REPLICA__HA_HOST": "127.0.0.1",
            "ESCROWMQ_REPLICA__HA_PORT": str(self.ha_port),
            "ESCROWMQ_REPLICA__HEARTBEAT_MS": "100",
        }
        super().__init__(data_dir, environment={**served, **(environment or {})})
        if at is not None:
            self._at, self.port, self.url = at, at.port, at.url
        self._environment = {"ESCROWMQ_REPLICA__ADVERTISE": self.url, **self._environment}

    def figures(self) -> dict[str, float]:
        """The gauges of replicas."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        found = [line.split(" ") for line in lines if line.startswith("escrowmq_replica")]
        return {name: float(value) for name, value in found}

    def wait_until_copied(self, *, replicas: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Until so many are connected that have all of the log on their disks."""
        copied = {"escrowmq_replicas": replicas, "escrowmq_replica_behind_bytes": 0}
        until(lambda: self.figures() == copied, "replicas have all of it", seconds=seconds)

    def replica(self) -> "Replica":
        """One in the same directory, that name servers tell whom to follow; not started."""
        return Replica(self.data_dir, None, environment=self._environment)


class Replica(Server):
    """`escrowmq replica follow`; `url` is that of the service after its promotion."""

    def __init__(
        self,
        data_dir: Path,
        primary: str | None,
        *,
        environment: Mapping[str, str | None] | None = None,
        forked: bool = True,
        at: Server | None = None,
    ) -> None:
        """`primary`: host:port; None: its name servers know it. `at`: has the address of HTTP."""
        quick = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "100"}
        super().__init__(data_dir, environment={**quick, **(environment or {})}, forked=forked)
        if at is not None:
            self._at, self.port, self.url = at, at.port, at.url
        self.primary = primary

    @property
    def command(self) -> list[str]:
        arguments = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        if self.primary is not None:
            arguments += ["--primary", self.primary]
        return [str(_PROGRAM), "replica", "follow", *arguments]

    def __enter__(self) -> "Replica":
        self.start(until_ready=False)
        return self

    def wait_until_registry_is(self, of: Server) -> None:
        """Until it has the registry that the service has now."""
        expected = read_files(of.data_dir)
        names = list(expected)
        until(
            lambda: [read_whole(self.data_dir / name) for name in names] == [*expected.values()],
            "the replica has the registry",
        )

    def service(self) -> Primary:
        """The service in the same directory and at the same address, not started."""
        return Primary(self.data_dir, environment=self._environment, at=self)


class Node(Primary):
    """`escrowmq node`: one of several machines, in the role that its directory says."""

    def __init__(self, data_dir: Path, *, environment: Mapping[str, str | None]) -> None:
        super().__init__(data_dir, environment=environment)
        self.configure(ESCROWMQ_REPLICA__NODE=data_dir.name)

    @property
    def command(self) -> list[str]:
        where = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        return [str(_PROGRAM), "node", *where]

    def role(self) -> str:
        """Empty while it does not answer."""
        return str(self._promise().get("role", ""))

    def waits(self) -> bool:
        """Does it run as a replica that has opened its log, and can be promoted?"""
        found = self._promise()
        return found.get("role") == "replica" and "end_offset" in found

    def _promise(self) -> dict[str, Any]:
        """Empty while it does not answer."""
        with self.client() as api, suppress(httpx.TransportError):
            return dict(ok(api.get("/v1/admin/promise")))
        return {}

    def promote(self, *, hand_over: bool = False) -> httpx.Response:
        with self.client() as api:
            return api.post("/v1/admin/promotion", json={"hand_over": hand_over})

    def follows(self) -> bool:
        """Has it everything, as a replica?"""
        return self._is_ready_as("replica")

    def serves(self) -> bool:
        """Does it take requests, as the service?"""
        return self._is_ready_as("primary")

    def _is_ready_as(self, role: str) -> bool:
        with self.client() as api, suppress(httpx.TransportError):
            return api.get("/readyz", params={"role": role}).status_code == 200
        return False


def know_each_other(nodes: Sequence[Node]) -> None:
    """They are name servers of each other."""
    names = json.dumps([node.data_dir.name for node in nodes])
    for node in nodes:
        others = json.dumps([other.url for other in nodes if other is not node])
        node.configure(ESCROWMQ_REPLICA__NODES=names, ESCROWMQ_NAMES__SERVERS=others)


def read_whole(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def of(port: int) -> str:
    return f"127.0.0.1:{port}"


def note_of(data_dir: Path) -> Any:
    """None where the directory is no replica's."""
    note = read_note(data_dir)
    return None if note is None else msgspec.to_builtins(note)


def read_ids(service: Server, topic: str = "orders") -> set[str]:
    """Ids of all messages of a topic."""
    found: set[str] = set()
    with service.client() as api:
        for queue in ok(api.get(f"/v1/topics/{topic}/queues"))["items"]:
            path = f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages"
            at = queue["min_offset"]
            while at < queue["max_offset"]:
                page = ok(api.get(path, params={"offset": at, "max_messages": 100}))
                found.update(message["message_id"] for message in page["messages"])
                at = page["next_offset"]
    return found


def promote(
    data_dir: Path,
    *arguments: str,
    segment_bytes: int | None = 1 << 24,
    environment: Mapping[str, str | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in (environment or {}).items() if value is not None}
    if segment_bytes:
        given["ESCROWMQ_LOCAL__SEGMENT_BYTES"] = str(segment_bytes)
    return command("replica", "promote", "--data-dir", str(data_dir), *arguments, environment=given)


def command(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`escrowmq` with these arguments, to its end."""
    return subprocess.run(
        [str(_PROGRAM), *arguments],
        env={**clean_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
