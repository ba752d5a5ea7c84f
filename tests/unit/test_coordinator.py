"""Transactions over a store: the first decision wins, nothing is seen before it, checks come as
planned, nothing is lost.
"""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from scheduler.scheduled_message import with_delay
from storage.errors import (
    CheckNotOpen,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    MessageTooLarge,
    TooManyOpenTransactions,
    TransactionConflict,
    TransactionExists,
    UnknownTransaction,
)
from storage.files.simulated import SimulatedDisk
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Durability, Message, QueueId, TransactionBits
from storage.store import MessageStore
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy, OnExhausted
from txn.coordinator import TransactionCoordinator
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE, read_op
from txn.options import TransactionOptions
from txn.states import Resolver, TxnEvent, TxnState
from txn.transaction import Transaction, TxnMessage

ORDERS = QueueId("orders", 0)
EMAILS = QueueId("emails", 1)
EVERYTHING = {"max_messages": 1_000, "max_bytes": 1 << 30}
SOON = CheckbackPolicy(
    first_after_ms=100, interval_ms=200, max_answers=3, unreachable_limit_ms=5_000
)
OPTIONS = LocalStoreOptions(
    segment_bytes=65_536,
    prepare_ahead_bytes=16_384,
    queue_file_entries=20,
    index_slots=64,
    index_file_entries=200,
)


class House:
    """A store with a coordinator, in a simulated world."""

    def __init__(self, world: World, store: MessageStore, options: TransactionOptions) -> None:
        self.world = world
        self.store = store
        self.decided: list[tuple[str, str]] = []  # what, and by whom
        self.published: list[int] = []  # messages of each commit
        self.coordinator = TransactionCoordinator(
            store,
            world.clock,
            world.identifiers,
            options,
            on_decided=lambda state, by: self.decided.append((state.value, by.value)),
            on_published=self.published.append,
        )

    async def begin(self, *given: Message, policy: CheckbackPolicy = SOON, **fields) -> str:
        request = Begin(
            given or (message(b"order", queue=ORDERS, message_id="m1"),), "shop", policy, **fields
        )
        return (await self.coordinator.begin(request)).transaction.transaction_id

    async def state(self, transaction_id: str) -> TxnState:
        return (await self.coordinator.get(transaction_id)).state

    async def bodies(self, queue: QueueId = ORDERS) -> list[bytes]:
        return [found.body for found in await self.store.read(queue, 0, **EVERYTHING)]

    async def sweep(self) -> None:
        await self.coordinator.run_once(self.world.clock.wall_ms())

    async def checks(self, group: str = "shop", lease_ms: int = 1_000):
        return await self.coordinator.receive_checks(
            group, max_checks=10, lease_ms=lease_ms, wait_ms=0
        )

    async def answer(self, decision: TxnEvent, **fields):
        (check,) = await self.checks()
        return await self.coordinator.answer_check("shop", check.check_id, decision, **fields)


async def a_house(
    world: World, *, options: LocalStoreOptions = OPTIONS, copies: int = 1, **given
) -> House:
    store = await world.open_store(options, copies=copies)
    if copies > 1:
        store.note_copy("b", 1 << 40)
    await store.create_topic("orders", queue_count=1)
    await store.create_topic("emails", queue_count=2)
    house = House(world, store, TransactionOptions(**given))
    await house.coordinator.start()
    return house


def in_house(*lives, **given) -> SimulatedDisk:
    """Each life on the disk that the one before it left when it was killed."""
    disk, _ = run_lives(lives, lambda world: a_house(world, **given))
    return disk


with_house = one_life(in_house)


# --------------------------------------------------------------------------------------------------
# begin and decide


@with_house()
async def test_the_messages_of_a_commit_are_counted_once_and_those_of_a_rollback_never(house):
    orders = [message(b"order", queue=ORDERS, message_id=f"m{number}") for number in range(3)]
    committed, rolled_back = await house.begin(*orders), await house.begin()
    assert house.published == []

    for _ in range(2):
        await house.coordinator.commit(committed)
        await house.coordinator.rollback(rolled_back)

    assert house.published == [3]


@pytest.mark.parametrize("restart", ["none", "killed"])
def test_a_clock_that_was_once_a_year_ahead_puts_off_no_check_of_what_is_begun_when_it_is_right(
    restart,
):
    year_ms = 365 * 86_400_000
    first_check: list[int] = []

    async def poisoned(house):
        clock = house.world.clock
        clock.jump(year_ms)
        await house.store.append([message(b"far ahead", queue=ORDERS)])
        clock.jump(-year_ms)
        begun_ms = clock.wall_ms()
        await house.begin(transaction_id="txn")
        first_check.append((await house.coordinator.get("txn")).first_check_at_ms)
        assert (
            begun_ms + SOON.first_after_ms
            <= first_check[0]
            <= clock.wall_ms() + SOON.first_after_ms
        )
        if restart == "none":
            await checked(house)

    async def checked(house):
        transaction = await house.coordinator.get("txn")
        assert transaction.first_check_at_ms == transaction.next_check_at_ms == first_check[0]
        await asyncio.sleep((first_check[0] - 1 - house.world.clock.wall_ms()) / 1_000)
        assert await house.checks() == []
        await asyncio.sleep(0.001)
        assert len(await house.checks()) == 1

    in_house(poisoned, *([checked] if restart == "killed" else []))


NEARLY_A_SEGMENT = OPTIONS.segment_bytes - 400


