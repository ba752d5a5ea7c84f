"""One store whose oldest segments expire, and the power cut at one operation of that: is everything
that counts still there?

The store is made once. A case opens a copy of it, lets retention run while transactions are
decided, and cuts the power at its operation; then the store is opened again, sometimes without its
derived files, everything is decided, and everything is read.
"""

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from scheduler import scheduled_message
from scheduler.options import ScheduleOptions
from scheduler.schedule_service import ScheduleService
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId, StoredMessage
from tests.support.builders import message
from tests.support.check_pass import transactions_by_check_pass
from tests.support.simulation import ROOT, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnEvent, TxnState

ORDERS, EMAILS, RARE = QueueId("orders", 0), QueueId("emails", 0), QueueId("rare", 0)
POLICY = CheckbackPolicy(first_after_ms=10, interval_ms=10, max_answers=2)
OPEN = [f"open-{number}" for number in range(6)]
HELD = OPEN[4:]
RARE_MESSAGES = 3
DELAYED = ["late", "moved", "cancelled"]
DUE_MS = 3_600_000  # long after everything else here
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    prepare_ahead_bytes=4_096,
    queue_file_entries=8,
    index_slots=16,
    index_file_entries=30,
    queue_flush_interval_ms=5,
    snapshot_interval_ms=10,
    retention_ms=60_000,
    delete_hours=";".join(map(str, range(24))),
    delete_batch=3,
)


@dataclass
class Expected:
    """What the outside world knows."""

    # ids of messages that have not expired, in their order
    young: list[str] = field(default_factory=list)
    tried: dict[str, TxnState] = field(default_factory=dict)
    decided: dict[str, TxnState] = field(default_factory=dict)


def expired_store() -> tuple[SimulatedDisk, Expected, int]:
    """A store of which four segments may go, as a kill left it; what is in it, and when it was
    left.
    """
    expected = Expected()

    async def life(world: World) -> None:
        store, coordinator, schedules = await _open(world)
        for name in DELAYED:
            await store.append([_delayed(world, name)])
        await schedules.move("sch_moved", world.clock.wall_ms() + 2 * DUE_MS)
        await schedules.cancel("sch_cancelled")
        for _ in range(RARE_MESSAGES):
            await store.append([message(b"rare", queue=RARE)])
        await store.commit_offset("group", RARE, 2)
        for name in OPEN:
            await coordinator.begin(
                Begin(_messages(name), "shop", POLICY, name, idempotency_key=f"key-{name}")
            )
        while (await coordinator.get(HELD[0])).state is not TxnState.HELD:
            await asyncio.sleep(0.02)
            for check in await coordinator.receive_checks(
                "shop", max_checks=99, lease_ms=1, wait_ms=0
            ):
                if check.transaction.transaction_id in HELD:
                    await coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
        for number in range(60):
            await store.append([message(b"x" * 1_000, queue=ORDERS, message_id=f"old-{number}")])
        await asyncio.sleep(61)
        for number in range(20):
            expected.young.append(f"young-{number}")
            await store.append([message(b"y" * 1_000, queue=ORDERS, message_id=f"young-{number}")])
        await asyncio.sleep(0.1)

    with World(SimulatedDisk(), 0) as world:
        world.call(life(world))
        wall_ms = world.clock.wall_ms()
    return world.disk.after_kill(), expected, wall_ms


def count_operations(base: SimulatedDisk, expected: Expected, wall_ms: int, seed: int) -> int:
    """How many operations of the disk there are to cut at."""
    disk = deepcopy(base)
    with World(disk, seed, wall_ms=wall_ms) as world:
        before = world.call(_expiring(world, deepcopy(expected)))
        return disk.operations - before


def problems_of_cut(
    base: SimulatedDisk, expected: Expected, wall_ms: int, seed: int, cut: int
) -> list[str]:
    """What is wrong after the power went at this operation of the run."""
    disk, expected = deepcopy(base), deepcopy(expected)
    randomness = Random(seed * 1_000 + cut)
    with World(disk, seed, wall_ms=wall_ms) as world:
        world.run(_expiring(world, expected, cut=cut))
        wall_ms = world.clock.wall_ms()
    left = disk.after_power_cut(randomness) if randomness.random() < 0.7 else disk.after_kill()
    for life in range(2):
        if randomness.random() < 0.4:
            _lose_derived(left)
        problems: list[str] = []
        with World(left, seed + life, wall_ms=wall_ms + 1_000 * (life + 1)) as world:
            world.call(_verify(world, expected, problems))
        left = world.disk.after_kill()
        if problems:
            return [f"life {life + 1} after the cut: {problem}" for problem in problems]
    return []


