"""Room that is kept for what settles something: decisions, checks and acknowledgements are taken
when nothing else is.
"""

import asyncio
import errno
from pathlib import PurePath
from typing import Any

import pytest

from storage.errors import Backpressure, StorageFull
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.simulation import World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnEvent, TxnState

ORDERS = QueueId("orders", 0)
SOON = CheckbackPolicy(first_after_ms=10, interval_ms=10, max_answers=100)
OPTIONS = {
    "segment_bytes": 65_536,
    "prepare_ahead_bytes": 8_192,
    "index_slots": 64,
    "index_file_entries": 200,
}


class FullDisk:
    """A world whose disk has no space for another segment while `is_full`."""

    def __init__(self) -> None:
        self.is_full = False
        self.world = World(SimulatedDisk(), 1)
        self.world.vfs = FaultyVfs(self.world.disk, self._plan)

    def _plan(self, call: str, path: PurePath) -> None:
        if self.is_full and call == "allocate":
            raise OSError(errno.ENOSPC, "simulated")

    async def open(self, **given: object) -> tuple[LocalMessageStore, TransactionCoordinator]:
        store = await self.world.open_store(LocalStoreOptions(**{**OPTIONS, **given}))
        await store.create_topic("orders", queue_count=1)
        coordinator = TransactionCoordinator(
            store, self.world.clock, self.world.identifiers, TransactionOptions()
        )
        await coordinator.start()
        await asyncio.sleep(0.5)  # what is made ahead is made
        return store, coordinator


async def fill(store: LocalMessageStore, **how: Any) -> int:
    """Send until nothing is taken, first much, then little; how many were."""
    sent = 0
    for size in (3_000, 1):
        while True:
            try:
                await store.append([message(b"x" * size)], **how)
            except StorageFull:
                break
            sent += 1
    return sent


async def begin(coordinator: TransactionCoordinator, name: str, size: int = 10) -> str:
    request = Begin(
        [message(b"b" * size, queue=ORDERS, message_id=f"m-{name}")],
        "shop",
        SOON,
        transaction_id=name,
    )
    return (await coordinator.begin(request)).transaction.transaction_id


def test_a_full_queue_of_waiting_appends_refuses_sends_and_takes_what_settles_something():
    async def main():
        store, coordinator = await disk.open(max_queued_bytes=3_000, reserved_queue_bytes=5_000)
        await begin(coordinator, "open")
        sends = [asyncio.ensure_future(store.append([message(b"x" * 900)])) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(Backpressure):
            await begin(coordinator, "late")

        outcome = await coordinator.commit("open")

        assert outcome.transaction.state is TxnState.COMMITTED
        answers = await asyncio.gather(*sends, return_exceptions=True)
        assert any(isinstance(answer, Backpressure) for answer in answers)

    disk = FullDisk()
    with disk.world as world:
        world.call(main())


def test_on_a_full_disk_begins_are_refused_and_every_open_transaction_can_be_decided():
    disk = FullDisk()

    async def main():
        store, coordinator = await disk.open()
        # Together their messages take more than the reserve that is there anyway: it grows with
        # what is undecided.
        names = [await begin(coordinator, f"open-{number}", size=4_000) for number in range(25)]
        await asyncio.sleep(0.5)
        disk.is_full = True
        sent = await fill(store)
        with pytest.raises(StorageFull):
            await begin(coordinator, "late")

        for name in names[:20]:
            assert (await coordinator.commit(name)).transaction.state is TxnState.COMMITTED
        for name in names[20:23]:
            assert (await coordinator.rollback(name)).transaction.state is TxnState.ROLLED_BACK
        await coordinator.run_once(disk.world.clock.wall_ms())
        checks = await coordinator.receive_checks("shop", max_checks=9, lease_ms=1_000, wait_ms=0)
        for check in checks:
            await coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
        await store.commit_offset("group", ORDERS, sent)

        assert [check.transaction.transaction_id for check in checks] == names[23:]
        assert (await store.offsets(ORDERS)).end == sent + 20
        sent += await fill(store)  # what is not owed any more is room again
        with pytest.raises(StorageFull):
            await store.append([message()])

        disk.is_full = False
        await asyncio.sleep(2)

        await begin(coordinator, "after")
        assert (await store.append([message()]))[0].queue_offset == sent + 20
        assert disk.world.failures == []

    with disk.world as world:
        world.call(main())


def test_a_reserve_that_is_used_up_refuses_and_what_was_refused_stays_as_it_was():
    disk = FullDisk()

    async def main():
        store, coordinator = await disk.open()
        await begin(coordinator, "open")
        disk.is_full = True
        await fill(store)
        await fill(store, durability=Durability.SYNCED, from_reserve=True)

        with pytest.raises(StorageFull):
            await coordinator.commit("open")
        assert (await coordinator.get("open")).state is TxnState.PREPARED

        disk.is_full = False
        await asyncio.sleep(2)
        assert (await coordinator.commit("open")).transaction.state is TxnState.COMMITTED

    with disk.world as world:
        world.call(main())
