"""Which half messages are decided, found as RocketMQ's check service finds it: from the half topic
and the op topic alone.

An op message names the half messages it decides by their queue offsets; what no op names is to be
asked about. A broker that asks stores the half again (putBack), and its op may name only one of the
copies: therefore a transaction is decided as soon as one of its halves is. The tables of the service
are compared with this: it needs no snapshot, no index and no property of EscrowMQ.

Source: RocketMQ TransactionalMessageServiceImpl#check, #fillOpRemoveMap, #checkPrepareQueueOffset.
"""

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from storage.formats import properties
from storage.formats.op_message import OP_TAG, half_offsets
from storage.message import QueueId, StoredMessage
from storage.store import MessageStore
from txn.half_message import HALF_QUEUE, OP_QUEUE


class Half(NamedTuple):
    """One message of the half topic, as far as the pass looks at it."""

    queue_offset: int
    transaction_id: str
    # queue offset of the half that a broker stored again while it was too young to ask about
    copy_of: int | None = None


class OpMessage(NamedTuple):
    """One message of the op topic."""

    queue_offset: int
    half_offsets: tuple[int, ...]


class CheckPass(NamedTuple):
    """Result of a pass, by queue offsets, and the offsets where the next one may begin."""

    decided: dict[int, int]  # half -> the op that decides it
    undecided: list[int]
    next_half_offset: int
    next_op_offset: int


def half_of(message: StoredMessage) -> Half:
    copy_of = message.system.get(properties.PREPARED_QUEUE_OFFSET, "")
    transaction_id = message.system.get(properties.TRANSACTION_ID) or message.message_id
    return Half(message.queue_offset, transaction_id, int(copy_of) if _is_number(copy_of) else None)


def op_of(message: StoredMessage) -> OpMessage:
    """One without the tag decides nothing."""
    return OpMessage(
        message.queue_offset, half_offsets(message.body) if message.tag == OP_TAG else ()
    )


def check_pass(
    halves: Iterable[Half], ops: Iterable[OpMessage], *, half_offset: int = 0, op_offset: int = 0
) -> CheckPass:
    """RocketMQ's rule, half by half, over both queues to their ends.

    `half_offset` and `op_offset` are what the group CID_RMQ_SYS_TRANS has committed: halves and ops
    before them are done, and an op that names an older half says nothing about it any more.
    """
    named: dict[int, int] = {}
    last_half: dict[int, int] = {}  # op -> the newest half it names
    next_op_offset, next_half_offset = op_offset, half_offset
    for op in ops:
        if op.queue_offset >= op_offset:
            next_op_offset = max(next_op_offset, op.queue_offset + 1)
            counted = [number for number in op.half_offsets if number >= half_offset]
            last_half[op.queue_offset] = max(counted, default=-1)
            for number in counted:
                named.setdefault(number, op.queue_offset)
    decided: dict[int, int] = {}
    undecided: list[int] = []
    for half in halves:
        if half.queue_offset >= half_offset:
            next_half_offset = max(next_half_offset, half.queue_offset + 1)
            by_op = named.get(half.queue_offset)
            if by_op is None and half.copy_of is not None:
                by_op = named.get(half.copy_of)
            if by_op is None:
                undecided.append(half.queue_offset)
            else:
                decided[half.queue_offset] = by_op
    # What lies before the first undecided half is done, and the ops that name nothing else.
    next_half_offset = min(undecided, default=next_half_offset)
    waiting = [offset for offset, newest in last_half.items() if newest >= next_half_offset]
    return CheckPass(decided, undecided, next_half_offset, min(waiting, default=next_op_offset))


def decided_transactions(halves: Iterable[Half], found: CheckPass) -> dict[str, int | None]:
    """Each transaction of these halves and the op that decides it; None where none does."""
    transactions: dict[str, int | None] = {}
    for half in halves:
        op = found.decided.get(half.queue_offset)
        if transactions.get(half.transaction_id) is None:
            transactions[half.transaction_id] = op
    return transactions


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


async def transactions_by_check_pass(store: MessageStore) -> dict[str, int | None]:
    """Each transaction in the half topic, and the op that decides it; None where none does."""
    halves = [half_of(message) async for message in everything(store, HALF_QUEUE)]
    ops = [op_of(message) async for message in everything(store, OP_QUEUE)]
    found = check_pass(halves, ops)
    transactions = decided_transactions(halves, found)
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
