"""Functions of callers that fail with the answer to an append: their callers are answered all the
same, and a stop has nothing to wait for.
"""

import asyncio
from collections.abc import Callable

import pytest

from delivery.leases.events import Acked
from delivery.leases.journal import LeaseJournal
from storage.formats.row import rows_of
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.memory import MemoryMessageStore
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.clock import ManualClock
from tests.support.delivery import GROUP, with_house
from tests.support.lives import with_world
from tests.support.simulation import SlowSync, World
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.plain import PlainBegin
from txn.states import TxnState

ORDERS = QueueId("orders", 0)
TRANSACTION = PlainBegin("txn_1", "shop", ORDERS, "msg_1", "", None, b"body", 0)


def fail(_: object = None) -> None:
    raise ValueError("of the caller")


async def opened(world: World) -> LocalMessageStore:
    store = await world.open_store(LocalStoreOptions(segment_bytes=1 << 20))
    await store.create_topic("orders", queue_count=1)
    await asyncio.sleep(0.5)
    return store


async def answered(world: World, begin: Callable[[Callable], None], *, is_slow: bool) -> list[str]:
    """What the caller gets; `is_slow`: behind a sync that takes longer than an append waits."""
    errors: list[Exception] = []
    slow = SlowSync(world)
    slow.is_stuck = is_slow
    begin(errors.append)
    await asyncio.sleep(6 if is_slow else 0)
    assert errors == []
    slow.release()
    await asyncio.sleep(0.5)
    return [str(error) for error in errors]


@pytest.mark.parametrize("is_slow", [False, True])
@with_world()
async def test_a_change_of_leases_whose_answer_fails_is_over(world, is_slow):
    journal = LeaseJournal(await opened(world), world.clock, has_group=lambda _: True)
    await journal.start()
    event = Acked(group="billing", runs=[])

    def write(failed: Callable) -> None:
        journal.write([event], Durability.SYNCED, done=fail, failed=failed, applies=False)

    assert await answered(world, write, is_slow=is_slow) == ["of the caller"]
    await asyncio.wait_for(journal.changes.drain(), 1)


@pytest.mark.parametrize("is_slow", [False, True])
@with_world()
async def test_a_transaction_whose_answer_fails_is_free_for_others(world, is_slow):
    store = await opened(world)
    coordinator = TransactionCoordinator(
        store, world.clock, world.identifiers, TransactionOptions()
    )
    await coordinator.start()
    plain = coordinator.plain

    def begin(failed: Callable) -> None:
        plain.begin([TRANSACTION], CheckbackPolicy(), done=fail, failed=failed)

    def commit(failed: Callable) -> None:
        taken = plain.take("txn_1")
        plain.decide([taken], TxnState.COMMITTED, done=fail, failed=failed)

    assert await answered(world, begin, is_slow=False) == ["of the caller"]
    assert await answered(world, commit, is_slow=is_slow) == ["of the caller"]
    await asyncio.wait_for(coordinator.drain(), 1)
    await asyncio.wait_for(coordinator.commit("txn_1"), 1)
    assert (await coordinator.get("txn_1")).state is TxnState.COMMITTED


async def test_the_reference_engine_reports_an_answer_that_fails_to_its_caller_too():
    store, errors = MemoryMessageStore(ManualClock()), []
    await store.create_topic("orders", queue_count=1)
    store.append_rows(rows_of([message()]), durability=None, done=fail, failed=errors.append)

    await asyncio.sleep(0)

    assert [str(error) for error in errors] == ["of the caller"]


@with_house()
async def test_an_acknowledgement_whose_answer_fails_is_reported_and_counts(house):
    await house.send("first")
    (leased,) = await house.receive()
    errors: list[Exception] = []
    held = house.delivery.take_ack(GROUP, [leased.handle])

    house.delivery.settle([held], done=fail, failed=errors.append)
    await house.sleep(100)

    assert [str(error) for error in errors] == ["of the caller"]
    await house.pass_time(2_000)
    assert await house.receive() == []
