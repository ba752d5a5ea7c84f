"""What a RocketMQ broker did with transactions, and what our service makes of it when it starts on
what was left.

A broker writes halves (again at each check), a final on commit, an op up to 3 s later that names
halves and not the direction, and moves a half that it gives up on.
"""

import pytest

from scheduler.scheduled_message import with_delay
from storage.formats import parts, properties
from storage.identifiers import Identifiers, Random
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId, TransactionBits, resend
from storage.store import Snapshot
from tests.support.builders import message
from tests.support.check_pass import check_pass, everything, half_of, op_of
from tests.support.clock import ManualClock
from txn import half_message
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import HALF_QUEUE, HELD_QUEUE, OP_QUEUE, CheckAnswer, read_op
from txn.options import TransactionOptions
from txn.states import Resolver, TxnEvent, TxnState
from txn.table import TransactionTable
from txn.transaction import Transaction, TxnMessage

REAL_QUEUE = QueueId("orders", 2)
EVERYTHING = {"max_messages": 1_000, "max_bytes": 1 << 20}


class Broker:
    """Writes into a store what a broker writes."""

    def __init__(self, store: MemoryMessageStore) -> None:
        self.store = store

    @classmethod
    async def on_new_store(cls) -> "Broker":
        store = MemoryMessageStore(ManualClock())
        await store.create_topic("orders", queue_count=4)
        for queue in half_message.SYSTEM_QUEUES:
            await store.create_topic(queue.topic, queue_count=1)
        return cls(store)

    async def half(
        self,
        transaction_id: str,
        *,
        checks: int = 0,
        queue: QueueId = HALF_QUEUE,
        transaction: TransactionBits = TransactionBits.NONE,
    ) -> int:
        system = {
            properties.REAL_TOPIC: REAL_QUEUE.topic,
            properties.REAL_QUEUE: str(REAL_QUEUE.number),
            properties.PRODUCER_GROUP: "shop",
            properties.TRANSACTION_MARK: "true",
            properties.TRANSACTION_ID: transaction_id,
        }
        if checks:
            system["TRANSACTION_CHECK_TIMES"] = str(checks)
        return await self._append(
            message(
                b"paid",
                queue=queue,
                message_id=transaction_id,
                system=system,
                transaction=transaction,
            )
        )

    async def put_back(self, *half_offsets: int) -> None:
        """Write these halves again, as at a check."""
        for half_offset in half_offsets:
            (half,) = await self.store.read(HALF_QUEUE, half_offset, max_messages=1, max_bytes=1)
            checks = int(half.system.get(properties.CHECK_TIMES, "0")) + 1
            system = {**half.system, properties.CHECK_TIMES: str(checks)}
            await self._append(resend(half, HALF_QUEUE, system))

    async def discard(self, transaction_id: str) -> None:
        await self.half(transaction_id, checks=15, queue=HELD_QUEUE)

    async def final(self, transaction_id: str) -> int:
        return await self._append(
            message(
                b"paid",
                queue=REAL_QUEUE,
                message_id=transaction_id,
                transaction=TransactionBits.COMMIT,
            )
        )

    async def op(self, body: str) -> None:
        await self._append(
            Message(queue=OP_QUEUE, message_id="", body=body.encode(), born_at_ms=7, tag="d")
        )

    async def _append(self, given: Message) -> int:
        (appended,) = await self.store.append([given])
        return appended.queue_offset


async def started(
    store: MemoryMessageStore, options: TransactionOptions | None = None
) -> TransactionCoordinator:
    clock = ManualClock()
    coordinator = TransactionCoordinator(
        store, clock, Identifiers(clock, Random(1)), options or TransactionOptions()
    )
    await coordinator.start()
    return coordinator


async def asked_about_by_a_broker(store: MemoryMessageStore) -> set[str]:
    """The transactions that a broker which is given the store asks about."""
    halves = [half_of(message) async for message in everything(store, HALF_QUEUE)]
    ops = [op_of(message) async for message in everything(store, OP_QUEUE)]
    undecided = set(check_pass(halves, ops).undecided)
    return {half.transaction_id for half in halves if half.queue_offset in undecided}


