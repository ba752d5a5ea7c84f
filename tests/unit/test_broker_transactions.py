"""What a RocketMQ broker did with transactions, and what our service makes of it when it starts on
what was left.

A broker writes halves (again at each check), a final on commit, an op up to 3 s later that names
halves and not the direction, and moves a half that it gives up on.
"""

import pytest

from storage.formats import properties
from storage.identifiers import Identifiers, Random
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId, TransactionBits
from tests.support.builders import message
from tests.support.clock import ManualClock
from txn import half_message
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import HALF_QUEUE, HELD_QUEUE, OP_QUEUE
from txn.options import TransactionOptions
from txn.states import TxnEvent, TxnState
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
        self, transaction_id: str, *, checks: int = 0, queue: QueueId = HALF_QUEUE
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
            message(b"paid", queue=queue, message_id=transaction_id, system=system)
        )

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


async def started(store: MemoryMessageStore) -> TransactionCoordinator:
    clock = ManualClock()
    coordinator = TransactionCoordinator(
        store, clock, Identifiers(clock, Random(1)), TransactionOptions()
    )
    await coordinator.start()
    return coordinator


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
    assert len(ops) == (1 if op is not None or finals else 0), (
        "a final without an op gets one, once"
    )


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
