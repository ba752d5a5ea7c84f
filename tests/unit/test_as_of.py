"""How a transaction stood at a moment that is past, told from the log."""

import asyncio
import copy

import pytest

from storage.errors import UnknownTransaction
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message
from tests.support.lives import with_world
from tests.support.simulation import World
from txn.checkback_plan import CheckbackPolicy, HoldReason
from txn.coordinator import Begin, TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import Resolver, TxnEvent, TxnState
from txn.transaction import Transaction

ORDERS = QueueId("orders", 0)
POLICY = CheckbackPolicy(first_after_ms=100, interval_ms=200, max_answers=2)
STEP_MS = 1_000
OPTIONS = LocalStoreOptions(
    segment_bytes=65_536,
    prepare_ahead_bytes=16_384,
    queue_file_entries=20,
    index_slots=64,
    index_file_entries=200,
)
PREPARED, HELD, COMMITTED = TxnState.PREPARED, TxnState.HELD, TxnState.COMMITTED


async def coordinator(world: World, *, decided_kept: int = 10) -> TransactionCoordinator:
    store = await world.open_store(OPTIONS)
    await store.create_topic(ORDERS.topic, queue_count=1)
    transactions = TransactionCoordinator(
        store, world.clock, world.identifiers, TransactionOptions(decided_kept=decided_kept)
    )
    await transactions.start()
    return transactions


async def begin(transactions: TransactionCoordinator, message_id: str) -> str:
    request = Begin(
        [message(b"order", queue=ORDERS, message_id=message_id)],
        "shop",
        POLICY,
        business_key=message_id,
    )
    return (await transactions.begin(request)).transaction.transaction_id


async def live_through(
    world: World, transactions: TransactionCoordinator
) -> tuple[str, dict[int, Transaction]]:
    """A transaction with a life: two unknowns, held, resumed, unknown, committed by hand.

    What was known after each step.
    """
    transaction_id = await begin(transactions, "m1")
    known: dict[int, Transaction] = {}

    async def note() -> None:
        await asyncio.sleep(STEP_MS / 1000)
        known[world.clock.wall_ms()] = as_told(await transactions.get(transaction_id))
        await asyncio.sleep(STEP_MS / 1000)

    async def answer_unknown() -> None:
        (check,) = await transactions.receive_checks(
            "shop", max_checks=1, lease_ms=1_000, wait_ms=0
        )
        await transactions.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
        await note()

    await note()
    await answer_unknown()
    await answer_unknown()
    await transactions.resume(transaction_id)
    await note()
    await answer_unknown()
    await transactions.commit(transaction_id, by=Resolver.OPERATOR, reason="INC-311")
    await note()
    return transaction_id, known


def as_told(transaction: Transaction) -> Transaction:
    """A copy, without since when a check is open, which failed tries alone tell, and without what
    is in no answer.
    """
    told = copy.copy(transaction)
    told.asked_at_ms = None
    told.packed = b""
    told.look_at_ms = 0
    return told


async def assert_told_again(
    world: World, transactions: TransactionCoordinator, transaction_id: str, known
) -> None:
    states = [found.state for found in known.values()]
    assert states == [PREPARED, PREPARED, HELD, PREPARED, PREPARED, COMMITTED]
    for at_ms, expected in known.items():
        assert as_told(await transactions.as_of(transaction_id, at_ms)) == expected
    begun_ms = (await transactions.get(transaction_id)).prepared_at_ms
    assert (await transactions.as_of(transaction_id, begun_ms)).state is PREPARED
    with pytest.raises(UnknownTransaction, match="after that time"):
        await transactions.as_of(transaction_id, begun_ms - 1)
    with pytest.raises(UnknownTransaction, match="does not exist"):
        await transactions.as_of("nobody", begun_ms)


@with_world()
async def test_every_state_that_was_can_be_looked_at_again(world):
    transactions = await coordinator(world)
    transaction_id, known = await live_through(world, transactions)

    assert [(found.answers, found.hold_reason) for found in known.values()][2] == (
        2,
        HoldReason.ANSWERS_EXHAUSTED,
    )
    await assert_told_again(world, transactions, transaction_id, known)


@with_world()
async def test_the_past_of_a_transaction_that_memory_has_forgotten_is_told_too(world):
    transactions = await coordinator(world, decided_kept=1)
    transaction_id, known = await live_through(world, transactions)
    await transactions.commit(await begin(transactions, "m2"))
    assert transactions.table.get(transaction_id) is None

    await assert_told_again(world, transactions, transaction_id, known)


@with_world()
async def test_looking_at_the_past_leaves_the_present_alone(world):
    transactions = await coordinator(world)
    transaction_id, known = await live_through(world, transactions)

    await transactions.as_of(transaction_id, min(known))

    assert as_told(await transactions.get(transaction_id)) == known[max(known)]
    assert (await transactions.commit(transaction_id)).replayed
