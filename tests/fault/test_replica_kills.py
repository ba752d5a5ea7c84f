"""C28: a replica follows over a link that cuts and spoils; both sides are killed. What it has is the
log of its service, byte for byte, and in the end all of it. With two copies nothing that was
acknowledged or read is lost with a machine, and the machine that comes back follows.
"""

import json
import random
import subprocess
import threading
from contextlib import suppress

import httpx
import pytest

from tests.fault.campaign_size import sized
from tests.support.bad_link import BadLink
from tests.support.http import ok, until
from tests.support.replica import Primary, Replica, of, promote, read_ids
from tests.support.server import Server

pytestmark = pytest.mark.faults

ROUNDS = sized(ci=8, full=250)
SEGMENT_BYTES = 256 << 10
ENVIRONMENT = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(128 << 10),
}


class Sending(threading.Thread):
    """Sends while it has fewer acknowledged than `most`. `acknowledged`: what is durable, as the
    service said.
    """

    def __init__(self, service: Server, seed: int, *, most: int) -> None:
        super().__init__()
        self.most = most
        self._service = service
        self._randomness = random.Random(seed)
        self._ends = threading.Event()
        self.acknowledged: list[str] = []

    def run(self) -> None:
        with self._service.client() as api:
            while not self._ends.is_set():
                if len(self.acknowledged) >= self.most:
                    self._ends.wait(0.01)
                    continue
                body = {"payload": "x" * self._randomness.choice((10, 300, 5_000, 60_000))}
                with suppress(httpx.HTTPError):
                    answer = api.post("/v1/topics/orders/messages", json=body)
                    if answer.status_code == 201:
                        self.acknowledged.append(answer.json()["message_id"])

    def end(self) -> list[str]:
        self._ends.set()
        self.join()
        return self.acknowledged


def log_of(service: Server) -> bytes:
    """Without the zeros behind its end."""
    folder = service.data_dir / "store" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")


def until_it_fails(link: BadLink, sending: Sending) -> None:
    """Send until the link has cut or spoiled something more: not while nothing is connected, or
    the replica of a busy machine could never have all of it.
    """
    seen = link.faults

    def has_failed() -> bool:
        if link.is_open and len(sending.acknowledged) >= sending.most:
            sending.most += 1
        return link.faults > seen

    until(has_failed, "the link fails")


@pytest.mark.parametrize("seed", range(2))
def test_a_replica_ends_with_the_log_of_its_service_whatever_is_cut_spoiled_or_killed(
    seed, tmp_path
):
    chance = random.Random(seed)
    with (
        Primary(tmp_path / "a", environment=ENVIRONMENT) as primary,
        BadLink(primary.ha_port, seed) as link,
        Replica(tmp_path / "b", of(link.port), environment=ENVIRONMENT) as replica,
    ):
        sending = Sending(primary, seed, most=0)
        sending.start()
        try:
            for _ in range(ROUNDS):
                sending.most += chance.randrange(20, 60)
                until(lambda: len(sending.acknowledged) >= sending.most, "it sends")
                until_it_fails(link, sending)
                victim = chance.choice(("primary", "replica", "link"))
                if victim == "primary":
                    primary.kill()
                    primary.start()
                elif victim == "replica":
                    replica.kill()
                    replica.start(until_ready=False)
                else:
                    link.cut()
        finally:
            acknowledged = sending.end()
        link.is_good = True
        link.cut()
        primary.wait_until_copied(seconds=600)  # hundreds of megabytes
        primary.kill()
        assert replica.terminate() == 0
        assert link.faults >= ROUNDS
        assert log_of(replica) == log_of(primary)
        verified = subprocess.run(
            [replica.command[0], "store", "verify", str(replica.data_dir), "--json", "-"],
            capture_output=True,
            check=False,
        )
        assert json.loads(verified.stdout)["findings"] == []
        promoted = promote(replica.data_dir, "--yes", segment_bytes=SEGMENT_BYTES)
        assert promoted.returncode == 0, promoted.stderr
        with replica.service() as service:
            assert set(acknowledged) <= read_ids(service)


RETURNED = {**ENVIRONMENT, "ESCROWMQ_REPLICA__SET_ASIDE": "true"}
FAILOVERS = sized(ci=4, full=60)


class Reading(threading.Thread):
    """Reads the only queue from its beginning, again and again. `seen`: ids of all it has seen."""

    def __init__(self, service: Server) -> None:
        super().__init__()
        self._service = service
        self._ends = threading.Event()
        self.seen: set[str] = set()
        self.reads = 0  # answers

    def run(self) -> None:
        at = 0
        with self._service.client() as api:
            while not self._ends.is_set():
                query = {"offset": at, "max_messages": 100, "wait_ms": 100}
                with suppress(httpx.HTTPError):
                    page = api.get("/v1/topics/orders/queues/0/messages", params=query).json()
                    if "messages" in page:
                        self.seen.update(message["message_id"] for message in page["messages"])
                        at = page["next_offset"]
                        self.reads += 1

    def end(self) -> set[str]:
        self._ends.set()
        self.join()
        return self.seen


@pytest.mark.parametrize("seed", range(FAILOVERS))
def test_with_two_copies_no_message_that_was_acknowledged_or_read_is_lost_with_its_machine(
    seed, tmp_path
):
    chance = random.Random(seed)
    environment = {**ENVIRONMENT, "ESCROWMQ_REPLICA__COPIES": "2"}
    with (
        Primary(tmp_path / "a", environment=environment) as primary,
        BadLink(primary.ha_port, seed) as link,
        Replica(tmp_path / "b", of(link.port), environment=ENVIRONMENT) as replica,
    ):
        link.is_good = seed % 2 == 0
        with primary.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        reading = Reading(primary)
        workers = [
            Sending(primary, seed, most=1 << 30),
            Sending(primary, seed + 1_000, most=1 << 30),
            reading,
        ]
        for worker in workers:
            worker.start()
        # a link that is cut in the middle of a greeting lets few through
        wanted = chance.randrange(*((20, 150) if link.is_good else (1, 12)))
        try:
            until(
                lambda: sum(len(sending.acknowledged) for sending in workers[:2]) >= wanted,
                "they send",
                seconds=120,
            )
            primary.kill()  # in the middle of it
            if chance.random() < 0.5:
                primary.start()  # and shows nothing that it may have alone
                before = reading.reads
                until(lambda: reading.reads > before, "it is read", seconds=120)
                primary.kill()
        finally:
            known = set().union(*[worker.end() for worker in workers])
        if chance.random() < 0.5:
            replica.kill()
        else:
            assert replica.terminate() == 0
        promoted = promote(replica.data_dir, "--yes", segment_bytes=SEGMENT_BYTES)
        assert promoted.returncode == 0, promoted.stderr
        with replica.service() as service:
            assert known <= read_ids(service)
            returned = Replica(primary.data_dir, of(service.ha_port), environment=RETURNED)
            with returned:
                service.wait_until_copied()
                service.kill()
                assert returned.terminate() == 0
        assert log_of(returned) == log_of(replica)
        assert len(known) >= wanted