NAMED = {
    "no op": None,
    "an op of the first half": "1,",
    "an op of a copy": "3,",
    "an op as in RocketMQ 4": "1",
}


@pytest.mark.parametrize("discarded", [False, True], ids=["", "discarded"])
@pytest.mark.parametrize("finals", [0, 1, 2], ids=["no final", "a final", "two finals"])
@pytest.mark.parametrize("op", NAMED.values(), ids=NAMED)
async def test_a_final_is_a_commit_an_op_alone_a_rollback_a_discarded_half_is_held(
    op, finals, discarded
):
    broker = await Broker.on_new_store()
    await broker.half("another")
    await broker.half("the one")
    await broker.half("another", checks=1)
    await broker.half("the one", checks=1)
    await broker.final("somebody else's")
    for _ in range(finals):
        await broker.final("the one")
    if op is not None:
        await broker.op(op)
    if discarded:
        await broker.discard("the one")

    for _ in range(2):  # a second start tells the same
        table = (await started(broker.store)).table

    transaction = table.get("the one")
    if finals:
        assert transaction.state is TxnState.COMMITTED
        assert transaction.messages[0].final_offset == 1 or transaction.messages[0].final_from == 1
    elif op is not None:
        assert transaction.state is TxnState.ROLLED_BACK
    else:
        assert transaction.state is (TxnState.HELD if discarded else TxnState.PREPARED)
    assert table.get("another").state is TxnState.PREPARED
    assert len(table) == 2
    assert table.held_count == (transaction.state is TxnState.HELD)
    ops = await broker.store.read(OP_QUEUE, 0, **EVERYTHING)
    ours = [read_op(one) for one in ops if read_op(one).state is not None]
    if transaction.state.is_decided:
        (ours_once,) = ours  # whatever op of the broker's there is, it does not name both halves
        assert (ours_once.half_offsets, ours_once.state) == ((1, 3), transaction.state)
        assert await asked_about_by_a_broker(broker.store) == {"another"}
    else:
        assert ours == []


async def test_the_decision_about_a_half_that_a_broker_has_put_back_names_every_copy_of_it():
    broker = await Broker.on_new_store()
    await broker.half("the one")
    coordinator = await started(broker.store)
    await coordinator.save_snapshot()  # some copies are known from it, others are replayed
    for checks in (1, 2):
        await broker.half("the one", checks=checks)
    coordinator = await started(broker.store)
    await coordinator.save_snapshot()
    await broker.half("the one", checks=3)
    coordinator = await started(broker.store)

    await coordinator.rollback("the one")

    (op,) = await broker.store.read(OP_QUEUE, 0, **EVERYTHING)
    assert op.body == b"0,1,2,3,"
    assert await asked_about_by_a_broker(broker.store) == set()


async def test_every_copy_of_each_half_of_a_transaction_of_ours_is_named():
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    ids = []
    for name in ("a", "b"):
        given = [
            message(b"x", queue=REAL_QUEUE, message_id=f"{name} {number}") for number in range(2)
        ]
        begun = await coordinator.begin(Begin(given, "shop", CheckbackPolicy()))
        ids.append(begun.transaction.transaction_id)
    await broker.put_back(0, 2, 1, 3, 4)

    coordinator = await started(broker.store)
    await coordinator.rollback(ids[0])

    (op,) = await broker.store.read(OP_QUEUE, 0, **EVERYTHING)
    assert op.body == b"0,1,4,6,8,"
    assert await asked_about_by_a_broker(broker.store) == {ids[1]}
    assert (await started(broker.store)).table.get(ids[1]).state is TxnState.PREPARED


