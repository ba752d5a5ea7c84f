"""Damaged records and groups: each becomes a dead letter, whichever way the group meets it; nothing
else is lost.
"""

from contextlib import suppress

import pytest

from delivery.filters.filters import FilterKind
from delivery.groups import Subscription
from delivery.leases.events import LEASE_QUEUE, Damaged, read_event
from delivery.leases.given_up import Cause
from delivery.leases.tasks import Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import Backpressure, CorruptRecord, OffsetExpired, StorageError, StorageFull
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.files.unreadable import Unreadable
from storage.formats.names import file_name
from storage.message import Message, OffsetRange, QueueId, StoredMessage
from tests.support.builders import message
from tests.support.delivery import (
    EVERYTHING,
    GROUP,
    ORDERS,
    House,
    in_house,
    named,
    rules,
    spoil,
    without_snapshot,
)
from tests.support.simulation import ROOT

RETRIES = QueueId(f"%RETRY%{GROUP}", 0)
DEAD = QueueId(f"%DLQ%{GROUP}", 0)


class Spoiled:
    """Records that lives of a house choose, and that are damaged before the next life."""

    def __init__(self, found: bytes = b"") -> None:
        """`found`: what is damaged behind the beginning of their bodies."""
        self.log_offsets: list[int] = []
        self._found = found

    async def choose(self, house: House, queue: QueueId, *offsets: int) -> None:
        """And stop the house in order: then a start does not look at them."""
        for offset in offsets:
            (message,) = await house.store.read(queue, offset, max_messages=1, max_bytes=1)
            assert message.log_offset is not None
            self.log_offsets.append(message.log_offset)
        await house.close()

    def __call__(self, disk: SimulatedDisk) -> None:
        while self.log_offsets:
            spoil(disk, self.log_offsets.pop(), found=self._found)


async def stubs(house: House) -> list[tuple[str, int]]:
    """The dead letters by the place of their message."""
    found = await house.delivery.dead_letters.slice(GROUP, 0, 1_000)
    assert all(
        one.body == b"" and "the record is damaged" in one.system["__reason"] for one in found
    )
    return [(one.message_id, int(one.system["RECONSUME_TIME"])) for one in found]


async def damaged_count(house: House) -> int:
    assert house.rules is not None
    queues, _ = await house.delivery.lag(GROUP, house.rules)
    assert sum(one.damaged for one in queues) == house.delivery.count_damaged()
    return house.delivery.count_damaged()


async def send_three(house: House, spoiled: Spoiled) -> None:
    for name in ("first", "second", "third"):
        await house.send(name, tag="red", key="k")
    await spoiled.choose(house, ORDERS, 1)


def subscription(expression: str, kind: FilterKind = "tag") -> tuple[Subscription, ...]:
    return (Subscription("orders", kind, expression),)


FIRST_SEGMENT = ROOT / "commitlog" / file_name(0)


class BadSector:
    """A block in the middle of the long message of a house, which cannot be read in later lives."""

    def __init__(self) -> None:
        self.begin = 0

    async def send_three(self, house: House) -> None:
        await house.send("first")
        (place,) = await house.store.append(
            [message(b"x" * 5 * BLOCK_BYTES, queue=ORDERS, message_id="second")]
        )
        await house.send("third", *[f"later-{n}" for n in range(300)])
        assert place.log_offset is not None
        self.begin = place.log_offset - place.log_offset % BLOCK_BYTES + 2 * BLOCK_BYTES
        await house.close()

    def __call__(self, disk: SimulatedDisk) -> None:
        disk.fail_reads(FIRST_SEGMENT, self.begin, self.begin + 1)


async def failing_for(house: House, *, seconds: int) -> list[str]:
    """Receive each second for as long as that fails, at most so long; the names received."""
    names: list[str] = []
    for _ in range(seconds):
        with suppress(Unreadable):
            found = await house.receive(2)
            await house.ack(*found)
            names += [named(one)[0] for one in found]
        await house.sleep(1_000)
    return names


@pytest.mark.parametrize("fields", [{}, {"ordered": True}], ids=["plain", "ordered"])
def test_a_message_whose_sector_cannot_be_read_for_a_minute_is_a_dead_letter_and_the_others_come(
    fields,
):
    bad = BadSector()

    async def receive(house: House) -> None:
        assert "third" not in await failing_for(house, seconds=58)
        assert await stubs(house) == []

        names = await failing_for(house, seconds=10)

        assert "third" in names
        assert "second" not in names
        assert await stubs(house) == [("damaged_orders_0_1", 0)]
        (letter,) = await house.delivery.dead_letters.slice(GROUP, 0, 10)
        assert f"unreadable: Input/output error at byte {bad.begin}" in letter.system["__reason"]
        with pytest.raises(CorruptRecord, match="unreadable"):
            await house.store.read(ORDERS, 1, max_messages=1, max_bytes=1)

    in_house(bad.send_three, receive, given=rules(**fields), between=bad)


