"""C31: three machines under load. The service is killed, stopped or paused; one of the others is
promoted, and the old one comes back as it likes. Nothing that was acknowledged or read is lost, and
no place in the queue ever has two messages.
"""

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.fault.campaign_size import sized
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


class Load(threading.Thread):
    """Sends to whichever machine takes it, and reads from whichever answers."""

    def __init__(self, urls: list[str], seed: int) -> None:
        super().__init__()
        self._urls = urls
        self._randomness = random.Random(seed)
        self._ends = threading.Event()
        self.known: dict[str, str] = {}  # by message id: acknowledged, or read
        self.at_offset: dict[int, str] = {}
        self.twice: list[tuple[int, str, str]] = []

    def run(self) -> None:
        with httpx.Client(timeout=2, trust_env=False, verify=False) as http:
            while not self._ends.is_set():
                url = self._randomness.choice(self._urls)
                with suppress(httpx.HTTPError):
                    if self._randomness.random() < 0.8:
                        self._send(http, url)
                    else:
                        self._read(http, url)

    def end(self) -> None:
        self._ends.set()
        self.join()

    def _send(self, http: httpx.Client, url: str) -> None:
        body = {"payload": "x" * self._randomness.choice((10, 300, 5_000))}
        answer = http.post(f"{url}/v1/topics/orders/messages", json=body)
        if answer.status_code == 201:
            receipt = answer.json()
            assert receipt["durability"] == "replicated"
            self.known[receipt["message_id"]] = "acknowledged"
            self._note(receipt["queue_offset"], receipt["message_id"])

    def _read(self, http: httpx.Client, url: str) -> None:
        at = self._randomness.randrange(max(self.at_offset, default=0) + 1)
        query = {"offset": at, "max_messages": 100}
        answer = http.get(f"{url}/v1/topics/orders/queues/0/messages", params=query)
        for message in answer.json().get("messages", []):
            self.known.setdefault(message["message_id"], "read")
            self._note(message["queue_offset"], message["message_id"])

    def _note(self, queue_offset: int, message_id: str) -> None:
        known = self.at_offset.setdefault(queue_offset, message_id)
        if known != message_id:
            self.twice.append((queue_offset, known, message_id))


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


@contextmanager
def loads(machines: list[Machine], seed: int) -> Iterator[list[Load]]:
    workers = [Load([one.url for one in machines], 10 * seed + number) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def until_sent(workers: list[Load], more: int) -> None:
    before = sum(len(worker.known) for worker in workers)
    until(
        lambda: sum(len(worker.known) for worker in workers) >= before + more,
        "messages are on two machines",
        seconds=120,
    )


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
        with loads(machines, seed) as workers:
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
        assert [worker.twice for worker in workers] == [[], [], []]
        assert {*workers[0].known, *workers[1].known, *workers[2].known} <= read_ids(service)
        one_history(workers)


def until_both_follow(service: Primary) -> None:
    until(lambda: service.figures()["escrowmq_replicas"] == 2, "both follow")


def one_history(workers: list[Load]) -> None:
    """No two programs have seen different messages at one offset."""
    merged: dict[int, str] = {}
    for worker in workers:
        for queue_offset, message_id in worker.at_offset.items():
            assert merged.setdefault(queue_offset, message_id) == message_id


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