async def _expiring(world: World, expected: Expected, *, cut: int | None = None) -> int:
    """Retention runs to its end while some are decided; how many operations there were before it
    began.
    """
    store, coordinator, schedules = await _open(world)
    before = world.disk.operations
    if cut is not None:
        world.disk.cut_after = before + cut

    async def decide(name: str, state: TxnState) -> None:
        await asyncio.sleep(world.randomness.random() * 0.05)
        expected.tried[name] = state
        if state is TxnState.COMMITTED:
            await coordinator.commit(name)
        else:
            await coordinator.rollback(name)
        expected.decided[name] = state

    async def expire() -> None:
        for _ in range(8):
            await store.expire(
                world.clock.wall_ms(),
                lambda first_kept: _put_back(coordinator, schedules, first_kept),
            )
            name = f"young-{len(expected.young)}"
            await store.append([message(b"z", queue=ORDERS, message_id=name)])
            expected.young.append(name)
            await asyncio.sleep(0.03)

    await asyncio.gather(
        expire(), decide(OPEN[0], TxnState.COMMITTED), decide(OPEN[1], TxnState.ROLLED_BACK)
    )
    assert (await store.offsets(ORDERS)).first > 0, "something was dropped"
    return before


async def _put_back(
    coordinator: TransactionCoordinator,
    schedules: ScheduleService,
    first_kept: Mapping[QueueId, int],
) -> None:
    await coordinator.put_back(first_kept)
    await schedules.put_back(first_kept)


async def _verify(world: World, expected: Expected, problems: list[str]) -> None:
    store, coordinator, schedules = await _open(world)

    def expect(holds: bool, text: str) -> None:
        if not holds:
            problems.append(text)

    by_rule = await transactions_by_check_pass(store)
    for name in OPEN:
        known = coordinator.table.get(name)
        if known is None:
            expect(name in expected.decided, f"{name} is not known any more")
            continue
        undecided = TxnState.HELD if name in HELD else TxnState.PREPARED
        allowed = (
            {expected.decided[name]}
            if name in expected.decided
            else {undecided, expected.tried.get(name, undecided)}
        )
        expect(known.state in allowed, f"{name} is {known.state}, not one of {allowed}")
        expect(
            (by_rule.get(name) is not None) == known.state.is_decided,
            f"{name} is {known.state}, not so by RocketMQ's rules",
        )
        if known.state.is_decided:
            expected.decided[name] = known.state
        elif name in HELD:
            expect(
                known.checks_answered == 2, f"{name} has forgotten answers: {known.checks_answered}"
            )
    for name in OPEN:
        if name not in expected.decided:
            expected.decided[name] = TxnState.COMMITTED
            await coordinator.commit(name)
    found = [*await _read_all(store, ORDERS), *await _read_all(store, EMAILS)]
    ids = [one.message_id for one in found]
    expect(len(ids) == len(set(ids)), f"something is there twice: {sorted(ids)}")
    for name, state in expected.decided.items():
        there = [f"{kind}-{name}" in ids for kind in "oe"]
        expect(
            there == [state is TxnState.COMMITTED] * 2, f"{name} was {state}, its messages: {there}"
        )
    young = [message_id for message_id in ids if message_id.startswith("young-")]
    expect(
        young[: len(expected.young)] == expected.young, f"of what had not expired there is {young}"
    )
    expect(await store.committed_offset("group", RARE) == 2, "the committed offset is gone")
    (place,) = await store.append([message(b"rare", queue=RARE)])
    expect(place.queue_offset >= RARE_MESSAGES, f"queue offset {place.queue_offset} was used twice")
    states = {
        name: (await schedules.get(f"sch_{name}")).state.value
        for name in DELAYED
        if name != "cancelled"
    }
    expect(set(states.values()) == {"scheduled"}, f"delayed messages are {states}")
    expect(schedules.counts.waiting == 2, f"{schedules.counts} wait")
    due = [(await schedules.get(f"sch_{name}")).due_ms for name in DELAYED[:2]]
    expect(DUE_MS <= due[1] - due[0] < DUE_MS + 1_000, f"they are due at {due}")
    await store.expire(
        world.clock.wall_ms(), lambda first_kept: _put_back(coordinator, schedules, first_kept)
    )


async def _read_all(store: LocalMessageStore, queue: QueueId) -> list[StoredMessage]:
    bounds = await store.offsets(queue)
    found: list[StoredMessage] = []
    while bounds.first + len(found) < bounds.end:
        found += await store.read(
            queue, bounds.first + len(found), max_messages=100, max_bytes=1 << 20
        )
    return found


async def _open(world: World) -> tuple[LocalMessageStore, TransactionCoordinator, ScheduleService]:
    store = await world.open_store(OPTIONS)
    for queue in (ORDERS, EMAILS, RARE):
        await store.create_topic(queue.topic, queue_count=1)
    coordinator = TransactionCoordinator(
        store, world.clock, world.identifiers, TransactionOptions()
    )
    schedules = ScheduleService(store, world.clock, ScheduleOptions())
    await coordinator.start()
    await schedules.start()
    return store, coordinator, schedules


def _messages(name: str) -> list[Message]:
    return [
        message(b"o" * 300, queue=ORDERS, message_id=f"o-{name}"),
        message(b"e" * 300, queue=EMAILS, message_id=f"e-{name}"),
    ]  # fmt: skip


def _delayed(world: World, name: str) -> Message:
    given = message(name.encode(), queue=ORDERS, message_id=name)
    return scheduled_message.delay(
        scheduled_message.with_delay(given, delay_ms=DUE_MS), world.clock.wall_ms()
    )


def _lose_derived(disk: SimulatedDisk) -> None:
    for folder in ("snapshots", "index", "timers"):
        for name in disk.list_directory(ROOT / folder):
            disk.remove(ROOT / folder / name)