async def test_a_broker_goes_on_at_the_first_half_that_is_the_newest_copy_of_an_undecided_one():
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    given = [message(b"x", queue=REAL_QUEUE, message_id=f"ours {number}") for number in range(2)]
    await coordinator.begin(Begin(given, "shop", CheckbackPolicy()))
    for name in ("decided", "one", "another"):
        await broker.half(name)
    assert await coordinator.asking_from() is None, "there is no copy"
    # Killed after 3, so its second run asks about 0 to 3 again: 5 to 8, then 9 to 12, are copies.
    await broker.put_back(0, 1, 2, 3, 0, 1, 2, 3, 4, 5)
    await broker.half("last")

    coordinator = await started(broker.store)
    await coordinator.rollback("decided")

    halves = [half_of(one) async for one in everything(broker.store, HALF_QUEUE)]
    ops = [op_of(one) async for one in everything(broker.store, OP_QUEUE)]
    first = await coordinator.asking_from()
    assert first == 10  # 9 is a copy of "ours 0", as 14 is; 10 is the newest of "ours 1"
    undecided = check_pass(halves, ops, half_offset=first).undecided
    assert undecided == [10, 12, 13, 14, 15], "each once"


async def test_a_broker_goes_on_where_it_was_if_the_first_undecided_half_has_no_copy():
    broker = await Broker.on_new_store()
    for name in ("one", "another"):
        await broker.half(name)
    await broker.put_back(1)

    assert await (await started(broker.store)).asking_from() is None


@pytest.mark.parametrize("snapshot", ["none", "of this version", "of a version before"])
async def test_copies_that_a_decision_of_ours_does_not_name_are_named_at_the_next_start(snapshot):
    broker = await Broker.on_new_store()
    for _ in range(3):
        await broker.half("one")
        await broker.half("another")
    coordinator = await started(broker.store)
    await coordinator.save_snapshot()
    another = broker.store._snapshots["transactions"]
    transaction = coordinator.table.get("one")
    # As a version did that did not know the copies.
    transaction.former_halves = ()
    coordinator.table.get("another").former_halves = ()
    check = CheckAnswer(check_number=4, evidence={"row": "12"})
    op = coordinator._journal.op(transaction, TxnState.ROLLED_BACK, Resolver.CHECK, answer=check)
    await coordinator._journal.decide(transaction, op)
    if snapshot == "none":
        broker.store._snapshots.clear()
    elif snapshot == "of this version":
        broker.store._snapshots["transactions"] = another
    else:
        await coordinator.save_snapshot()
        kept = broker.store._snapshots["transactions"]
        (_, _, *slices) = kept.pieces
        broker.store._snapshots["transactions"] = Snapshot(
            [parts.head(len(slices)), *slices], kept.positions
        )

    for _ in range(2):  # once
        coordinator = await started(broker.store)
        await coordinator.save_snapshot()

    ops = await broker.store.read(OP_QUEUE, 0, **EVERYTHING)
    assert [one.body for one in ops] == [b"0,", b"0,2,4,"]
    assert read_op(ops[1]) == read_op(ops[0])._replace(half_offsets=(0, 2, 4))
    assert await asked_about_by_a_broker(broker.store) == {"another"}
    assert coordinator.table.get("one").state is TxnState.ROLLED_BACK
    await coordinator.commit("another")
    assert await asked_about_by_a_broker(broker.store) == set()


async def test_a_brokers_decided_transaction_with_copies_is_found_once_memory_has_forgotten_it():
    broker = await Broker.on_new_store()
    for checks in range(3):
        await broker.half("one", checks=checks)
    await broker.final("one")
    await broker.op("0,")
    await broker.half("later")
    await broker.op("3,")
    coordinator = await started(broker.store, TransactionOptions(decided_kept=1))
    assert coordinator.table.get("one") is None

    found = await coordinator.get("one")

    assert (found.state, len(found.messages)) == (TxnState.COMMITTED, 1)
    assert found.messages[0].final_offset == 0


