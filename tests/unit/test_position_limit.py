"""Groups have positions in a limited number of queues: each group, and all together."""

import pytest

from delivery.groups import GroupRules, Start, Subscription
from delivery.options import DeliveryOptions
from delivery.receive.receive import Request
from delivery.service import Delivery
from storage.errors import LimitReached
from storage.files.simulated import SimulatedDisk
from storage.message import QueueId
from tests.support.delivery import OPTIONS
from tests.support.simulation import World

REQUEST = Request(max_messages=1, max_bytes=1_000, lease_ms=1_000)


def queues_of(topic: str, count: int) -> list[QueueId]:
    return [QueueId(topic, number) for number in range(count)]


def positions(topic: str, count: int) -> dict[QueueId, int]:
    return dict.fromkeys(queues_of(topic, count), 0)


class Groups:
    """Delivery over topics `a` and `b` of two queues each, and the rules of its groups."""

    def __init__(self, delivery: Delivery, rules: dict[str, GroupRules]) -> None:
        self.delivery = delivery
        self._rules = rules

    async def subscribe(self, group: str, *topics: str, start: Start = Start.EARLIEST) -> None:
        rules = GroupRules(subscriptions=tuple(map(Subscription, topics)), start=start)
        await self.delivery.begin(group, rules)
        self._rules[group] = rules

    async def receive(self, group: str) -> None:
        await self.delivery.receive(group, self._rules[group], REQUEST)


def with_limits(life, **limits: int) -> None:
    async def main(world: World) -> None:
        store = await world.open_store(OPTIONS)
        for topic in "ab":
            await store.create_topic(topic, queue_count=2)
        rules: dict[str, GroupRules] = {}
        options = DeliveryOptions(**limits)
        delivery = Delivery(
            store,
            world.clock,
            world.randomness,
            new_task_id=str,
            rules_of=rules.get,
            options=options,
        )
        await delivery.start()
        await life(Groups(delivery, rules))

    with World(SimulatedDisk(), 1) as world:
        world.run(main(world))


def refused(pointer: str):
    return pytest.raises(LimitReached, check=lambda error: error.pointer == pointer)


def test_a_group_has_a_limited_number_of_queues_however_it_gets_them():
    async def life(groups: Groups) -> None:
        delivery = groups.delivery
        await groups.subscribe("g", "a")
        await groups.subscribe("g", "a")
        with refused("/topics"):
            await groups.subscribe("g", "a", "b")
        with refused("/offsets"):
            await delivery.set_positions("g", positions("b", 2))
        with refused("/topic"):
            await delivery.reset("g", positions("b", 2))
        await delivery.set_positions("g", positions("b", 1))
        with refused("/queues"):
            await delivery.check_new_queues("g", [QueueId("a", 2)])
        await delivery.set_positions("g", positions("a", 2) | positions("b", 1))
        assert delivery.positions_of("g") == {*queues_of("a", 2), *queues_of("b", 1)}

    with_limits(life, max_group_queues=3)


def test_a_group_may_read_other_topics_instead_while_it_has_no_position():
    async def life(groups: Groups) -> None:
        await groups.subscribe("g", "a")
        await groups.subscribe("g", "b")
        await groups.receive("g")
        with refused("/topics"):
            await groups.subscribe("g", "a")

    with_limits(life, max_group_queues=2)


def test_all_groups_together_have_a_limited_number_of_positions_and_a_deletion_makes_room():
    async def life(groups: Groups) -> None:
        delivery = groups.delivery
        await groups.subscribe("first")
        await groups.subscribe("third")
        await delivery.set_positions("first", positions("a", 2))
        await groups.subscribe("second", "a")
        with refused("/group"):
            await groups.receive("second")
        with refused("/offsets"):
            await delivery.set_positions("third", positions("b", 2))
        with refused("/topics"):
            await groups.subscribe("third", "a", "b", start=Start.LATEST)
        await delivery.set_positions("first", positions("a", 1))

        await delivery.delete("first")
        await groups.receive("second")
        await groups.receive("second")

    with_limits(life, max_positions=4)