def test_a_sector_that_can_be_read_in_between_has_to_fail_for_a_minute_once_more():
    bad = BadSector()

    async def pull(house: House) -> None:
        for _ in range(2):
            for _ in range(50):
                with pytest.raises(Unreadable):
                    await house.store.read(ORDERS, 1, max_messages=1, max_bytes=1)
                await house.sleep(1_000)
            house.world.disk.heal_reads(FIRST_SEGMENT)
            (found,) = await house.store.read(ORDERS, 1, max_messages=1, max_bytes=1)
            assert found.message_id == "second"
            bad(house.world.disk)

    in_house(bad.send_three, pull, between=bad)


def test_a_disk_that_fails_for_some_time_makes_no_dead_letter():
    bad = BadSector()

    async def receive(house: House) -> None:
        await failing_for(house, seconds=30)
        disk = house.world.disk
        disk.heal_reads(FIRST_SEGMENT)
        disk.fail_reads(FIRST_SEGMENT, 0, 1 << 20)
        assert await failing_for(house, seconds=3_000) == [], "the disk gives back nothing"
        disk.heal_reads(FIRST_SEGMENT)

        names = await failing_for(house, seconds=5)

        assert {"second", "third"} <= set(names)
        assert await stubs(house) == []

    in_house(bad.send_three, receive, between=bad)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ordered": True},
        {"subscriptions": subscription("red || blue")},
        {"subscriptions": subscription("TAGS = 'red'", "sql92")},
        {"skip_lag_over": 1_000},
        {"skip_older_than_ms": 3_600_000},
    ],
    ids=["plain", "ordered", "tag", "sql92", "skips by lag", "skips by age"],
)
def test_a_damaged_message_is_a_dead_letter_for_each_kind_of_group_and_the_others_come(fields):
    spoiled = Spoiled()

    async def send(house: House) -> None:
        await send_three(house, spoiled)

    async def receive(house: House) -> None:
        received = [await house.receive(), await house.receive()]

        assert [named(one) for some in received for one in some] == [("first", 1), ("third", 1)]
        assert await house.ack(*received[0], *received[1]) == [True, True]
        assert (await house.position(), await stubs(house), await damaged_count(house)) == (
            3,
            [("damaged_orders_0_1", 0)],
            1,
        )
        assert house.delivery.table.group(GROUP).dead_lettered == {Cause.DAMAGED: 1}

    async def after_a_kill(house: House) -> None:
        assert await house.receive() == []
        assert (await house.position(), await stubs(house), await damaged_count(house)) == (
            3,
            [("damaged_orders_0_1", 0)],
            1,
        )
        await house.close()

    def between(disk: SimulatedDisk) -> None:
        spoiled(disk)
        without_snapshot(disk)

    in_house(send, receive, after_a_kill, given=rules(**fields), between=between)


@pytest.mark.parametrize(
    ("subscriptions", "damaged"),
    [(subscription("blue"), b"red"), (subscription("TAGS = 'blue'", "sql92"), b"")],
    ids=["a tag", "sql92"],
)
def test_a_filter_does_not_pass_over_a_message_that_it_cannot_judge(subscriptions, damaged):
    spoiled = Spoiled(damaged)

    async def send(house: House) -> None:
        await send_three(house, spoiled)

    async def receive(house: House) -> None:
        assert await house.receive() == []
        assert (await house.position(), await stubs(house), await damaged_count(house)) == (
            3,
            [("damaged_orders_0_1", 0)],
            1,
        )

    in_house(send, receive, given=rules(subscriptions=subscriptions), between=spoiled)


def test_of_what_a_receive_had_taken_before_the_damage_nothing_is_lost_with_the_grant():
    """The damage is in the log before the grant; a kill may part them."""
    spoiled = Spoiled()

    async def send(house: House) -> None:
        await send_three(house, spoiled)

    async def receive_and_lose_the_grant(house: House) -> None:
        append, taken = house.store.append, []

        async def full(messages: list[Message], **how: object):
            if messages[-1].queue == LEASE_QUEUE and b'"leased"' in messages[-1].body:
                taken.append(messages)
                raise StorageFull("the disk is full")
            return await append(messages, **how)

        house.store.append = full  # type: ignore[method-assign, assignment]
        with pytest.raises(StorageFull):
            await house.receive()
        assert taken

    async def after_a_kill(house: House) -> None:
        assert await house.names() == [("first", 1), ("third", 1)]
        assert await stubs(house) == [("damaged_orders_0_1", 0)]

    in_house(send, receive_and_lose_the_grant, after_a_kill, between=spoiled)