def of_bytes(body_bytes: int, count: int, delay_ms: int | None) -> list[Message]:
    """So many messages with bodies of so many bytes together."""
    each = [
        message(b"x" * (body_bytes // count), queue=ORDERS, message_id=f"m{number}")
        for number in range(count)
    ]
    return each if delay_ms is None else [with_delay(one, delay_ms=delay_ms) for one in each]


@pytest.mark.parametrize("delay_ms", [None, 5_000, 1_234_567])
@pytest.mark.parametrize("count", [1, 2, 40])
@with_house()
async def test_a_transaction_that_is_begun_can_be_committed_however_large_it_is(
    house, count, delay_ms
):
    refused = []
    for body_bytes in range(NEARLY_A_SEGMENT, NEARLY_A_SEGMENT - 42 * 600, -600):
        try:
            transaction_id = await house.begin(*of_bytes(body_bytes, count, delay_ms))
        except MessageTooLarge as error:
            refused.append((body_bytes, error.limit_bytes))
            continue
        outcome = await house.coordinator.commit(
            transaction_id, by=Resolver.OPERATOR, reason="\U0001f4b3" * 1_024
        )
        assert outcome.transaction.state is TxnState.COMMITTED

    assert len({limit for _, limit in refused}) == 1
    assert all(limit < body_bytes for body_bytes, limit in refused)


@with_house()
async def test_a_transaction_of_the_limit_of_bytes_is_begun_put_back_and_committed(house):
    with pytest.raises(MessageTooLarge) as refused:
        await house.begin(*of_bytes(NEARLY_A_SEGMENT, 1, None))
    largest = refused.value.limit_bytes
    with pytest.raises(MessageTooLarge):
        await house.begin(*of_bytes(largest + 1, 1, None))

    transaction_id = await house.begin(*of_bytes(largest, 1, None))
    await house.coordinator.put_back({HALF_QUEUE: 1})
    await house.coordinator.commit(transaction_id)

    assert house.coordinator.not_put_back() == {}
    assert await house.bodies() == [b"x" * largest]


@with_house()
async def test_a_half_message_is_seen_by_nobody_before_the_commit_and_by_all_after(house):
    transaction_id = await house.begin(
        message(
            b"order",
            queue=ORDERS,
            message_id="m1",
            key="8812",
            tag="created",
            properties={"a": "b"},
        ),
        message(b"email", queue=EMAILS, message_id="m2"),
    )
    assert await house.bodies(ORDERS) == await house.bodies(EMAILS) == []

    outcome = await house.coordinator.commit(transaction_id)

    assert not outcome.replayed
    (order,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    (email,) = await house.store.read(EMAILS, 0, **EVERYTHING)
    assert (order.message_id, order.body, order.key, order.tag, order.properties) == (
        "m1",
        b"order",
        "8812",
        "created",
        {"a": "b"},
    )
    assert email.body == b"email"
    assert [one.final_offset for one in outcome.transaction.messages] == [0, 0]


@with_house()
async def test_a_final_record_carries_the_commit_bits_and_the_place_of_its_half(house):
    await house.begin()
    transaction_id = await house.begin(message(b"second", queue=ORDERS, message_id="m2"))
    await house.coordinator.commit(transaction_id)

    (final,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    half = (await house.store.read(HALF_QUEUE, 1, **EVERYTHING))[0]
    assert final.transaction is TransactionBits.COMMIT
    assert final.prepared_log_offset == half.log_offset
    assert half.transaction is TransactionBits.NONE
    assert half.system["REAL_TOPIC"] == "orders"
    assert half.system["REAL_QID"] == "0"
    assert half.system["PGROUP"] == "shop"
    assert half.system["TRAN_MSG"] == "true"
    assert half.system["__transactionId__"] == final.system["__transactionId__"] == transaction_id


@with_house()
async def test_a_decision_is_one_op_message_that_says_what_was_decided(house):
    await house.begin()
    transaction_id = await house.begin(
        message(queue=ORDERS, message_id="m2"), message(queue=EMAILS, message_id="m3")
    )  # fmt: skip
    await house.coordinator.rollback(transaction_id, reason="payment refused")

    (op,) = await house.store.read(OP_QUEUE, 0, **EVERYTHING)
    assert (op.body, op.tag) == (b"1,2,", "d")
    read = read_op(op)
    assert (read.transaction_id, read.state, read.resolved_by, read.reason) == (
        transaction_id,
        TxnState.ROLLED_BACK,
        Resolver.PRODUCER,
        "payment refused",
    )


@with_house()
async def test_the_first_decision_wins_and_the_same_one_again_is_a_replay(house):
    committed, rolled_back = (
        await house.begin(),
        await house.begin(message(queue=ORDERS, message_id="m2")),
    )
    await house.coordinator.commit(committed)
    await house.coordinator.rollback(rolled_back)

    assert (await house.coordinator.commit(committed)).replayed
    assert (await house.coordinator.rollback(rolled_back)).replayed
    with pytest.raises(TransactionConflict) as caught:
        await house.coordinator.rollback(committed)
    assert (caught.value.state, caught.value.resolved_by) == ("committed", "producer")
    with pytest.raises(TransactionConflict):
        await house.coordinator.commit(rolled_back)
    with pytest.raises(UnknownTransaction):
        await house.coordinator.commit("txn_unknown")
    assert len(await house.bodies()) == 1


@with_house()
async def test_of_many_decisions_at_once_exactly_one_is_made(house):
    transaction_id = await house.begin()
    decide = [house.coordinator.commit, house.coordinator.rollback]
    answers = await asyncio.gather(
        *[decide[n % 2](transaction_id) for n in range(20)], return_exceptions=True
    )

    made = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [outcome.replayed for outcome in made].count(False) == 1
    assert len({outcome.transaction.state for outcome in made}) == 1
    assert all(
        isinstance(answer, TransactionConflict)
        for answer in answers
        if isinstance(answer, BaseException)
    )
    assert (await house.store.offsets(OP_QUEUE)).end == 1
    assert len(await house.bodies()) == (
        1 if made[0].transaction.state is TxnState.COMMITTED else 0
    )


@with_house()
async def test_a_decision_goes_on_when_the_one_who_asked_for_it_has_gone(house):
    transaction_id = await house.begin()
    asking = asyncio.ensure_future(house.coordinator.commit(transaction_id))
    await asyncio.sleep(0)
    asking.cancel()
    await house.coordinator.drain()

    assert await house.state(transaction_id) is TxnState.COMMITTED
    assert len(await house.bodies()) == 1


@with_house(options=replace(OPTIONS, flush=FlushPolicy.INTERVAL, flush_interval_ms=60_000))
async def test_by_interval_a_decision_is_durable_when_it_is_answered(house):
    transaction_id = await house.begin()
    await house.coordinator.commit(transaction_id)

    (final,) = await house.store.read(ORDERS, 0, **EVERYTHING)
    assert house.store.sureness_of(final.log_offset).durable


# --------------------------------------------------------------------------------------------------
# repeatable


@with_house()
async def test_a_begin_with_the_same_key_is_the_same_transaction_as_it_is_now(house):
    first = await house.begin(idempotency_key="order-1", fingerprint="print")
    await house.coordinator.commit(first)
    request = Begin(
        (message(queue=ORDERS, message_id="m9"),), "shop", SOON, None, None, "order-1", "print"
    )

    again = await house.coordinator.begin(request)

    assert again.replayed
    assert again.transaction.transaction_id == first
    assert again.transaction.state is TxnState.COMMITTED
    with pytest.raises(IdempotencyKeyReused):
        await house.coordinator.begin(request._replace(fingerprint="another"))
    assert (await house.store.offsets(HALF_QUEUE)).end == 1


@pytest.mark.parametrize("decided_kept", [1, 1_000])
def test_a_repeated_begin_names_the_places_of_what_was_committed_before_a_restart(decided_kept):
    """Whether memory still knows the transaction or not."""
    key = {"idempotency_key": "order-1", "fingerprint": "print"}

    async def life(house):
        await house.coordinator.commit(await house.begin(**key))
        for _ in range(2):
            await house.coordinator.commit(await house.begin())

    async def again(house):
        request = Begin(
            (message(queue=ORDERS, message_id="m9"),), "shop", SOON, None, None, *key.values()
        )
        outcome = await house.coordinator.begin(request)
        assert outcome.replayed
        assert [one.final_offset for one in outcome.transaction.messages] == [0]

    in_house(life, again, decided_kept=decided_kept)


@with_house()
async def test_a_begin_whose_key_is_under_way_is_told_so(house):
    request = Begin(
        (message(queue=ORDERS, message_id="m1"),), "shop", SOON, None, None, "order-1", "print"
    )
    answers = await asyncio.gather(
        *[house.coordinator.begin(request) for _ in range(3)], return_exceptions=True
    )

    assert [isinstance(answer, IdempotencyInProgress) for answer in answers] == [False, True, True]


@with_house(dedup_window_ms=1_000)
async def test_a_key_counts_no_longer_than_its_window(house):
    first = await house.begin(idempotency_key="order-1", fingerprint="print")
    await asyncio.sleep(2)
    second = await house.begin(
        message(queue=ORDERS, message_id="m2"), idempotency_key="order-1", fingerprint="x"
    )

    assert second != first


@pytest.mark.parametrize("is_forgotten", [False, True])
@with_house(decided_kept=1, dedup_window_ms=1_000)
async def test_a_begin_with_its_own_id_and_key_is_a_replay_for_as_long_as_the_id_is_known(
    house, is_forgotten
):
    """Behind the window of the key, too, where another body or key is another begin."""
    same = {"transaction_id": "order-1", "idempotency_key": "key-1", "fingerprint": "print"}
    await house.begin(**same)
    if is_forgotten:
        await house.coordinator.commit("order-1")
        await house.begin(message(queue=ORDERS, message_id="m2"), transaction_id="order-2")
        await house.coordinator.commit("order-2")
        assert house.coordinator.table.get("order-1") is None
    await asyncio.sleep(1.001)

    assert await house.begin(**same) == "order-1"
    for other in ({"fingerprint": "x"}, {"idempotency_key": "x"}, {"idempotency_key": None}):
        with pytest.raises(TransactionExists):
            await house.begin(**same | other)


@with_house()
async def test_an_id_of_the_callers_own_is_taken_once(house):
    assert await house.begin(transaction_id="order-8812") == "order-8812"
    with pytest.raises(TransactionExists):
        await house.begin(transaction_id="order-8812")
    answers = await asyncio.gather(
        *[house.begin(transaction_id="twin") for _ in range(2)], return_exceptions=True
    )
    assert isinstance(answers[1], TransactionExists)


@with_house(max_open=2)
async def test_no_more_transactions_are_open_than_allowed_and_deciding_makes_room(house):
    first = await house.begin()
    await house.begin(message(queue=ORDERS, message_id="m2"))
    with pytest.raises(TooManyOpenTransactions):
        await house.begin(message(queue=ORDERS, message_id="m3"))

    await house.coordinator.rollback(first)

    await house.begin(message(queue=ORDERS, message_id="m3"))


# --------------------------------------------------------------------------------------------------
# checkback


@with_house()
async def test_the_first_check_comes_after_the_grace_and_the_next_after_the_interval(house):
    await house.begin()
    assert await house.checks() == []
    await asyncio.sleep(0.1)
    (check,) = await house.checks()
    await house.coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
    assert await house.checks() == []
    await asyncio.sleep(0.2)

    (second,) = await house.checks()

    assert second.check_id != check.check_id
    assert second.transaction.answers == 1


@with_house()
async def test_a_waiting_producer_gets_a_check_as_soon_as_it_is_due(house):
    waiting = asyncio.ensure_future(
        house.coordinator.receive_checks("shop", max_checks=10, lease_ms=1_000, wait_ms=20_000)
    )  # fmt: skip
    await house.begin()
    await asyncio.sleep(0.15)
    await house.sweep()

    assert len(await waiting) == 1


@with_house()
async def test_a_check_that_is_not_answered_in_time_comes_again_under_the_same_id_and_costs_nothing(
    house,
):
    transaction_id = await house.begin()
    await asyncio.sleep(0.1)
    (first,) = await house.checks(lease_ms=500)
    assert await house.checks() == []
    await asyncio.sleep(0.6)

    (again,) = await house.checks()

    assert again.check_id == first.check_id
    assert (await house.coordinator.get(transaction_id)).answers == 0


@with_house()
async def test_an_answer_decides_and_says_who_decided(house):
    committed = await house.begin()
    await asyncio.sleep(0.1)
    answered = await house.answer(TxnEvent.COMMIT)
    assert (answered.state, answered.resolved_by) == (TxnState.COMMITTED, Resolver.CHECK)
    assert len(await house.bodies()) == 1

    await house.begin(message(queue=ORDERS, message_id="m2"))
    await asyncio.sleep(0.1)
    assert (await house.answer(TxnEvent.ROLLBACK)).state is TxnState.ROLLED_BACK
    assert len(await house.bodies()) == 1
    assert await house.state(committed) is TxnState.COMMITTED


@with_house()
async def test_an_answer_counts_once_and_a_later_one_may_still_decide(house):
    transaction_id = await house.begin()
    await asyncio.sleep(0.1)
    (check,) = await house.checks()
    answer = house.coordinator.answer_check

    answers = await asyncio.gather(
        *[answer("shop", check.check_id, TxnEvent.UNKNOWN) for _ in range(5)]
    )

    assert {one.answers for one in answers} == {1}
    assert (await answer("shop", check.check_id, TxnEvent.COMMIT)).state is TxnState.COMMITTED
    assert (await answer("shop", check.check_id, TxnEvent.COMMIT)).state is TxnState.COMMITTED
    with pytest.raises(TransactionConflict):
        await answer("shop", check.check_id, TxnEvent.ROLLBACK)
    with pytest.raises(TransactionConflict):
        await answer("shop", check.check_id, TxnEvent.UNKNOWN)
    assert await house.state(transaction_id) is TxnState.COMMITTED


@pytest.mark.parametrize(
    "check_id",
    [
        "chk_",
        "chk_x_txn",
        "chk_1_unknown",
        "chk_0_mine",
        "chk_2_mine",
        "x",
        "chk_1_",
        "chk_99999999999999_mine",
    ],
)
@with_house()
async def test_an_answer_to_a_check_that_is_none_is_refused(house, check_id):
    await house.begin(transaction_id="mine")
    await asyncio.sleep(0.1)
    assert len(await house.checks()) == 1

    with pytest.raises(CheckNotOpen):
        await house.coordinator.answer_check("shop", check_id, TxnEvent.COMMIT)


async def assert_not_open(house: House, check_id: str) -> None:
    for decision in (TxnEvent.UNKNOWN, TxnEvent.COMMIT, TxnEvent.ROLLBACK):
        with pytest.raises(CheckNotOpen):
            await house.coordinator.answer_check("shop", check_id, decision)


@with_house()
async def test_a_check_that_was_never_asked_cannot_be_answered_and_nobody_burns_the_budget_with_made_up_ids(
    house,
):
    await house.begin(transaction_id="mine")
    await assert_not_open(house, "chk_1_mine")
    for answered in range(1, 4):
        await asyncio.sleep(0.21)
        assert (await house.answer(TxnEvent.UNKNOWN)).answers == answered
        await assert_not_open(house, f"chk_{answered + 1}_mine")

    assert await house.state("mine") is TxnState.HELD
    await asyncio.sleep(60)
    await assert_not_open(house, "chk_4_mine")


@with_house()
async def test_no_check_of_a_transaction_that_was_decided_before_it_was_due_can_be_answered(house):
    await house.begin(transaction_id="mine")
    await house.coordinator.commit("mine")
    await asyncio.sleep(1)

    await assert_not_open(house, "chk_1_mine")


@with_house()
async def test_a_check_that_a_clock_once_ahead_made_due_can_be_answered_after_its_producer_has_decided(
    house,
):
    await house.begin(transaction_id="mine")
    house.world.clock.jump(86_400_000)
    (check,) = await house.checks()
    house.world.clock.jump(-86_400_000)
    await house.coordinator.commit("mine")

    found = await house.coordinator.answer_check("shop", check.check_id, TxnEvent.COMMIT)

    assert found.state is TxnState.COMMITTED


def test_what_a_check_has_decided_may_be_said_again_although_it_was_asked_before_it_was_due():
    async def life(house):
        await house.begin(transaction_id="mine")
        await house.coordinator.make_due("mine")
        assert (await house.answer(TxnEvent.COMMIT)).state is TxnState.COMMITTED

    async def again(house):
        found = await house.coordinator.answer_check("shop", "chk_1_mine", TxnEvent.COMMIT)
        assert found.state is TxnState.COMMITTED

    in_house(life, again)


@with_house()
async def test_another_group_is_neither_asked_nor_heard(house):
    await house.begin()
    await asyncio.sleep(0.1)
    assert await house.checks("other") == []
    (check,) = await house.checks()
    with pytest.raises(CheckNotOpen):
        await house.coordinator.answer_check("other", check.check_id, TxnEvent.COMMIT)


async def _exhaust(house: House, **fields) -> None:
    for _ in range(3):
        await asyncio.sleep(0.21)
        await house.answer(TxnEvent.UNKNOWN, **fields)


@with_house()
async def test_after_so_many_answered_unknowns_a_transaction_is_held_and_nobody_is_asked(house):
    transaction_id = await house.begin()

    await _exhaust(house)

    held = await house.coordinator.get(transaction_id)
    assert (held.state, held.answers, held.hold_reason) == (TxnState.HELD, 3, "answers_exhausted")
    await asyncio.sleep(60)
    assert await house.checks() == []
    assert (await house.store.offsets(HELD_QUEUE)).end == 1
    assert await house.bodies() == []


@with_house()
async def test_nobody_reached_for_too_long_holds_too_and_uses_no_budget(house):
    transaction_id = await house.begin()
    await asyncio.sleep(0.1)
    await house.sweep()
    await asyncio.sleep(4.9)
    await house.sweep()
    assert await house.state(transaction_id) is TxnState.PREPARED
    await asyncio.sleep(0.2)

    await house.sweep()

    held = await house.coordinator.get(transaction_id)
    assert (held.state, held.answers, held.hold_reason) == (TxnState.HELD, 0, "unreachable")


@with_house()
async def test_what_is_given_up_at_one_moment_is_held_together_and_no_poll_does_it(house):
    for n in range(300):
        await house.begin(message(queue=ORDERS, message_id=f"m{n}"))
    await house.sweep()
    await asyncio.sleep(0.2)
    await house.sweep()
    await asyncio.sleep(5.1)

    began = house.world.loop.now
    assert await house.checks("another") == []
    assert house.coordinator.table.held_count == 0
    assert house.world.loop.now == began, "a poll waits for no disk"
    await house.sweep()

    assert house.coordinator.table.held_count == 300
    assert house.world.loop.now - began < 0.2, "300 synced one after another take 0.7 s"


@with_house(copies=2)
async def test_without_a_replica_one_that_waits_to_be_held_keeps_no_other_check_from_being_opened(
    house,
):
    first, second = [await house.begin(message(queue=ORDERS, message_id=one)) for one in "ab"]
    later = CheckbackPolicy(first_after_ms=6_000, interval_ms=200)
    another = await house.begin(message(queue=ORDERS, message_id="c"), policy=later)
    await asyncio.sleep(0.2)
    await house.sweep()
    house.store.forget_copy("b")
    await asyncio.sleep(5.1)
    await asyncio.wait_for(house.sweep(), 60)
    assert await house.state(first) is TxnState.PREPARED
    await asyncio.sleep(1)

    began = house.world.loop.now
    await asyncio.wait_for(house.sweep(), 60)

    assert house.world.loop.now == began, "a later sweep does not wait for it again"
    asked = [check.transaction.transaction_id for check in await house.checks()]
    assert another in asked
    house.store.note_copy("c", 1 << 40)
    await asyncio.sleep(1)
    await house.sweep()
    assert await house.state(first) is await house.state(second) is TxnState.HELD
    assert house.coordinator.table.held_count == 2


def test_while_the_service_is_down_nobody_is_asked_and_nothing_is_given_up_for_it():
    async def before(house):
        await house.begin(transaction_id="mine")
        await asyncio.sleep(0.2)
        await house.sweep()
        (check,) = await house.checks()
        await house.coordinator.note_failed_check(check, "unreachable", "status 503", latency_ms=1)
        await house.store.aclose()
        house.world.clock.jump(3_600_000)  # the next life begins an hour later

    async def after(house):
        mine = await house.coordinator.get("mine")
        await house.sweep()
        assert (mine.state, mine.is_checking) == (TxnState.PREPARED, True)
        (check,) = await house.checks()
        await asyncio.sleep(SOON.interval_ms / 1000 - 0.01)
        await house.sweep()
        assert mine.state is TxnState.PREPARED
        await asyncio.sleep(0.02)
        await house.sweep()
        assert (mine.state, mine.hold_reason) == (TxnState.HELD, "unreachable")
        decided = await house.coordinator.answer_check("shop", check.check_id, TxnEvent.COMMIT)
        assert decided.state is TxnState.COMMITTED

    in_house(before, after)


@with_house()
async def test_a_held_transaction_can_be_decided_and_is_late_then(house):
    transaction_id = await house.begin()
    await _exhaust(house)

    await house.coordinator.commit(transaction_id, by=Resolver.OPERATOR, reason="INC-311")

    decided = await house.coordinator.get(transaction_id)
    assert (decided.state, decided.resolved_by, decided.reason, decided.is_late) == (
        TxnState.COMMITTED,
        Resolver.OPERATOR,
        "INC-311",
        True,
    )
    assert len(await house.bodies()) == 1


@with_house()
async def test_a_held_transaction_is_asked_about_once_each_time_an_operator_wants_it(house):
    transaction_id = await house.begin()
    await _exhaust(house)
    assert await house.checks() == []

    await house.coordinator.make_due(transaction_id)
    (check,) = await house.checks(lease_ms=1_000)
    await house.coordinator.make_due(transaction_id)
    assert await house.checks() == []  # it is leased
    await asyncio.sleep(1.1)
    assert [one.check_id for one in await house.checks()] == [check.check_id]
    unknown = await house.coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
    assert (unknown.state, unknown.answers) == (TxnState.HELD, 3)
    await asyncio.sleep(2)
    assert await house.checks() == []
    with pytest.raises(CheckNotOpen):
        await house.coordinator.answer_check("shop", check.check_id, TxnEvent.COMMIT)

    await house.coordinator.make_due(transaction_id)
    decided = await house.answer(TxnEvent.COMMIT)

    assert (decided.state, decided.resolved_by) == (TxnState.COMMITTED, Resolver.CHECK)
    assert len(await house.bodies()) == 1


@with_house()
async def test_a_held_transaction_that_is_resumed_is_asked_again_from_the_beginning(house):
    transaction_id = await house.begin()
    await _exhaust(house)

    resumed = await house.coordinator.resume(transaction_id)

    assert (resumed.state, resumed.answers, resumed.hold_reason) == (TxnState.PREPARED, 0, None)
    (check,) = await house.checks()
    assert check.transaction.transaction_id == transaction_id
    assert (
        await house.coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
    ).answers == 1
    # a prepared one stays as it is
    assert (await house.coordinator.resume(transaction_id)).answers == 1
    await house.coordinator.commit(transaction_id)
    with pytest.raises(TransactionConflict):
        await house.coordinator.resume(transaction_id)


@with_house()
async def test_where_it_was_asked_for_exhaustion_rolls_back_instead(house):
    policy = CheckbackPolicy(
        first_after_ms=100, interval_ms=200, max_answers=3, on_exhausted=OnExhausted.ROLLBACK
    )
    transaction_id = await house.begin(policy=policy)

    await _exhaust(house)

    decided = await house.coordinator.get(transaction_id)
    assert (decided.state, decided.resolved_by, decided.was_held) == (
        TxnState.ROLLED_BACK,
        Resolver.POLICY,
        False,
    )


@with_house()
async def test_a_producer_may_say_when_to_ask_again(house):
    await house.begin()
    await asyncio.sleep(0.1)
    await house.answer(TxnEvent.UNKNOWN, recheck_after_ms=5_000)
    await asyncio.sleep(4.9)
    assert await house.checks() == []
    await asyncio.sleep(0.2)
    assert len(await house.checks()) == 1


@with_house()
async def test_a_decision_takes_its_open_check_away(house):
    transaction_id = await house.begin()
    await asyncio.sleep(0.1)
    await house.sweep()
    await house.coordinator.rollback(transaction_id)

    assert await house.checks() == []


@with_house()
async def test_what_is_decided_leaves_nothing_behind_that_is_to_be_looked_at(house):
    begun = [await house.begin(message(queue=ORDERS, message_id=f"m{n}")) for n in range(300)]
    await asyncio.sleep(0.2)
    leased = await house.coordinator.receive_checks(
        "shop", max_checks=200, lease_ms=43_200_000, wait_ms=0
    )
    assert len(leased) == 200
    for transaction_id in begun:
        await house.coordinator.rollback(transaction_id)

    assert len(house.coordinator.table._due) <= 64
    assert len(house.coordinator._journal.checks._leases) <= 64


@with_house()
async def test_a_transaction_that_is_asked_for_long_is_looked_at_no_more_often_for_it(house):
    policy = CheckbackPolicy(first_after_ms=100, interval_ms=200, max_answers=1_000)
    await house.begin(policy=policy)
    for _ in range(200):
        await asyncio.sleep(0.21)
        await house.answer(TxnEvent.UNKNOWN)

    assert len(house.coordinator.table._due) <= 66
    await asyncio.sleep(0.21)
    assert len(await house.checks()) == 1, "and is asked again"


@with_house()
async def test_who_made_a_decision_is_told_once_whichever_way_it_came(house):
    policy = CheckbackPolicy(
        first_after_ms=100, interval_ms=200, max_answers=1, on_exhausted=OnExhausted.ROLLBACK
    )
    await house.coordinator.commit(await house.begin(transaction_id="a"))
    await house.coordinator.commit("a")
    await house.begin(message(queue=ORDERS, message_id="m2"), policy=policy)
    await asyncio.sleep(0.11)
    await house.answer(TxnEvent.UNKNOWN)
    await house.begin(message(queue=ORDERS, message_id="m3"))
    await asyncio.sleep(0.11)
    await house.answer(TxnEvent.ROLLBACK)

    assert house.decided == [
        ("committed", "producer"),
        ("rolled_back", "policy"),
        ("rolled_back", "check"),
    ]


@with_house()
async def test_the_history_tells_when_a_polled_check_was_handed_out_and_what_came_with_each_answer(
    house,
):
    await house.begin(transaction_id="mine")
    await asyncio.sleep(0.15)
    (check,) = await house.checks()
    await asyncio.sleep(0.02)
    await house.coordinator.answer_check(
        "shop", check.check_id, TxnEvent.UNKNOWN, evidence={"row": "none"}
    )
    await asyncio.sleep(0.25)
    (check,) = await house.checks()
    await asyncio.sleep(0.02)
    await house.coordinator.answer_check(
        "shop", check.check_id, TxnEvent.COMMIT, evidence={"row": "8812"}
    )

    told = await house.coordinator.history("mine")

    assert [event.event for event in told] == [
        *(
            "half_stored",
            "check_sent",
            "check_answered",
            "check_sent",
            "check_answered",
            "committed",
        )
    ]
    sent, unknown, sent_again, commit = told[1:5]
    assert [(one.attempt, one.via) for one in (sent, sent_again)] == [(1, "poll"), (1, "poll")]
    assert (unknown.decision, unknown.evidence) == ("unknown", {"row": "none"})
    assert (commit.decision, commit.evidence) == ("commit", {"row": "8812"})
    assert 20 <= unknown.at_ms - sent.at_ms <= 30
    assert 20 <= commit.at_ms - sent_again.at_ms <= 30


@with_house()
async def test_who_waits_for_a_decision_is_told_at_once(house):
    transaction_id = await house.begin()
    waiting = asyncio.ensure_future(
        house.coordinator.wait_until_not_prepared(transaction_id, timeout_ms=20_000)
    )  # fmt: skip
    await asyncio.sleep(1)
    begun = house.world.loop.now
    await house.coordinator.commit(transaction_id)
    await waiting
    assert house.world.loop.now - begun < 1

    other = await house.begin(message(queue=ORDERS, message_id="m2"))
    await house.coordinator.wait_until_not_prepared(other, timeout_ms=50)
    assert await house.state(other) is TxnState.PREPARED


# --------------------------------------------------------------------------------------------------
# nothing is forgotten


def test_after_a_kill_every_transaction_is_what_it_was():
    async def before(house):
        for name in ("undecided", "committed", "rolled-back", "held", "resumed"):
            await house.begin(
                message(name.encode(), queue=ORDERS, message_id=f"a-{name}"),
                message(name.encode(), queue=EMAILS, message_id=f"b-{name}"),
                transaction_id=name,
                business_key=f"key of {name}",
            )
        await house.coordinator.commit("committed")
        await house.coordinator.rollback("rolled-back", reason="no")
        for _ in range(3):
            await asyncio.sleep(0.21)
            for check in await house.checks():
                if check.transaction.transaction_id in ("held", "resumed"):
                    await house.coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
        await house.coordinator.resume("resumed")

    def expect(snapshot: bool):
        async def after(house):
            get = house.coordinator.get
            assert (await get("undecided")).state is TxnState.PREPARED
            assert (await get("undecided")).business_key == "key of undecided"
            committed = await get("committed")
            assert (committed.state, [one.final_offset for one in committed.messages]) == (
                TxnState.COMMITTED,
                [0, 0],
            )
            rolled_back = await get("rolled-back")
            assert (rolled_back.state, rolled_back.reason) == (TxnState.ROLLED_BACK, "no")
            held = await get("held")
            assert (held.state, held.answers, held.hold_reason) == (
                TxnState.HELD,
                3,
                "answers_exhausted",
            )
            resumed = await get("resumed")
            assert (resumed.state, resumed.answers, resumed.checks_answered, resumed.was_held) == (
                TxnState.PREPARED,
                0,
                3,
                True,
            )
            assert house.coordinator.table.open_count == 3
            assert house.coordinator.table.held_count == 1
            assert {check.transaction.transaction_id for check in await house.checks()} == {
                "undecided",
                "resumed",
            }
            if snapshot:
                assert await house.coordinator.save_snapshot()
                assert not await house.coordinator.save_snapshot()
                await house.store.aclose()

        return after

    in_house(before, expect(snapshot=False), expect(snapshot=True), expect(snapshot=False))


def test_a_snapshot_saves_the_start_from_replaying():
    async def before(house):
        for n in range(20):
            transaction_id = await house.begin(message(queue=ORDERS, message_id=f"m{n}"))
            if n % 2:
                await house.coordinator.commit(transaction_id)
        saved_bytes = await house.coordinator.save_snapshot()
        snapshot = await house.store.load_snapshot("transactions")
        assert saved_bytes == len(snapshot.data) > 20 * 100
        await house.store.aclose()

    async def after(house):
        replayed = TransactionCoordinator(
            house.store, house.world.clock, house.world.identifiers, TransactionOptions()
        )
        assert await replayed.start() == 0
        assert len(replayed.table) == 20

    in_house(before, after)


def test_an_answer_from_before_a_kill_still_finds_its_check():
    ids = []

    async def before(house):
        await house.begin()
        await asyncio.sleep(0.1)
        ids.append((await house.checks())[0].check_id)

    async def after(house):
        answered = await house.coordinator.answer_check("shop", ids[0], TxnEvent.COMMIT)
        assert answered.state is TxnState.COMMITTED

    in_house(before, after)


def plainly(transaction: Transaction) -> dict:
    """All that is told of it; `final_from` is only where to look for the final, which has been
    found.
    """
    told = msgspec.structs.asdict(transaction) | {"look_at_ms": None, "packed": None}
    return told | {
        "messages": [
            msgspec.structs.replace(sent, final_from=None) for sent in transaction.messages
        ]
    }


async def three_forgotten(house) -> dict[str, dict]:
    """Decided in each way, one of them held before; what they were, as memory knew it."""
    body = message(b"order", queue=ORDERS, message_id="m-late", key="8812")
    await house.begin(
        body,
        message(b"mail", queue=EMAILS, message_id="m-2"),
        transaction_id="late",
        business_key="order-8812",
    )
    for _ in range(SOON.max_answers):
        await asyncio.sleep(1)
        await house.sweep()
        await house.answer(TxnEvent.UNKNOWN)
    assert await house.state("late") is TxnState.HELD
    await house.coordinator.commit("late", by=Resolver.OPERATOR)
    await house.begin(transaction_id="back", idempotency_key="key-back", fingerprint="print")
    await house.coordinator.rollback("back", reason="payment refused")
    await house.begin(transaction_id="plain", idempotency_key="key-plain", fingerprint="print")
    await house.coordinator.commit("plain")
    known = {name: plainly(await house.coordinator.get(name)) for name in ("late", "back", "plain")}
    for n in range(2):
        await house.begin(
            message(queue=ORDERS, message_id=f"other-{n}"), transaction_id=f"other-{n}"
        )
        await house.coordinator.commit(f"other-{n}")
    assert all(house.coordinator.table.get(name) is None for name in known)
    return known


async def assert_as_before(house, known: dict[str, dict]) -> None:
    """Looked up, a decided transaction is what it was; who repeats its begin or its decision is
    told so.
    """
    coordinator = house.coordinator
    for name, before in known.items():
        assert plainly(await coordinator.get(name)) == before
        with pytest.raises(TransactionExists) as refused:
            await house.begin(transaction_id=name)
        assert refused.value.context == {"transaction_id": name, "state": before["state"]}
    assert (await coordinator.commit("plain")).replayed
    assert (await coordinator.rollback("back")).replayed
    with pytest.raises(TransactionConflict):
        await coordinator.rollback("late")
    with pytest.raises(TransactionConflict):
        await coordinator.commit("back")
    with pytest.raises(TransactionConflict):
        await coordinator.resume("late")
    for name in ("back", "plain"):
        again = {"idempotency_key": f"key-{name}", "fingerprint": "print"}
        assert await house.begin(**again) == name
        with pytest.raises(IdempotencyKeyReused):
            await house.begin(**{**again, "fingerprint": "another"})
    with pytest.raises(UnknownTransaction):
        await coordinator.get("never-begun")


@with_house(decided_kept=1)
async def test_a_decided_transaction_that_memory_has_forgotten_is_found_in_the_log(house):
    await assert_as_before(house, await three_forgotten(house))


def test_a_decided_transaction_that_memory_has_forgotten_is_found_after_a_restart_too():
    known: dict[str, dict] = {}

    async def life(house):
        known.update(await three_forgotten(house))
        await house.coordinator.save_snapshot()
        await asyncio.sleep(20)
        await house.store.aclose()

    async def again(house):
        assert all(house.coordinator.table.get(name) is None for name in known)
        await assert_as_before(house, known)

    in_house(life, again, decided_kept=1)


async def with_business_key(house, business_key: str, *, most: int) -> list[list[str]]:
    """Ids of the transactions that memory has, then pages of those that only the log has."""

    def is_wanted(_) -> bool:
        return True

    known = await house.coordinator.search(
        after=-1, states=frozenset(TxnState), wanted=is_wanted, most=100, business_key=business_key
    )
    pages, older_than = [known], 1 << 62
    while older_than is not None:
        found, older_than = await house.coordinator.search_forgotten(
            business_key, older_than=older_than, wanted=is_wanted, most=most
        )
        pages.append(found)
    return [[one.transaction_id for one in page] for page in pages]


@pytest.mark.parametrize("business_key", ["order-8812", "order 8812 %/ü"])
def test_transactions_are_found_by_business_key_open_decided_forgotten_and_after_a_restart(
    business_key,
):
    expected = [["c", "e"], ["b", "d"], ["a"]]

    async def life(house):
        for name in "abcde":
            await house.begin(
                message(queue=ORDERS, message_id=f"m-{name}"),
                transaction_id=name,
                business_key=business_key,
            )
        await house.begin(
            message(queue=ORDERS, message_id="m-x"), transaction_id="x", business_key="order"
        )
        for name in "adbe":
            await house.coordinator.commit(name)
        assert await with_business_key(house, business_key, most=2) == expected
        assert await with_business_key(house, "order", most=2) == [["x"], []]
        assert await with_business_key(house, "8812", most=2) == [[], []]
        await house.coordinator.save_snapshot()
        await asyncio.sleep(20)
        await house.store.aclose()

    async def again(house):
        assert await with_business_key(house, business_key, most=2) == expected
        await house.coordinator.rollback("c")
        assert (await with_business_key(house, business_key, most=9))[1] == ["e", "b", "d", "a"]

    in_house(life, again, decided_kept=1)


@with_house(decided_kept=1)
async def test_a_business_key_of_thousands_of_transactions_is_read_a_piece_at_a_time(house):
    for number in range(230):
        name = f"t-{number:03}"
        await house.begin(
            message(queue=ORDERS, message_id=f"m-{number}"),
            transaction_id=name,
            business_key="same",
        )
        await house.coordinator.commit(name)

    pages = await with_business_key(house, "same", most=1_000)

    assert [len(page) for page in pages] == [1, 100, 100, 29]
    assert [name for page in pages[1:] for name in page] == [
        f"t-{number:03}" for number in reversed(range(229))
    ]


@with_house(decided_kept=1, dedup_window_ms=1_000)
async def test_a_forgotten_idempotency_key_counts_no_longer_than_a_known_one(house):
    again = {"idempotency_key": "key", "fingerprint": "print"}
    first = await house.begin(**again)
    await house.coordinator.commit(first)
    await house.begin(message(queue=ORDERS, message_id="m2"), transaction_id="other")
    await house.coordinator.commit("other")
    assert house.coordinator.table.get(first) is None

    await asyncio.sleep(1.001)

    assert await house.begin(**again) != first


@with_house(decided_kept=1, dedup_window_ms=1_000)
async def test_of_two_forgotten_begins_with_one_key_the_later_one_counts_though_the_other_was_decided_last(
    house,
):
    again = {"idempotency_key": "key", "fingerprint": "print"}
    first = await house.begin(**again)
    await asyncio.sleep(1.001)
    second = await house.begin(message(queue=ORDERS, message_id="m2"), **again)
    await house.coordinator.commit(second)
    await house.coordinator.commit(first)
    await house.begin(message(queue=ORDERS, message_id="m3"), transaction_id="other")
    await house.coordinator.commit("other")
    assert house.coordinator.table.get(second) is None

    assert await house.begin(**again) == second


@with_house(decided_kept=1)
async def test_two_begins_of_one_id_at_once_are_one_transaction_while_the_log_is_asked(house):
    await three_forgotten(house)
    results = await asyncio.gather(
        *[house.begin(transaction_id="twice") for _ in range(3)], return_exceptions=True
    )

    assert sorted(type(result).__name__ for result in results) == [
        "TransactionExists",
        "TransactionExists",
        "str",
    ]


@with_house()
async def test_a_commit_waits_for_halves_whose_sync_takes_long(house):
    """A begin is answered after the engine's limit even if the sync is not done; its messages
    cannot be read yet then.
    """
    begun = await house.store.append(
        [
            message(
                queue=HALF_QUEUE, message_id="h", system={"REAL_TOPIC": "orders", "REAL_QID": "0"}
            )
        ],
        durability=Durability.BUFFERED,
    )
    assert not begun[0].durable
    assert (await house.store.offsets(HALF_QUEUE)).end == 0
    assert await house.store.wait_for_arrival(HALF_QUEUE, 0, timeout_ms=1_000)


@with_house()
async def test_check_events_are_in_the_log(house):
    await house.begin()
    await _exhaust(house, evidence={"row": "order_outbox:8812"})
    events = await house.store.read(CHECK_QUEUE, 0, **EVERYTHING)
    assert len(events) == 4
    assert b'"row":"order_outbox:8812"' in events[0].body


@with_house()
async def test_a_list_that_passes_over_many_leaves_room_for_others_between_and_finds_the_same(
    house,
):
    for number in range(20_000):
        half = TxnMessage(f"m-{number}", ORDERS, None, number)
        group = "rare" if number % 5_000 == 4_999 else "shop"
        begun = Transaction(
            f"txn-{number}", group, (half,), SOON, prepared_at_ms=0, next_check_at_ms=1 << 60
        )
        house.coordinator.table.add(begun)

    def is_rare(transaction: Transaction) -> bool:
        return transaction.producer_group == "rare"

    async def found(most: int, after: int = -1) -> list[str]:
        states = frozenset({TxnState.PREPARED})
        listed = await house.coordinator.search(
            after=after, states=states, wanted=is_rare, most=most
        )
        return [one.transaction_id for one in listed]

    began = house.world.loop.turns
    assert await found(10) == ["txn-4999", "txn-9999", "txn-14999", "txn-19999"]
    assert house.world.loop.turns - began >= 15
    assert await found(2, after=4_999) == ["txn-9999", "txn-14999"]


def test_what_is_due_all_at_once_leaves_room_for_others_between():
    """After a long stop a million checks may be due in one sweep."""

    async def life(house):
        count, turns = 5_000, 0
        for number in range(count):
            half = TxnMessage(f"m-{number}", ORDERS, None, number)
            house.coordinator.table.add(
                Transaction(
                    f"txn-{number}", "shop", (half,), SOON, prepared_at_ms=0, next_check_at_ms=0
                )
            )

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        acted = await house.coordinator.run_once(house.world.clock.wall_ms())
        beside.cancel()

        assert acted == count
        assert turns >= 2

    in_house(life)


@with_house()
async def test_a_sweep_that_is_given_up_in_the_middle_forgets_nobody(house):
    count = 3_000
    policy = CheckbackPolicy(first_after_ms=0, max_answers=1)
    for number in range(count):
        half = TxnMessage(f"m-{number}", ORDERS, None, number)
        begun = Transaction(
            f"txn-{number}",
            "shop",
            (half,),
            policy,
            prepared_at_ms=0,
            next_check_at_ms=0,
            answers=1,
        )
        house.coordinator.table.add(begun)

    sweep = asyncio.ensure_future(house.sweep())
    await asyncio.sleep(0)
    sweep.cancel()
    await asyncio.wait([sweep])
    await house.sweep()

    assert sweep.cancelled()
    assert house.coordinator.table.held_count == count
