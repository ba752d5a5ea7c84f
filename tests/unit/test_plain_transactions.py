"""Plain transactions write their messages themselves; what they write is what the ordinary way
writes.
"""

import asyncio
from random import Random

import msgspec
import pytest

from storage.identifiers import Identifiers
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId, StoredMessage
from tests.support.clock import ManualClock
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import OP_QUEUE, read_op
from txn.options import TransactionOptions
from txn.plain import PlainBegin
from txn.states import TxnState

ORDERS = QueueId("orders", 0)
BEFORE = PlainBegin("txn_0", "shop", ORDERS, "msg_0", "", None, b"body", 0)
TRANSACTION = PlainBegin("txn_1", "shop", ORDERS, "msg_1", "", None, b"body", 0)


async def op_of(state: TxnState, *, is_plain: bool) -> StoredMessage:
    """The op message of a transaction that was begun plainly, and decided in one of two ways; without
    empty properties, which mean the same as none.
    """
    clock = ManualClock()
    store = MemoryMessageStore(clock)
    await store.create_topic("orders", queue_count=1)
    # This message and BEFORE make that no offset in the op is 0.
    await store.append([Message(queue=ORDERS, message_id="msg_a", body=b"body", born_at_ms=0)])
    coordinator = TransactionCoordinator(
        store, clock, Identifiers(clock, Random(1)), TransactionOptions()
    )
    await coordinator.start()
    plain, done = coordinator.plain, asyncio.Event()
    plain.begin([BEFORE, TRANSACTION], CheckbackPolicy(), done=lambda _: done.set(), failed=print)
    await asyncio.wait_for(done.wait(), 2)
    done.clear()
    if is_plain:
        kept = plain.take("txn_1")
        assert kept is not None
        plain.decide([kept], state, done=lambda _: done.set(), failed=print)
        await asyncio.wait_for(done.wait(), 2)
    elif state is TxnState.COMMITTED:
        await coordinator.commit("txn_1")
    else:
        await coordinator.rollback("txn_1")
    (op,) = await store.read(OP_QUEUE, 0, max_messages=10, max_bytes=1 << 20)
    return msgspec.structs.replace(
        op, system={name: value for name, value in op.system.items() if value}
    )


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ROLLED_BACK])
async def test_the_op_of_a_plain_decision_is_the_one_that_the_ordinary_way_stores(state):
    plain, ordinary = await op_of(state, is_plain=True), await op_of(state, is_plain=False)

    assert read_op(plain).state is state
    assert plain == ordinary