async def test_what_a_broker_committed_into_the_half_topic_is_undecided_and_can_be_committed():
    """So ends the put-back of a half that has a delay of RocketMQ's; no consumer has got it."""
    broker = await Broker.on_new_store()
    await broker.half("one")
    await broker.half("one", checks=1)
    await broker.op("1,")
    await broker.half("one", checks=1, transaction=TransactionBits.COMMIT)

    coordinator = await started(broker.store)
    assert coordinator.table.get("one").state is TxnState.PREPARED
    await coordinator.commit("one")

    assert (await coordinator.get("one")).messages[0].final_offset == 0
    assert await asked_about_by_a_broker(broker.store) == set()


async def test_an_op_of_several_halves_is_a_commit_of_some_and_a_rollback_of_others():
    broker = await Broker.on_new_store()
    for name in ("a", "b", "c", "d"):
        await broker.half(name)
    await broker.final("c")
    await broker.final("a")
    await broker.op("0,1,2,")

    table = (await started(broker.store)).table

    states = {transaction.transaction_id: transaction.state for transaction in table}
    assert states == {
        "a": TxnState.COMMITTED,
        "b": TxnState.ROLLED_BACK,
        "c": TxnState.COMMITTED,
        "d": TxnState.PREPARED,
    }
    assert table.get("a").messages[0].final_offset == 1
    assert table.get("c").messages[0].final_offset == 0


async def test_a_message_that_only_has_the_id_of_a_pending_one_is_no_final():
    broker = await Broker.on_new_store()
    await broker.half("the one")
    await broker.store.append([message(b"paid", queue=REAL_QUEUE, message_id="the one")])

    table = (await started(broker.store)).table

    assert table.get("the one").state is TxnState.PREPARED


async def test_a_pending_half_of_a_topic_that_has_no_messages_yet_is_pending():
    store = MemoryMessageStore(ManualClock())
    for queue in half_message.SYSTEM_QUEUES:
        await store.create_topic(queue.topic, queue_count=1)
    await Broker(store).half("the one")

    table = (await started(store)).table

    assert table.get("the one").state is TxnState.PREPARED


async def test_a_discarded_transaction_that_was_resumed_is_pending_after_the_next_start_with_and_without_a_snapshot():
    broker = await Broker.on_new_store()
    await broker.half("the one")
    await broker.discard("the one")
    coordinator = await started(broker.store)
    assert coordinator.table.get("the one").hold_reason == "answers_exhausted"

    await coordinator.resume("the one")

    without = (await started(broker.store)).table.get("the one")
    await coordinator.save_snapshot()
    after = (await started(broker.store)).table.get("the one")
    for transaction in (without, after):
        assert (transaction.state, transaction.revision) == (TxnState.PREPARED, 3)


async def test_what_a_broker_decides_after_a_snapshot_was_kept_is_found():
    broker = await Broker.on_new_store()
    for name in ("committed", "rolled back", "discarded", "pending", "committed without an op"):
        await broker.half(name)
    coordinator = await started(broker.store)
    outcome = await coordinator.begin(
        Begin([message(b"x", queue=REAL_QUEUE)], "shop", CheckbackPolicy())
    )
    await coordinator.save_snapshot()

    await broker.final("committed")
    await broker.op("0,1,")
    await broker.half("pending", checks=1)
    await broker.discard("discarded")
    await broker.half("committed without an op", checks=1)
    await broker.final("committed without an op")

    table = (await started(broker.store)).table
    states = {transaction.transaction_id: transaction.state for transaction in table}
    assert states == {
        "committed": TxnState.COMMITTED,
        "rolled back": TxnState.ROLLED_BACK,
        "discarded": TxnState.HELD,
        "pending": TxnState.PREPARED,
        "committed without an op": TxnState.COMMITTED,
        outcome.transaction.transaction_id: TxnState.PREPARED,
    }


