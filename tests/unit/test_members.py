"""Members of consumer groups: who owns what, for how long, and who is fenced off."""

import asyncio

import pytest

from delivery.groups import GroupRules, Subscription
from delivery.leases.retry_message import retry_queue
from delivery.members.assignment import Strategy
from delivery.members.deadlines import Deadlines
from delivery.members.service import JoinRequest, Members
from delivery.options import MemberOptions
from delivery.receive.receive import Request
from delivery.service import Delivery
from storage.errors import Fenced, GroupActive, LimitReached, UnknownMember
from storage.identifiers import Identifiers, SystemRandom
from storage.memory import MemoryMessageStore
from storage.message import QueueId
from tests.support.builders import message
from tests.support.clock import ManualClock

SESSION_MS = 30_000
LOCK_MS = 60_000
SHARE_MS = 20_000
RULES = GroupRules(subscriptions=(Subscription("orders"),))


class House:
    """The service over the reference engine, with one topic of four queues."""

    def __init__(self, **options: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryMessageStore(self.clock)
        self.options = MemberOptions(**options)
        self.counts = {"orders": 4}
        self.rooms: dict[str, str] = {}

    async def open(self) -> "House":
        """From the log; again after what stands for a restart."""
        identifiers = Identifiers(self.clock, SystemRandom())
        self.delivery = Delivery(
            self.store,
            self.clock,
            SystemRandom(),
            new_task_id=lambda: identifiers.new("task"),
            rules_of=lambda group: RULES,
            has_members=lambda group: self.members.is_in_use(group),
        )
        self.members = Members(
            self.store,
            self.clock,
            identifiers,
            self.options,
            positions=self.delivery,
            queue_count=lambda group, topic: self.counts.get(topic, 0),
            rooms_of=lambda group: self.rooms,
        )
        await self.store.create_topic("orders", queue_count=4)
        if not (await self.store.offsets(QueueId("orders", 0))).end:
            await self.store.append(
                [message(queue=queue) for queue in queues(0, 1, 2, 3) for _ in range(5)]
            )
        await self.delivery.open_group("billing")
        await self.delivery.start()
        await self.members.start()
        return self

    async def join(self, client_id="a", group="billing", **fields):
        asked = {"topics": ("orders",), "session_timeout_ms": SESSION_MS} | fields
        return await self.members.join(group, JoinRequest(client_id, **asked))

    async def heartbeat(self, member, wait_ms=0, generation=None):
        return await self.members.heartbeat(
            "billing", member.member_id, generation or member.generation, wait_ms=wait_ms
        )

    async def owners(self):
        """The numbers of the queues of each member, by client id."""
        members = self.members.of_group("billing")
        return {
            one.client_id: [queue.number for queue in members.owned[one.member_id]]
            for one in members.members.values()
        }

    async def commit(self, member, offsets):
        await self.members.offsets.commit(
            "billing", member.member_id, member.generation, of_orders(offsets)
        )

    async def set_offsets(self, offsets):
        """Without a member."""
        await self.members.offsets.unowned(
            "billing", lambda: self.delivery.set_positions("billing", of_orders(offsets))
        )

    async def offsets(self):
        """The group's own, by number of queue."""
        found = {q.number: await self.delivery.position("billing", q) for q in queues(0, 1, 2, 3)}
        return {number: offset for number, offset in found.items() if offset is not None}

    async def receive(self):
        return await self.delivery.receive("billing", RULES, Request(1, 1 << 20, 30_000))

    async def pass_ms(self, ms):
        self.clock.advance(ms)
        await self.members.run_once()


def of_orders(offsets):
    return {QueueId("orders", number): offset for number, offset in offsets.items()}


@pytest.fixture
async def house():
    return await House().open()


def queues(*numbers):
    return [QueueId("orders", number) for number in numbers]


async def test_the_first_member_owns_every_queue_and_the_second_half_of_them(house):
    first = await house.join("a")
    second = await house.join("b")

    assert first.owned == queues(0, 1, 2, 3)
    assert second.owned == queues(2, 3)
    told = await house.heartbeat(first)
    assert (told.owned, told.revoked) == (queues(0, 1), queues(2, 3))
    assert told.generation == second.generation > first.generation


async def test_a_member_that_waits_is_told_of_a_new_assignment_at_once(house):
    first = await house.join("a")

    waiting = asyncio.create_task(house.heartbeat(first, wait_ms=10_000))
    await asyncio.sleep(0)
    second = await house.join("b")

    assert (await waiting).generation == second.generation


async def test_a_member_with_an_older_generation_is_told_without_a_wait(house):
    first = await house.join("a")
    await house.join("b")

    told = await house.heartbeat(first, wait_ms=10_000)

    assert told.owned == queues(0, 1)


async def test_the_queues_of_a_member_that_leaves_go_to_the_others(house):
    first = await house.join("a")
    await house.join("b")

    await house.members.leave("billing", first.member_id)

    assert await house.owners() == {"b": [0, 1, 2, 3]}
    with pytest.raises(UnknownMember):
        await house.heartbeat(first)


async def test_a_silent_member_loses_its_queues_when_its_session_ends(house):
    first = await house.join("a")
    second = await house.join("b")

    await house.pass_ms(SESSION_MS - 1)
    await house.heartbeat(second)
    before = await house.owners()
    await house.pass_ms(1)

    assert before == {"a": [0, 1], "b": [2, 3]}
    assert await house.owners() == {"b": [0, 1, 2, 3]}
    with pytest.raises(UnknownMember):
        await house.heartbeat(first)


async def test_new_queues_are_shared_out_at_the_next_look(house):
    await house.join("a", session_timeout_ms=10 * SHARE_MS)
    await house.join("b", session_timeout_ms=10 * SHARE_MS)

    house.counts["orders"] = 6
    await house.pass_ms(SHARE_MS)

    assert await house.owners() == {"a": [0, 1, 2], "b": [3, 4, 5]}


async def test_nothing_changes_while_nothing_happens(house):
    first = await house.join("a", session_timeout_ms=10 * SHARE_MS)

    await house.pass_ms(SHARE_MS)
    await house.pass_ms(SHARE_MS)

    assert (await house.heartbeat(first)).generation == first.generation


async def test_members_locks_and_generations_survive_a_restart(house):
    first = await house.join("a")
    second = await house.join("b")
    await house.members.lock("billing", first.member_id, queues(0))

    await house.pass_ms(SESSION_MS - 1)
    await house.open()

    assert await house.owners() == {"a": [0, 1], "b": [2, 3]}
    assert (await house.heartbeat(first)).generation == second.generation
    await house.members.leave("billing", second.member_id)
    third = await house.join("0")
    assert third.generation == second.generation + 2
    locked = await house.members.lock("billing", third.member_id, queues(0, 1))
    assert (locked.locked, locked.refused) == (queues(1), {queues(0)[0]: first.member_id})


@pytest.mark.parametrize("keeps_snapshot", [False, True])
async def test_a_start_gives_every_session_and_every_lock_its_time_once_more(house, keeps_snapshot):
    first = await house.join("a", session_timeout_ms=2 * LOCK_MS)
    await house.members.lock("billing", first.member_id, queues(0))
    if keeps_snapshot:
        await house.members.save_snapshot()

    house.clock.advance(3 * LOCK_MS)
    await house.open()
    await house.pass_ms(LOCK_MS - 1)

    assert house.members.of_group("billing").locks == {queues(0)[0]: first.member_id}
    assert await house.owners() == {"a": [0, 1, 2, 3]}


async def test_a_queue_is_locked_by_one_member_until_it_gives_it_back(house):
    first = await house.join("a")
    await house.members.lock("billing", first.member_id, queues(2))
    second = await house.join("b")

    before = await house.members.lock("billing", second.member_id, queues(2, 3))
    await house.members.unlock("billing", first.member_id, queues(2))
    after = await house.members.lock("billing", second.member_id, queues(2, 3))

    assert (before.locked, before.refused) == (queues(3), {queues(2)[0]: first.member_id})
    assert (after.locked, after.refused) == (queues(2, 3), {})


async def test_a_lock_is_free_when_its_time_is_up_unless_it_was_renewed(house):
    first = await house.join("a", session_timeout_ms=10 * LOCK_MS)
    await house.members.lock("billing", first.member_id, queues(2, 3))
    await house.pass_ms(LOCK_MS // 2)
    await house.members.lock("billing", first.member_id, queues(2))
    second = await house.join("b", session_timeout_ms=10 * LOCK_MS)

    await house.pass_ms(LOCK_MS // 2)
    locked = await house.members.lock("billing", second.member_id, queues(2, 3))

    assert (locked.locked, list(locked.refused)) == (queues(3), queues(2))


async def test_a_lock_outlives_the_session_of_a_member_that_may_still_be_at_work(house):
    first = await house.join("a", session_timeout_ms=1_000)
    await house.members.lock("billing", first.member_id, queues(0))
    await house.pass_ms(1_000)
    second = await house.join("b", session_timeout_ms=10 * LOCK_MS)

    refused = (await house.members.lock("billing", second.member_id, queues(0))).refused
    await house.pass_ms(LOCK_MS - 1_000)
    locked = (await house.members.lock("billing", second.member_id, queues(0))).locked

    assert refused == {queues(0)[0]: first.member_id}
    assert locked == queues(0)


async def test_the_locks_of_a_member_that_leaves_are_free_at_once(house):
    first = await house.join("a")
    await house.members.lock("billing", first.member_id, queues(0))

    await house.members.leave("billing", first.member_id)
    second = await house.join("b")

    assert (await house.members.lock("billing", second.member_id, queues(0))).locked == queues(0)


async def test_a_member_commits_offsets_of_its_own_queues_alone(house):
    first = await house.join("a")
    second = await house.join("b")

    await house.commit(first, {0: 3, 1: 4})
    for member_id, offsets in (
        (first.member_id, {1: 5, 2: 5}),
        (second.member_id, {1: 5}),
        ("mem_unknown", {0: 5}),
    ):
        with pytest.raises(Fenced):
            await house.members.offsets.commit("billing", member_id, None, of_orders(offsets))
    with pytest.raises(Fenced):
        await house.members.lock("billing", first.member_id, queues(1, 2))

    assert await house.offsets() == {0: 3, 1: 4}
    assert not house.members.of_group("billing").locks


async def test_a_queue_that_came_back_takes_no_offset_of_the_time_before_it_was_lost(house):
    first = await house.join("a")
    second = await house.join("b")
    await house.commit(second, {3: 4})
    await house.members.leave("billing", second.member_id)

    with pytest.raises(Fenced):
        await house.commit(first, {3: 1})
    with pytest.raises(Fenced):
        await house.members.lock("billing", first.member_id, queues(3), first.generation)
    await house.commit(first, {0: 1})
    await house.commit(await house.heartbeat(first), {3: 5})

    assert await house.offsets() == {0: 1, 3: 5}


async def test_offsets_of_lost_queues_are_left_out_of_a_heartbeat(house):
    first = await house.join("a")
    second = await house.join("b")

    lost = await house.members.offsets.commit_owned(
        "billing", first.member_id, second.generation, of_orders({1: 4, 2: 4, 3: 4})
    )

    assert lost == queues(2, 3)
    assert await house.offsets() == {1: 4}
    with pytest.raises(UnknownMember):
        await house.members.offsets.commit_owned("billing", "mem_unknown", 1, of_orders({1: 5}))


async def test_no_queue_changes_its_owner_while_an_offset_of_it_is_committed(house):
    first = await house.join("a")

    async with house.delivery._receiver.claim_lock("billing"):  # in front of the append
        committing = asyncio.create_task(house.commit(first, {3: 2}))
        joining = asyncio.create_task(house.join("b"))
        for _ in range(20):
            await asyncio.sleep(0)
        during = await house.owners()
    await committing
    await joining

    assert during == {"a": [0, 1, 2, 3]}
    assert await house.owners() == {"a": [0, 1], "b": [2, 3]}


async def test_only_members_commit_offsets_while_there_are_members(house):
    await house.set_offsets({0: 1})
    first = await house.join("a")

    with pytest.raises(GroupActive):
        await house.set_offsets({0: 2})
    await house.members.leave("billing", first.member_id)
    await house.set_offsets({0: 3})

    assert await house.offsets() == {0: 3}


async def test_no_member_joins_while_messages_are_leased_and_none_is_leased_from_then_on(house):
    (leased,) = await house.receive()
    with pytest.raises(GroupActive):
        await house.join("a")
    await house.delivery.ack("billing", [leased.handle])

    receiving = asyncio.create_task(house.receive())
    joining = asyncio.create_task(house.join("a"))

    outcomes = await asyncio.gather(receiving, joining, return_exceptions=True)
    assert [isinstance(one, GroupActive) for one in outcomes].count(True) == 1


async def test_the_first_member_joins_only_when_no_message_is_to_be_delivered_again(house):
    first = await house.join("a")
    await house.store.append([message(queue=retry_queue("billing"))])
    second = await house.join("b")
    await house.members.leave("billing", first.member_id)
    await house.members.leave("billing", second.member_id)

    with pytest.raises(GroupActive, match="1 messages of group billing are to be delivered again"):
        await house.join("a")
    received = 0
    while leased := await house.receive():
        received += 1
        await house.delivery.ack("billing", [leased[0].handle])

    assert received == 21
    await house.join("a")


async def test_a_group_stays_in_use_until_the_locks_of_its_last_silent_member_end(house):
    first = await house.join("a")
    await house.members.lock("billing", first.member_id, queues(0))

    await house.pass_ms(SESSION_MS)
    with pytest.raises(GroupActive):
        await house.receive()
    await house.pass_ms(LOCK_MS - SESSION_MS)

    assert len(await house.receive()) == 1


async def test_each_client_of_a_broadcast_group_has_its_own_offsets_also_after_a_restart(house):
    first = await house.join("a", is_broadcast=True)
    second = await house.join("b", is_broadcast=True)
    await house.commit(first, {0: 3, 1: 1})
    await house.commit(second, {0: 4})
    await house.commit(first, {1: 2})
    await house.members.leave("billing", first.member_id)

    await house.open()

    found = [
        house.members.offsets.get("billing", client_id, queue)
        for client_id in "ab"
        for queue in queues(0, 1)
    ]
    assert found == [3, 2, 4, None]
    assert await house.offsets() == {}


async def test_the_offsets_of_a_hundred_clients_that_have_left_are_kept(house):
    for number in range(102):
        member = await house.join(f"c{number}", is_broadcast=True)
        await house.commit(member, {0: 1})
        await house.members.leave("billing", member.member_id)

    kept = [
        number
        for number in range(102)
        if house.members.offsets.get("billing", f"c{number}", QueueId("orders", 0))
    ]
    assert kept == list(range(2, 102))


async def test_clients_of_broadcast_groups_have_no_more_offsets_than_the_settings_allow():
    house = await House(max_broadcast_offsets=3).open()
    first = await house.join("a", is_broadcast=True)
    second = await house.join("b", is_broadcast=True)
    await house.commit(first, {0: 1, 1: 1})

    with pytest.raises(LimitReached):
        await house.commit(second, {0: 1, 1: 1})
    await house.commit(first, {0: 2, 1: 2})
    await house.commit(second, {0: 1})


@pytest.mark.parametrize("keeps_snapshot", [False, True])
async def test_every_member_of_a_broadcast_group_owns_its_queues_after_a_restart(keeps_snapshot):
    house = await House().open()
    first = await house.join("a", is_broadcast=True)
    await house.join("b", is_broadcast=True)
    if keeps_snapshot:
        assert await house.members.save_snapshot() > 0

    await house.open()

    assert await house.owners() == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
    await house.commit(first, {0: 2})


async def test_members_name_no_more_queues_than_the_settings_allow():
    house = await House(max_named_queues=3).open()
    await house.join("a", strategy=Strategy.MANUAL, named=tuple(queues(0, 1)))

    with pytest.raises(LimitReached):
        await house.join("b", strategy=Strategy.MANUAL, named=tuple(queues(2, 3)))
    await house.join("b", strategy=Strategy.MANUAL, named=tuple(queues(2)))


async def test_a_deleted_topic_has_no_locks_and_no_offsets_of_clients(house):
    first = await house.join("a", is_broadcast=True)
    await house.commit(first, {0: 1})
    await house.members.lock("billing", first.member_id, queues(0))

    del house.counts["orders"]
    await house.members.end_topic("orders")

    members = house.members.of_group("billing")
    assert (members.locks, members.offsets, await house.owners()) == ({}, {"a": {}}, {"a": []})


async def test_new_queues_are_shared_out_soon_where_that_is_asked_for(house):
    await house.join("a")
    house.counts["orders"] = 5

    house.members.share_soon()
    await house.pass_ms(1)

    assert await house.owners() == {"a": [0, 1, 2, 3, 4]}


async def test_generations_rise_also_when_a_group_was_empty_meanwhile(house):
    first = await house.join("a")
    await house.members.leave("billing", first.member_id)

    assert (await house.join("a")).generation > first.generation


async def test_a_member_is_told_what_it_lost_while_the_service_restarted(house):
    first = await house.join("a")

    await house.open()
    await house.join("b")

    assert (await house.heartbeat(first)).revoked == queues(2, 3)


async def test_each_member_of_a_broadcast_group_owns_every_queue(house):
    await house.join("a", is_broadcast=True)
    await house.join("b", is_broadcast=True)

    assert await house.owners() == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}


@pytest.mark.parametrize("other", [{"strategy": Strategy.CIRCLE}, {"is_broadcast": True}])
async def test_the_first_member_decides_how_a_group_is_shared_while_there_are_members(house, other):
    first = await house.join("a")

    with pytest.raises(GroupActive):
        await house.join("b", **other)
    await house.members.leave("billing", first.member_id)

    await house.join("b", **other)


async def test_there_are_no_more_members_than_the_settings_allow():
    house = await House(max_group_members=2, max_members=3).open()
    await house.join("a")
    await house.join("b")

    with pytest.raises(LimitReached):
        await house.join("c")
    await house.join("c", group="shipping")
    with pytest.raises(LimitReached):
        await house.join("d", group="shipping")


async def test_a_deleted_group_has_no_members(house):
    first = await house.join("a")
    await house.members.lock("billing", first.member_id, queues(0))

    await house.members.end("billing")

    assert not house.members.is_in_use("billing")
    with pytest.raises(UnknownMember):
        await house.heartbeat(first)


async def test_nothing_is_due_once_the_last_member_has_left(house):
    first = await house.join("a")
    second = await house.join("b")
    await house.members.lock("billing", first.member_id, queues(0, 1))
    before = house.members.next_due_ms()
    await house.members.unlock("billing", first.member_id, queues(0))

    await house.members.leave("billing", first.member_id)
    await house.pass_ms(SESSION_MS)

    assert before is not None
    assert house.members.next_due_ms() is None
    with pytest.raises(UnknownMember):
        await house.heartbeat(second)


def test_what_could_not_be_ended_is_due_again():
    deadlines = Deadlines()
    deadlines.set("a", 1_000)
    deadlines.set("b", 2_000)
    deadlines.set("a", 3_000)

    assert [deadlines.due(ms) for ms in (1_999, 2_000, 2_000)] == [[], ["b"], ["b"]]
    deadlines.drop("b")
    assert deadlines.due(2_999) == []
    assert (deadlines.next_ms(), deadlines.due(3_000)) == (3_000, ["a"])
