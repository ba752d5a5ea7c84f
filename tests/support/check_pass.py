"""RocketMQ's check pass over what a store holds."""

from collections.abc import AsyncIterator

from storage.formats import check_pass
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore
from txn.half_message import HALF_QUEUE, OP_QUEUE


async def transactions_by_check_pass(store: MessageStore) -> dict[str, int | None]:
    """Each transaction in the half topic, and the op that decides it; None where none does."""
    halves = [check_pass.half_of(message) async for message in everything(store, HALF_QUEUE)]
    ops = [check_pass.op_of(message) async for message in everything(store, OP_QUEUE)]
    found = check_pass.check_pass(halves, ops)
    transactions = check_pass.decided_transactions(halves, found)
    # Our op names every half of its transaction, so half by half the answer is the same.
    assert {
        half.queue_offset for half in halves if transactions[half.transaction_id] is None
    } == set(found.undecided)
    return transactions


async def everything(store: MessageStore, queue: QueueId) -> AsyncIterator[StoredMessage]:
    """The messages of a queue, from the first one that it still has."""
    at = (await store.offsets(queue)).first
    while messages := await store.read(queue, at, max_messages=256, max_bytes=8 << 20):
        for message in messages:
            yield message
        at += len(messages)