async def test_a_transaction_of_ours_that_a_broker_decided_meanwhile_is_decided():
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    ids = []
    for name in ("first", "second", "third"):
        given = [
            message(b"x", queue=REAL_QUEUE, message_id=f"{name} {number}") for number in range(2)
        ]
        ids.append(
            (
                await coordinator.begin(Begin(given, "shop", CheckbackPolicy()))
            ).transaction.transaction_id
        )

    # A broker takes each half for a transaction of its own: it has committed both of the first,
    # rolled back both of the second, and come to one of the third only.
    for message_id in ("first 0", "first 1", "third 0"):
        await broker.final(message_id)
    await broker.op("0,1,2,3,4,")

    table = (await started(broker.store)).table
    states = [table.get(transaction_id).state for transaction_id in ids]
    assert states == [TxnState.COMMITTED, TxnState.ROLLED_BACK, TxnState.PREPARED]
    assert [one.final_offset for one in table.get(ids[0]).messages] == [0, 1]


async def test_a_delayed_message_that_a_broker_committed_has_no_schedule():
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    delayed = with_delay(message(b"x", queue=REAL_QUEUE, message_id="msg_1"), delay_ms=5_000)
    begun = await coordinator.begin(Begin([delayed], "shop", CheckbackPolicy()))
    transaction_id = begun.transaction.transaction_id
    assert [one.schedule_id for one in begun.transaction.messages] == ["sch_1"]

    await broker.final("msg_1")
    await broker.op("0,")

    found = (await started(broker.store)).table.get(transaction_id)
    assert [(one.final_offset, one.schedule_id) for one in found.messages] == [(0, None)]


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_what_a_broker_committed_without_its_delay_has_no_schedule_at_later_starts(
    is_forgotten,
):
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    delayed = with_delay(message(b"x", queue=REAL_QUEUE, message_id="msg_1"), delay_ms=5_000)
    begun = await coordinator.begin(Begin([delayed], "shop", CheckbackPolicy()))
    transaction_id = begun.transaction.transaction_id
    await broker.put_back(0)  # so that an op of ours names both halves
    await broker.final("msg_1")
    await broker.op("0,")
    await started(broker.store)
    await broker.half("later")
    await broker.op("2,")

    kept = TransactionOptions(decided_kept=1) if is_forgotten else None
    coordinator = await started(broker.store, kept)

    assert (coordinator.table.get(transaction_id) is None) == is_forgotten
    found = await coordinator.get(transaction_id)
    assert [(one.final_offset, one.schedule_id) for one in found.messages] == [(0, None)]


async def test_our_own_mark_of_a_held_transaction_adds_nothing_to_what_the_check_queue_says():
    broker = await Broker.on_new_store()
    coordinator = await started(broker.store)
    policy = CheckbackPolicy(first_after_ms=0, max_answers=1)
    begun = await coordinator.begin(Begin([message(b"x", queue=REAL_QUEUE)], "shop", policy))
    (check,) = await coordinator.receive_checks("shop", max_checks=1, lease_ms=1_000, wait_ms=0)

    held = await coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)

    assert (held.state, held.answers, held.checks_answered) == (TxnState.HELD, 1, 1)
    assert (await started(broker.store)).table.get(begun.transaction.transaction_id) == held


def test_a_half_that_is_replayed_is_no_copy_of_itself():
    """Else every start would look for the finals of transactions that no broker has touched."""
    table = TransactionTable(decided_kept=10)
    transaction = Transaction(
        "txn",
        "shop",
        (TxnMessage("msg", REAL_QUEUE, None, half_offset=5),),
        CheckbackPolicy(),
        0,
        0,
    )
    table.add(transaction)

    assert not table.add_copy(transaction, 5)
    assert table.add_copy(transaction, 6)


def test_copies_of_a_broker_stay_named_when_retention_puts_a_transaction_back():
    table = TransactionTable(decided_kept=10)
    transaction = Transaction(
        "txn",
        "shop",
        (TxnMessage("msg", REAL_QUEUE, None, half_offset=5),),
        CheckbackPolicy(),
        0,
        0,
    )
    table.add(transaction)
    table.add_copy(transaction, 8)

    table.move(transaction, [20], transaction.so_far, first_kept=0)
    assert transaction.half_offsets == {5, 8, 20}
    table.move(transaction, [30], transaction.so_far, first_kept=8)

    assert transaction.half_offsets == {8, 20, 30}