def test_a_damaged_message_that_cannot_be_recorded_strands_none_that_is_to_be_given_up():
    spoiled = Spoiled()

    async def receive(house: House) -> None:
        await house.send("first", "second")
        assert len(await house.receive()) == 2
        await spoiled.choose(house, ORDERS, 1)

    async def give_up_beside_it(house: House) -> None:
        await house.pass_time(1_100)
        house.rules = rules(max_attempts=1)
        append = house.store.append

        async def later(messages: list[Message], **how: object):
            raise Backpressure("later")

        house.store.append = later  # type: ignore[method-assign, assignment]
        with pytest.raises(Backpressure):
            await house.receive()
        house.store.append = append  # type: ignore[method-assign]

        assert await house.receive() == []
        assert sorted(one.message_id for one in await house.dead_letters()) == [
            "damaged_orders_0_1",
            "first",
        ]

    in_house(receive, give_up_beside_it, between=spoiled)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_is_damaged_while_it_is_leased_is_a_dead_letter_when_it_would_come_again(
    ordered,
):
    spoiled = Spoiled()

    async def receive(house: House) -> None:
        await house.send("first", "second", key="k")
        await house.send("third", key="k")
        assert len(await house.receive()) == 3
        await spoiled.choose(house, ORDERS, 2)

    async def receive_again(house: House) -> None:
        await house.pass_time(1_100)
        assert await house.names() == [("first", 2), ("second", 2)]
        assert (await stubs(house), await damaged_count(house)) == ([("damaged_orders_0_2", 1)], 1)

    in_house(receive, receive_again, given=rules(ordered=ordered), between=spoiled)


@pytest.mark.parametrize("verb", ["nack", "give_up", "the last lease ends"])
def test_a_message_that_cannot_be_read_when_it_is_to_be_moved_is_a_dead_letter(verb):
    spoiled, held = Spoiled(), []

    async def receive(house: House) -> None:
        await house.send("first")
        held.extend(await house.receive(lease_ms=5_000))
        await spoiled.choose(house, ORDERS, 0)

    async def settle(house: House) -> None:
        if verb == "nack":
            assert await house.nack(*held, delay_ms=100) == [True]
        elif verb == "give_up":
            assert await house.give_up(*held, reason="bad") == [True]
        else:
            await house.pass_time(5_100)
        assert (await stubs(house), await damaged_count(house)) == ([("damaged_orders_0_0", 1)], 1)
        await house.pass_time(10_000)
        assert (await house.receive(), await house.position()) == ([], 1)

    given = rules(max_attempts=1 if verb == "the last lease ends" else 5)
    in_house(receive, settle, given=given, between=spoiled)


def test_a_damaged_retry_is_a_dead_letter_and_waits_no_longer():
    spoiled = Spoiled()

    async def refuse(house: House) -> None:
        await house.send("first", "second")
        assert all(await house.nack(*await house.receive(), delay_ms=100))
        await house.pass_time(200)
        await spoiled.choose(house, RETRIES, 0)

    async def receive(house: House) -> None:
        assert house.rules is not None
        assert await house.names() == [("second", 2)]
        assert await stubs(house) == [(f"damaged_%RETRY%{GROUP}_0_0", 0)]
        assert (await house.delivery.lag(GROUP, house.rules))[1] == 0

    in_house(refuse, receive, between=spoiled)


def test_a_group_that_keeps_no_dead_letters_counts_what_was_damaged():
    spoiled = Spoiled()

    async def send(house: House) -> None:
        await send_three(house, spoiled)

    async def receive(house: House) -> None:
        assert len([*await house.receive(), *await house.receive()]) == 2
        assert (await house.dead_letters(), await damaged_count(house)) == ([], 1)
        await house.close()

    async def after_a_stop(house: House) -> None:
        assert await damaged_count(house) == 1

    in_house(send, receive, after_a_stop, given=rules(dead_letter=False), between=spoiled)


def test_a_row_of_damaged_messages_is_one_event():
    spoiled = Spoiled()

    async def send(house: House) -> None:
        for number in range(20):
            await house.send(f"m{number}")
        await spoiled.choose(house, ORDERS, *range(15))

    async def receive(house: House) -> None:
        assert len(await house.receive()) == 5
        assert len(await stubs(house)) == 15
        events = [read_event(one) for one in await house.store.read(LEASE_QUEUE, 0, **EVERYTHING)]
        assert [len(one.messages) for one in events if isinstance(one, Damaged)] == [15]

    in_house(send, receive, between=spoiled)


