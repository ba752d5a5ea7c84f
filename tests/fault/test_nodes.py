"""C32: three machines under load that change their roles while they run. The service is killed,
stopped or paused, or hands over, and sometimes one is killed in the middle of that. Nothing that
was acknowledged or read is lost, and no place in the queue ever has two messages.
"""

import os
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.fault.campaign_size import sized
from tests.fault.load_of_machines import assert_one_history, loads, until_sent
from tests.support.http import ok, until
from tests.support.replica import Node, know_each_other, read_ids

pytestmark = pytest.mark.faults

RUNS = sized(ci=2, full=20)
CHANGES = sized(ci=4, full=10)
SETTINGS = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(256 << 10),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(128 << 10),
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__SET_ASIDE": "true",
    "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
    "ESCROWMQ_NAMES__AWAY_MS": "3000",
}
HOWS = (
    "killed", "stopped", "paused", "hands over", "hands over", "dies while it hands over",
    "two are promoted at once",
)  # fmt: skip


LOSSES = ("killed", "stopped", "paused")


@contextmanager
def three_nodes(folder: Path, **settings: str) -> Iterator[list[Node]]:
    with new_nodes(folder, "abc", {**SETTINGS, **settings}) as nodes:
        yield nodes


@contextmanager
def new_nodes(folder: Path, names: str, settings: Mapping[str, str]) -> Iterator[list[Node]]:
    nodes = [Node(folder / name, environment=settings) for name in names]
    know_each_other(nodes)
    try:
        for node in nodes:
            node.start(until_ready=False)
        yield nodes
    finally:
        for node in nodes:
            node.__exit__(None, None, None)


@pytest.mark.parametrize("seed", range(RUNS))
def test_whichever_role_the_machines_take_there_is_one_history(seed, tmp_path):
    chance = random.Random(seed)
    with three_nodes(tmp_path) as nodes:
        service = begun(nodes)
        with loads([node.url for node in nodes], seed) as workers:
            for _ in range(CHANGES):
                until_sent(workers, chance.randrange(10, 100))
                others = [node for node in nodes if node is not service]
                until_all_follow(others)
                service = the_one_that_serves(change(service, others, chance))
                until_all_follow([node for node in nodes if node is not service])
        service.wait_until_copied(replicas=2)
        assert_one_history(workers, read_ids(service))
        assert [node.role() for node in nodes].count("primary") == 1


@pytest.mark.parametrize("seed", range(RUNS))
def test_whichever_machine_is_lost_another_one_takes_its_place_without_a_person(seed, tmp_path):
    chance = random.Random(seed)
    with three_nodes(tmp_path, ESCROWMQ_REPLICA__FAILOVER_AFTER_MS="1000") as nodes:
        service = begun(nodes)
        with loads([node.url for node in nodes], seed) as workers:
            for _ in range(CHANGES):
                until_sent(workers, chance.randrange(10, 100))
                lost = service
                others = [node for node in nodes if node is not lost]
                until_all_follow(others)
                how = chance.choice(LOSSES)
                lose(lost, how)
                service = the_one_that_serves(others)
                come_back(lost, how)
                until_sent(workers, chance.randrange(10, 50))
                until_all_follow([node for node in nodes if node is not service])
        service.wait_until_copied(replicas=2)
        assert_one_history(workers, read_ids(service))
        assert [node.role() for node in nodes].count("primary") == 1


def begun(nodes: list[Node]) -> Node:
    """A new service, with a topic."""
    service = nodes[0]
    until(lambda: promoted(service, hand_over=False), "a new service begins")
    service.wait_until_ready()
    with service.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
    return service


def until_all_follow(others: list[Node]) -> None:
    for node in others:
        until(node.follows, f"{node.data_dir.name} follows", seconds=120)


def the_one_that_serves(nodes: list[Node]) -> Node:
    """Of two that are promoted one after the other, the first one stands down."""
    found: list[Node] = []

    def is_one() -> bool:
        found[:] = [node for node in nodes if node.serves()]
        return len(found) == 1

    until(is_one, "one of them serves", seconds=120)
    return found[0]


def change(service: Node, others: list[Node], chance: random.Random) -> list[Node]:
    """A loss or a hand-over, behind which one of these serves; the one before is there again. One
    that was paused may still say that it serves.
    """
    how = chance.choice(HOWS)
    if how == "hands over":
        new = chance.choice(others)
        until(lambda: promoted(new, hand_over=True), "it has handed over")
        return [new]
    if how == "dies while it hands over":
        die_while_handing_over(service, others, chance)
        return [service, *others]
    lose(service, how)
    if how == "two are promoted at once":
        promote_both(others, chance)
    promote_one(others)
    come_back(service, how)
    return others


def lose(service: Node, how: str) -> None:
    if how == "stopped":
        assert service.terminate() == 0
    elif how == "paused":
        os.kill(service.pid, signal.SIGSTOP)
    else:
        service.kill()


def come_back(service: Node, how: str) -> None:
    if how == "paused":
        os.kill(service.pid, signal.SIGCONT)
    else:
        service.start(until_ready=False)


def die_while_handing_over(service: Node, others: list[Node], chance: random.Random) -> None:
    """The old one, or the new one; sooner or later a promotion without it is carried out."""
    new, third = chance.sample(others, 2)
    lost = chance.choice((service, new))
    asking = threading.Thread(target=promoted, args=(new,), kwargs={"hand_over": True})
    asking.start()
    asking.join(chance.random() * 0.5)
    lost.kill()
    asking.join()
    there = [node for node in (new, third, service) if node is not lost]
    if all(node.role() != "primary" for node in there):
        promote_one(there)
    lost.start(until_ready=False)


def promote_both(others: list[Node], chance: random.Random) -> None:
    """Both are refused, or one of them, or the later of the two is the service."""
    asking = [
        threading.Thread(target=promoted, args=(node,), kwargs={"hand_over": False})
        for node in others
    ]
    for thread in asking:
        thread.start()
        thread.join(chance.random() * 0.2)
    for thread in asking:
        thread.join()


def promote_one(nodes: list[Node]) -> None:
    """The first; if another one has the newer log, that one."""
    until(
        lambda: any(promoted(node, hand_over=False) for node in nodes),
        "one of them is promoted",
        seconds=120,
    )


def promoted(node: Node, *, hand_over: bool) -> bool:
    with suppress(httpx.TransportError):
        return node.promote(hand_over=hand_over).status_code == 200
    return False
