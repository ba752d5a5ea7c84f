"""Undecided transactions outlive the retention of the segments they lie in: the same ones,
decidable once, across kills.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from storage.errors import (
    CorruptRecord,
    InvalidMessage,
    MessageTooLarge,
    OffsetExpired,
    TransactionConflict,
    TransactionExpired,
    UnknownTransaction,
    reason_of,
)
from storage.files.simulated import SimulatedDisk
from storage.formats import properties
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import MessageStore
from tests.support import check_pass
from tests.support.builders import message
from tests.support.check_pass import transactions_by_check_pass
from tests.support.lives import one_life, run_lives
from tests.support.simulation import ROOT, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, OP_QUEUE, read_op
from txn.options import TransactionOptions
from txn.states import TxnEvent, TxnState
from txn.transaction import Transaction

ORDERS, EMAILS, FILLING = QueueId("orders", 0), QueueId("emails", 0), QueueId("filling", 0)
EVERYTHING = {"max_messages": 10_000, "max_bytes": 1 << 30}
POLICY = CheckbackPolicy(first_after_ms=100, interval_ms=200, max_answers=2)
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    prepare_ahead_bytes=8_192,
    queue_file_entries=10,
    index_slots=16,
    index_file_entries=40,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=50,
    retention_ms=60_000,
    delete_hours=";".join(map(str, range(24))),
)
SHOWN = [
    *(
        "transaction_id",
        "producer_group",
        "policy",
        "prepared_at_ms",
        "next_check_at_ms",
        "business_key",
        "idempotency_key",
    ),
    *(
        "fingerprint",
        "state",
        "revision",
        "answers",
        "checks_answered",
        "last_answer",
        "hold_reason",
        "was_held",
    ),
    *("sequence", "first_check_at_ms"),
]


class House:
    def __init__(
        self, world: World, store: LocalMessageStore, coordinator: TransactionCoordinator
    ) -> None:
        self.world = world
        self.store = store
        self.coordinator = coordinator

    async def begin(self, name: str, *, policy: CheckbackPolicy = POLICY) -> None:
        given = [
            message(
                b"order",
                queue=ORDERS,
                message_id=f"o-{name}",
                key="8812",
                tag="made",
                properties={"a": "b"},
            ),
            message(b"email", queue=EMAILS, message_id=f"e-{name}"),
        ]
        request = Begin(
            given,
            "shop",
            policy,
            name,
            f"order {name}",
            idempotency_key=f"key-{name}",
            fingerprint="print",
        )
        await self.coordinator.begin(request)

    async def answer_unknown(self, name: str) -> None:
        await asyncio.sleep(0.3)
        for check in await self.coordinator.receive_checks(
            "shop", max_checks=99, lease_ms=1, wait_ms=0
        ):
            if check.transaction.transaction_id == name:
                await self.coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)

    async def fill(self) -> None:
        """More than a segment of other messages, later."""
        await asyncio.sleep(61)
        for _ in range(20):
            await self.store.append([message(b"x" * 1_000, queue=FILLING)])
        await asyncio.sleep(0.2)

    async def expire(self) -> int:
        async def put_back(first_kept: object) -> None:
            await self.coordinator.put_back(first_kept)  # type: ignore[arg-type]

        return await self.store.expire(self.world.clock.wall_ms(), put_back)

    async def expire_all(self) -> None:
        """Everything that is there now."""
        end = (await self.store.offsets(HALF_QUEUE)).end
        await self.fill()
        await self.fill()
        while await self.expire():
            pass
        assert (await self.store.offsets(HALF_QUEUE)).first >= end, "the halves themselves are gone"

    def shown(self, name: str) -> dict[str, object]:
        transaction = self.coordinator.table.get(name)
        assert transaction is not None
        return {field: getattr(transaction, field) for field in SHOWN}


async def bodies(store: MessageStore, queue: QueueId) -> list[bytes]:
    return [
        found.body
        for found in await store.read(queue, (await store.offsets(queue)).first, **EVERYTHING)
    ]


Life = Callable[[House], Awaitable[None]]


def in_lives(*lives: Life, disk: SimulatedDisk | None = None) -> SimulatedDisk:
    async def enter(world: World) -> House:
        store = await world.open_store(OPTIONS)
        for queue in (ORDERS, EMAILS, FILLING):
            await store.create_topic(queue.topic, queue_count=1)
        coordinator = TransactionCoordinator(
            store, world.clock, world.identifiers, TransactionOptions()
        )
        await coordinator.start()
        return House(world, store, coordinator)

    disk, _ = run_lives(lives, enter, disk=disk)
    return disk


with_house = one_life(in_lives)


def without_derived(disk: SimulatedDisk) -> SimulatedDisk:
    for folder in ("snapshots", "index"):
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)
    return disk


@pytest.mark.parametrize("restart", ["none", "killed", "killed, tables lost"])
def test_an_undecided_transaction_outlives_its_segment_as_the_one_that_it_is(restart):
    before: dict[str, dict[str, object]] = {}

    async def begun(house):
        for name in ("young", "asked", "held"):
            await house.begin(name)
        await house.answer_unknown("asked")
        for _ in range(2):
            await house.answer_unknown("held")
        assert house.coordinator.table.get("held").state is TxnState.HELD
        before.update({name: house.shown(name) for name in ("young", "asked", "held")})
        await house.expire_all()
        if restart == "none":
            await decided(house)

    async def decided(house):
        coordinator = house.coordinator
        assert {name: house.shown(name) for name in before} == before
        assert [one.transaction_id for one in coordinator.table] == ["young", "asked", "held"]
        assert coordinator.table.held_count == 1
        assert await bodies(house.store, ORDERS) == []

        committed = await coordinator.commit("held")
        await coordinator.commit("asked")
        await coordinator.rollback("young")

        assert not committed.replayed
        assert (await coordinator.commit("held")).replayed
        with pytest.raises(TransactionConflict):
            await coordinator.rollback("held")
        assert await bodies(house.store, ORDERS) == [b"order"] * 2
        assert await bodies(house.store, EMAILS) == [b"email"] * 2
        again = await coordinator.begin(
            Begin([], "shop", POLICY, idempotency_key="key-held", fingerprint="print")
        )  # fmt: skip
        assert again.replayed
        assert again.transaction.transaction_id == "held"

    disk = in_lives(begun)
    if restart == "killed":
        in_lives(decided, disk=disk)
    elif restart != "none":
        in_lives(decided, disk=without_derived(disk))


@with_house()
async def test_the_final_message_names_the_half_where_it_lies_now_and_is_as_if_nothing_had_been(
    house,
):
    await house.begin("late")
    await house.begin("at once")
    await house.coordinator.commit("at once")
    (plain,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    await house.expire_all()
    await house.coordinator.commit("late")

    transaction: Transaction = house.coordinator.table.get("late")
    (final,) = await house.store.read(ORDERS, 1, **EVERYTHING)
    (half,) = await house.store.read(
        HALF_QUEUE, transaction.messages[0].half_offset, max_messages=1, max_bytes=1
    )
    assert final.prepared_log_offset == half.log_offset
    assert (final.body, final.key, final.tag, final.properties) == (
        plain.body,
        plain.key,
        plain.tag,
        plain.properties,
    )
    assert final.system.keys() == plain.system.keys()
    # RocketMQ's own properties of a half that was put back.
    assert half.system[properties.PREPARED_QUEUE_OFFSET] == "0"
    assert half.system[properties.CHECK_TIMES] == "0"


def test_where_both_copies_are_still_there_one_decision_is_one_for_rocketmqs_rules_too():
    async def life(house):
        await house.begin("both")
        await house.begin("open")
        await house.coordinator.put_back({HALF_QUEUE: 2})
        await house.coordinator.commit("both")

        (op,) = [read_op(found) for found in await house.store.read(OP_QUEUE, 0, **EVERYTHING)]
        assert op.half_offsets == (4, 5, 0, 1)
        halves = [
            check_pass.half_of(found)
            for found in await house.store.read(HALF_QUEUE, 0, **EVERYTHING)
        ]
        ops = [
            check_pass.op_of(found) for found in await house.store.read(OP_QUEUE, 0, **EVERYTHING)
        ]
        assert check_pass.check_pass(halves, ops).undecided == [2, 3]

    async def replayed(house):
        assert await transactions_by_check_pass(house.store) == {"both": 0, "open": None}
        assert house.coordinator.table.get("both").state is TxnState.COMMITTED
        assert (await house.coordinator.commit("both")).replayed
        await house.coordinator.commit("open")
        assert await bodies(house.store, ORDERS) == [b"order"] * 2

    in_lives(replayed, disk=without_derived(in_lives(life)))


def test_a_transaction_is_put_back_as_often_as_its_segment_expires():
    async def begun(house):
        await house.begin("old")
        for _ in range(3):
            await house.answer_unknown("old")
            await house.expire_all()
            await house.coordinator.resume("old")

    async def committed(house):
        await house.coordinator.commit("old")
        assert await bodies(house.store, EMAILS) == [b"email"]

    in_lives(committed, disk=without_derived(in_lives(begun)))


@with_house()
async def test_others_have_turns_while_transactions_that_expire_are_looked_for(house):
    await asyncio.gather(*[house.begin(f"t{number}") for number in range(1_500)])
    end = (await house.store.offsets(HALF_QUEUE)).end
    assert await house.coordinator.put_back({HALF_QUEUE: end}) == 1_500
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(take_turns())
    await asyncio.sleep(0)
    before = turns
    assert await house.coordinator.put_back({HALF_QUEUE: end}) == 0
    others.cancel()

    assert turns - before >= 1_500 // 500


@with_house()
async def test_what_is_decided_is_not_put_back_and_a_decision_during_it_wins(house):
    await house.begin("decided")
    await house.coordinator.rollback("decided")
    for number in range(10):
        await house.begin(f"racing-{number}")
    end = (await house.store.offsets(HALF_QUEUE)).end

    commits = [
        asyncio.ensure_future(house.coordinator.commit(f"racing-{number}"))
        for number in range(0, 10, 2)
    ]
    put_back = asyncio.ensure_future(house.coordinator.put_back({HALF_QUEUE: end}))
    commits += [
        asyncio.ensure_future(house.coordinator.commit(f"racing-{number}")) for number in range(10)
    ]
    outcomes = await asyncio.gather(*commits)
    await put_back

    assert sum(not outcome.replayed for outcome in outcomes) == 10
    assert await bodies(house.store, ORDERS) == [b"order"] * 10
    halves = await house.store.read(HALF_QUEUE, end, **EVERYTHING)
    assert "decided" not in {half.system[properties.TRANSACTION_ID] for half in halves}


def test_a_damaged_half_message_is_set_aside_and_holds_up_no_later_drop_either():
    async def begun(house):
        await house.begin("damaged")
        await house.begin("whole")
        (half,) = await house.store.read(HALF_QUEUE, 0, max_messages=1, max_bytes=1)
        assert half.log_offset == 0
        await house.coordinator.save_snapshot()
        await house.fill()

    async def expired(house):
        with pytest.raises(CorruptRecord):
            await house.coordinator.commit("damaged")
        assert house.coordinator.parked()["damaged"].startswith(f"{0:020} at log offset 0: ")
        await house.expire_all()
        (reason,) = house.coordinator.not_put_back().values()
        assert reason.startswith(f"{0:020} at log offset 0: ")
        await house.expire_all()

        coordinator = house.coordinator
        assert list(coordinator.not_put_back()) == ["damaged"]
        await coordinator.commit("whole")
        assert await bodies(house.store, ORDERS) == [b"order"]
        await coordinator.rollback("damaged")
        assert coordinator.not_put_back() == coordinator.parked() == {}

    disk = in_lives(begun)
    first_segment = disk.open(ROOT / "commitlog" / "0".zfill(20))
    (byte,) = first_segment.read(95, 1)  # in the body of the first record
    first_segment.write(95, bytes([byte ^ 1]))
    first_segment.sync()
    in_lives(expired, disk=disk)


@pytest.mark.parametrize("taken_out", [0, 1])
@with_house()
async def test_of_a_transaction_that_a_repair_took_a_message_from_nothing_can_be_published(
    house, taken_out
):
    await house.begin("incomplete")
    await house.begin("whole")
    read = house.store.read

    async def repaired(queue, queue_offset, *, max_messages, max_bytes):
        if queue == HALF_QUEUE and queue_offset == taken_out:
            raise CorruptRecord(None, 0, "a repair left it out", was_taken_out=True)
        most = (
            taken_out - queue_offset
            if queue == HALF_QUEUE and queue_offset < taken_out
            else max_messages
        )
        return await read(queue, queue_offset, max_messages=most, max_bytes=max_bytes)

    house.store.read = repaired
    coordinator = TransactionCoordinator(
        house.store, house.world.clock, house.world.identifiers, TransactionOptions()
    )
    await coordinator.start()

    with pytest.raises(UnknownTransaction):
        await coordinator.commit("incomplete")
    await coordinator.commit("whole")
    assert (await bodies(house.store, ORDERS), await bodies(house.store, EMAILS)) == (
        [b"order"],
        [b"email"],
    )


@with_house()
async def test_the_history_tells_that_it_was_put_back(house):
    await house.begin("old")
    await house.answer_unknown("old")
    begun_at_ms = house.coordinator.table.get("old").prepared_at_ms
    await house.expire_all()
    await house.coordinator.commit("old")

    events = await house.coordinator.history("old")

    assert [event.event for event in events] == ["half_stored", "put_back", "committed"]
    assert events[0].at_ms == begun_at_ms
    assert "1 checks had been answered" in events[1].detail


def without_its_halves(disk: SimulatedDisk | None = None) -> SimulatedDisk:
    """A store in which the halves of "again" have expired, and what was answered and decided about
    it has not.
    """

    async def life(house):
        await house.begin("again")
        await house.fill()
        await house.answer_unknown("again")
        await house.coordinator.rollback("again")
        await asyncio.sleep(61)
        assert await house.expire()
        assert (await house.store.offsets(HALF_QUEUE)).first == 2
        assert (
            await house.store.offsets(CHECK_QUEUE) == await house.store.offsets(OP_QUEUE) == (0, 1)
        )

    return without_derived(in_lives(life, disk=disk))


@with_house(disk=without_its_halves())
async def test_a_decided_transaction_of_which_only_the_decision_is_left_is_said_to_have_expired(
    house,
):
    coordinator = house.coordinator
    for ask in (
        coordinator.get,
        coordinator.commit,
        coordinator.rollback,
        coordinator.history,
        coordinator.resume,
    ):
        with pytest.raises(TransactionExpired):
            await ask("again")
        with pytest.raises(UnknownTransaction):
            await ask("never")


@with_house()
async def test_a_commit_whose_messages_went_with_a_damaged_segment_says_that_they_have_expired(
    house,
):
    await house.begin("lost")
    await house.fill()
    await asyncio.sleep(61)

    async def nothing(first_kept: object) -> None:
        """As where the half is damaged."""

    assert await house.store.expire(house.world.clock.wall_ms(), nothing)
    with pytest.raises(TransactionExpired):
        await house.coordinator.commit("lost")
    assert (await house.coordinator.rollback("lost")).transaction.state is TxnState.ROLLED_BACK


def test_what_was_said_of_a_transaction_that_has_expired_is_not_taken_for_said_of_the_next_one_of_that_id():
    before: dict[str, object] = {}

    async def begun_again(house):
        await house.begin("again")
        before.update(house.shown("again"))
        assert before["state"] is TxnState.PREPARED

    async def replayed(house):
        coordinator = house.coordinator
        assert house.shown("again") == before
        assert [event.event for event in await coordinator.history("again")] == ["half_stored"]
        await house.answer_unknown("again")
        assert house.shown("again")["answers"] == 1
        assert not (await coordinator.commit("again")).replayed
        assert await bodies(house.store, ORDERS) == [b"order"]

    async def decided(house):
        assert house.shown("again")["state"] is TxnState.COMMITTED
        assert house.shown("again")["answers"] == 1

    disk = without_derived(in_lives(begun_again, disk=without_its_halves()))
    in_lives(decided, disk=without_derived(in_lives(replayed, disk=disk)))


def test_a_decided_transaction_whose_messages_have_expired_is_forgotten_with_them_and_published_no_second_time():
    async def begun(house):
        await house.begin("gone")
        await house.coordinator.commit("gone")
        await house.expire_all()
        assert (await house.coordinator.commit("gone")).replayed, "memory still knows it"

    async def restarted(house):
        assert house.coordinator.table.get("gone") is None
        with pytest.raises(OffsetExpired):
            await house.store.read(ORDERS, 0, **EVERYTHING)

    in_lives(restarted, disk=without_derived(in_lives(begun)))


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidMessage("the properties take 32,800 bytes"),
        MessageTooLarge("it takes more than a segment", limit_bytes=1 << 20),
    ],
)
def test_a_half_message_that_has_no_room_for_more_holds_up_no_drop(refusal):
    """A broker's properties may have all but a few of the 32,767 bytes, a message may take nearly
    all of a small segment.
    """

    async def begun(house):
        await house.begin("full")
        await house.begin("another")
        append = house.store.append

        async def with_little_room(messages, **more):
            if any(
                properties.CHECK_TIMES in one.system and one.message_id == "o-full"
                for one in messages
            ):
                raise refusal
            return await append(messages, **more)

        house.store.append = with_little_room
        await house.expire_all()

        assert house.coordinator.not_put_back() == {"full": reason_of(refusal)}
        await house.coordinator.commit("another")
        assert await bodies(house.store, ORDERS) == [b"order"]

    in_lives(begun)
