"""C31: three machines under load. The service is killed, stopped or paused; one of the others is
promoted, and the old one comes back as it likes. Nothing that was acknowledged or read is lost, and
no place in the queue ever has two messages.
"""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.fault.campaign_size import sized
from tests.fault.load_of_machines import assert_one_history, loads, until_sent
from tests.support.http import ok, until
from tests.support.replica import Primary, Replica, promote, read_ids
from tests.support.server import Server

pytestmark = pytest.mark.faults

RUNS = sized(ci=2, full=20)
FAILOVERS = sized(ci=3, full=10)
SEGMENT_BYTES = 256 << 10
NAMES = ("a", "b", "c")
ENVIRONMENT = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(128 << 10),
    "ESCROWMQ_REPLICA__NODES": json.dumps(NAMES),
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__HA_HOST": "127.0.0.1",
    "ESCROWMQ_REPLICA__SET_ASIDE": "true",
    "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
    "ESCROWMQ_NAMES__AWAY_MS": "3000",
}


class Machine:
    """One of three: its directory, its address, and what runs on it at the moment."""

    def __init__(self, data_dir: Path) -> None:
        self.name = data_dir.name
        self.data_dir = data_dir
        self.process: Server = Replica(data_dir, None, environment=ENVIRONMENT)
        self.url = self.process.url
        self.environment: dict[str, str | None] = {}

    def know(self, machines: list["Machine"]) -> None:
        others = [one.url for one in machines if one is not self]
        self.environment = {
            **ENVIRONMENT,
            "ESCROWMQ_REPLICA__NODE": self.name,
            "ESCROWMQ_NAMES__SERVERS": json.dumps(others),
        }

    def follow(self) -> None:
        at = self.process
        self.process = Replica(self.data_dir, None, environment=self.environment, at=at)
        self.process.start(until_ready=False)

    def serve(self) -> Primary:
        service = Primary(self.data_dir, environment=self.environment, at=self.process)
        self.process = service
        service.start(until_ready=False)
        return service

    def is_promoted(self) -> str:
        """Stopped before; empty, or why it is not."""
        environment = self.environment
        done = promote(self.data_dir, "--yes", segment_bytes=SEGMENT_BYTES, environment=environment)
        return "" if done.returncode == 0 else done.stderr


@contextmanager
def three_machines(folder: Path) -> Iterator[list[Machine]]:
    machines = [Machine(folder / name) for name in NAMES]
    for machine in machines:
        machine.know(machines)
    try:
        yield machines
    finally:
        for machine in machines:
            machine.process.__exit__(None, None, None)


@pytest.mark.parametrize("seed", range(RUNS))
def test_whichever_machine_is_lost_paused_or_promoted_there_is_one_history(seed, tmp_path):
    chance = random.Random(seed)
    with three_machines(tmp_path) as machines:
        for machine in machines[1:]:
            machine.follow()
        service = machines[0].serve()
        service.wait_until_ready()
        with service.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        until_both_follow(service)
        with loads([one.url for one in machines], seed) as workers:
            for _ in range(FAILOVERS):
                until_sent(workers, chance.randrange(10, 100))
                old = next(one for one in machines if one.process is service)
                how = lose(old, chance)
                new = fail_over([one for one in machines if one is not old], chance)
                service = new.serve()
                if how == "paused":
                    os.kill(old.process.pid, signal.SIGCONT)  # before, or while the new one starts
                service.wait_until_ready()
                until_sent(workers, chance.randrange(10, 50))
                if how == "paused" and chance.random() < 0.5:
                    assert old.process.wait() == 76, "it hears of the new one"
                else:
                    old.process.__exit__(None, None, None)
                old.follow()
                until_both_follow(service)
        service.wait_until_copied(replicas=2)
        assert_one_history(workers, read_ids(service))


def until_both_follow(service: Primary) -> None:
    until(lambda: service.figures()["escrowmq_replicas"] == 2, "both follow")


def lose(service: Machine, chance: random.Random) -> str:
    how = chance.choice(("killed", "stopped", "paused"))
    if how == "killed":
        service.process.kill()
    elif how == "stopped":
        assert service.process.terminate() == 0
    else:
        os.kill(service.process.pid, signal.SIGSTOP)
    return how


def fail_over(others: list[Machine], chance: random.Random) -> Machine:
    """Promote one of them; if the other has the newer log, that one."""
    first, second = chance.sample(others, 2)
    first.process.kill() if chance.random() < 0.5 else first.process.terminate()
    refused = first.is_promoted()
    if not refused:
        return first
    assert f"Promote {second.name}" in refused
    first.follow()
    until(lambda: is_open(first), "its log is open")
    second.process.kill()
    assert second.is_promoted() == ""
    return second


def is_open(machine: Machine) -> bool:
    with machine.process.client() as api, suppress(httpx.TransportError):
        return "last_epoch" in api.get("/v1/admin/promise").json()
    return False