@pytest.mark.parametrize("attempts", [0, 1])
def test_on_a_full_disk_nothing_damaged_is_settled_and_other_queues_go_on(attempts):
    spoiled, second = Spoiled(), QueueId("orders", 1)

    async def send(house: House) -> None:
        await house.send("first")
        if attempts:
            await house.receive()
        await house.send("other", queue=second)
        await spoiled.choose(house, ORDERS, 0)

    async def receive(house: House) -> None:
        await house.pass_time(1_100)
        append, refused = house.store.append, list[list[Message]]()

        async def full(messages: list[Message], *, from_reserve: bool = False, **how: object):
            if not from_reserve:
                refused.append(messages)
                assert len(refused) < 100, "it spins"
                raise StorageFull("the disk is full")
            return await append(messages, from_reserve=True, **how)

        house.store.append = full  # type: ignore[method-assign, assignment]
        assert await house.names() == [("other", 1)]
        with pytest.raises(StorageFull):
            await house.receive()
        assert (await stubs(house), await damaged_count(house)) == ([], 0)
        house.store.append = append  # type: ignore[method-assign]
        assert await house.receive() == []
        assert (await stubs(house), await damaged_count(house)) == (
            [("damaged_orders_0_0", attempts)],
            1,
        )

    in_house(send, receive, queues=2, between=spoiled)


@pytest.mark.parametrize("expression", ["*", "red"])
def test_a_message_that_has_not_expired_is_never_passed_over_as_if_it_had(expression):
    async def life(house: House) -> None:
        await house.send("first", tag="red")

        async def wrong(queue: QueueId, offset: int, **how: object):
            raise OffsetExpired(requested=offset, available=OffsetRange(0, 1))

        kept = house.store.read_records, house.store.read_tagged
        house.store.read_records = house.store.read_tagged = wrong  # type: ignore[method-assign, assignment]
        with pytest.raises(StorageError, match="has not expired"):
            await house.receive()
        house.store.read_records, house.store.read_tagged = kept  # type: ignore[method-assign]
        assert await house.names() == [("first", 1)]

    in_house(life, given=rules(subscriptions=subscription(expression)))


# --------------------------------------------------------------------------------------------------
# the dead letters


def test_a_stub_is_listed_found_and_purged_and_a_redrive_says_that_its_body_is_lost():
    spoiled = Spoiled()

    async def send(house: House) -> None:
        await send_three(house, spoiled)

    async def look(house: House) -> None:
        assert await house.give_up(*await house.receive(), *await house.receive()) == [True, True]
        dead = house.delivery.dead_letters
        found = await dead.find(GROUP, "damaged_orders_0_1")
        assert found is not None
        assert (found.system["DLQ_ORIGIN_TOPIC"], found.system["__origin"]) == ("orders", "0:1")
        for ids in (None, frozenset({"damaged_orders_0_1", "first", "nobody"})):
            task, _ = await dead.redrive(GROUP, Redrive(Wanted(message_ids=ids)))
            while task.ended_at_ms is None:
                await dead.run_once()
            assert (task.stubs, task.failed) == (["damaged_orders_0_1"], 1 if ids is None else 3)
        assert [one.message_id for one in await dead.slice(GROUP, 0, 10)] == ["damaged_orders_0_1"]
        assert await dead.purge(GROUP) == 1
        assert await dead.slice(GROUP, 0, 10) == []

    in_house(send, look, between=spoiled)


def test_a_dead_letter_whose_own_record_is_damaged_is_listed_by_its_place_and_not_redriven():
    spoiled, own_id = Spoiled(), f"damaged_%DLQ%{GROUP}_0_0"

    async def give_up(house: House) -> None:
        await house.send("first")
        await house.send("second")
        for one in await house.receive():
            assert await house.give_up(one) == [True]
        await spoiled.choose(house, DEAD, 0)

    async def look(house: House) -> None:
        dead = house.delivery.dead_letters
        listed: list[StoredMessage] = await dead.slice(GROUP, 0, 10)
        assert [one.message_id for one in listed] == [own_id, "second"]
        assert await dead.find(GROUP, own_id) is not None
        task, _ = await dead.redrive(GROUP, Redrive(Wanted()))
        while task.ended_at_ms is None:
            await dead.run_once()
        assert (task.done, task.stubs) == (1, [own_id])
        assert await house.names() == [("second", 1)]
        assert [one.message_id for one in await dead.slice(GROUP, 0, 10)] == [own_id]

    in_house(give_up, look, between=spoiled)
