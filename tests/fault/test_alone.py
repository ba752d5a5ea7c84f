"""C33: two machines under load, of which the service goes on alone when its replica is missing.
Either one is killed, stopped or paused, or both are, and the other one is to take its place.
Nothing that was acknowledged or read is lost, whether one machine had it or both, and no place in
the queue ever has two messages.
"""

import random

import pytest

from tests.fault.campaign_size import sized
from tests.fault.load_of_machines import assert_one_history, loads, until_sent
from tests.fault.test_nodes import (
    LOSSES,
    SETTINGS,
    begun,
    come_back,
    lose,
    new_nodes,
    promoted,
)
from tests.support.http import ok, until
from tests.support.replica import Node, read_ids

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("postgresql")]

RUNS = sized(ci=2, full=10)
CHANGES = sized(ci=6, full=15)
DEGRADES = {
    "ESCROWMQ_REPLICA__WHEN_MISSING": "degrade",
    "ESCROWMQ_REPLICA__DEGRADE_AFTER_MS": "300",
}


@pytest.mark.parametrize("seed", range(RUNS))
def test_whichever_machine_is_lost_what_one_has_alone_is_not(seed, tmp_path, postgresql):
    chance = random.Random(seed)
    settings = {**SETTINGS, **DEGRADES, "ESCROWMQ_DATABASE_URL": postgresql.new_database()}
    with new_nodes(tmp_path, "ab", settings) as nodes:
        service = begun(nodes)
        with loads([node.url for node in nodes], seed, durabilities={"synced", "replicated"}) as (
            workers
        ):
            for _ in range(CHANGES):
                until_sent(workers, chance.randrange(5, 50))
                if chance.random() < 0.5:
                    until(lambda one=service: not is_alone(one), "the replica has everything")
                (replica,) = [node for node in nodes if node is not service]
                lost, other = chance.sample((service, replica), 2)
                how = chance.choice(LOSSES)
                lose(lost, how)
                if lost is not service:
                    until(lambda one=service: is_alone(one), "it goes on alone")
                    until_sent(workers, chance.randrange(5, 50))
                else:
                    promoted(other, hand_over=False)  # or it is refused
                if chance.random() < 0.3:
                    other.kill()
                    other.start(until_ready=False)
                come_back(lost, how)
                service = settled(nodes)
            until_sent(workers, 10)
            until(lambda: not is_alone(service), "the replica has everything")
        service.wait_until_copied()
        assert_one_history(workers, read_ids(service))
        (other,) = [node for node in nodes if node is not service]
        service.kill()
        until(lambda: promoted(other, hand_over=False), "the other one takes its place")
        other.wait_until_ready()
        assert_one_history(workers, read_ids(other))


def settled(nodes: list[Node]) -> Node:
    """The service, once the other one is a replica."""
    found: list[Node] = []

    def is_settled() -> bool:
        roles = [node.role() for node in nodes]
        found[:] = [node for node, role in zip(nodes, roles, strict=True) if role == "primary"]
        return sorted(roles) == ["primary", "replica"] and found[0].serves()

    until(is_settled, "one of them serves, and the other one is a replica", seconds=120)
    return found[0]


def is_alone(service: Node) -> bool:
    with service.client() as api:
        return bool(ok(api.get("/v1/admin/replicas"))["alone"])
