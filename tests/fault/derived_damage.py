"""One small store with something of everything, and each derived file of it damaged in turn: every
answer must stay the same.

The store is closed in order, so that a start has no reason to read the log again. A life opens it
with damaged files and asks for everything. Its answers, and those of the next life on what it left,
are compared with the answers of a sound store.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from scheduler import scheduled_message
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import Wanted
from storage.files.simulated import SimulatedDisk
from storage.formats import queue_entry
from storage.formats.record_block import RecordBlock
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.delivery import GROUP, House, rules
from tests.support.simulation import ROOT, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.half_message import HALF_QUEUE, OP_QUEUE
from txn.options import TransactionOptions

OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 16,
    prepare_ahead_bytes=8_192,
    queue_file_entries=8,
    index_slots=8,
    index_file_entries=8,
)
ORDERS = [QueueId("orders", 0), QueueId("orders", 1)]
BILLS = QueueId("bills", 0)
TAGS = ("paid", "open", "none such")
KEYS = ("shop", "order-3", "none such")
WALL_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
JOURNALS = ("rmq_sys_escrowmq_leases", "rmq_sys_escrowmq_schedules")
DERIVED = ("consumequeue", "index", "snapshots", "timers", "config", "checkpoint")

Files = Mapping[PurePath, bytes]
Answers = dict[str, Any]


def sound_store() -> Files:
    """The files of it."""
    disk = SimulatedDisk()
    with World(disk, 1, wall_ms=WALL_MS) as world:
        world.call(_make(world))
    return {
        path / name: bytes(inode.live)
        for path, folder in disk._folders.items()
        for name, inode in folder.live.items()
    }


def derived_files(files: Files) -> Iterator[PurePath]:
    for path in sorted(files):
        if path.relative_to(ROOT).parts[0] in DERIVED:
            yield path


def disk_of(files: Files) -> SimulatedDisk:
    disk = SimulatedDisk()
    for path, data in files.items():
        disk.make_directory(path.parent)
        file = disk.open(path, create=True)
        file.write(0, data)
        file.sync()
        file.close()
        disk.sync_directory(path.parent)
    return disk


def answers(files: Files, unreadable: Iterable[PurePath] = ()) -> list[Answers]:
    """Of a life on these files, and of one after it; `unreadable`: those that the disk does not
    give back.
    """
    disk = disk_of(files)
    for path in unreadable:
        disk.fail_reads(path, 0, len(files[path]))
    found = []
    for number, ask in enumerate((_ask, _ask_again)):
        with World(disk, 10 + number, wall_ms=WALL_MS + HOUR_MS * number) as world:
            found.append(world.call(ask(world)))
        disk = world.disk.after_kill()
    return found


def differences(sound: list[Answers], found: list[Answers]) -> list[str]:
    return [
        f"life {life}, {name}: {one[name]} became {other.get(name)}"[:500]
        for life, (one, other) in enumerate(zip(sound, found, strict=True))
        for name in one
        if one[name] != other.get(name)
    ]


def flipped(files: Files, bits: Iterable[tuple[PurePath, int, int]]) -> Files:
    """With these bits turned over: (file, byte, bit)."""
    changed = dict(files)
    for path, at, bit in bits:
        data = bytearray(changed[path])
        data[at] ^= 1 << bit
        changed[path] = bytes(data)
    return changed


async def _house(world: World) -> tuple[House, TransactionCoordinator]:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=2)
    await store.create_topic("bills", queue_count=1)
    house = House(world, store, rules(lease_ms=60_000))
    await house.start(queues=2)
    coordinator = TransactionCoordinator(
        store,
        world.clock,
        world.identifiers,
        TransactionOptions(decided_kept=1),
        delay=scheduled_message.delay,
    )
    await coordinator.start()
    return house, coordinator


async def _make(world: World) -> None:
    house, coordinator = await _house(world)
    store = house.store
    for number in range(12):
        tag, key = TAGS[number % 2], "shop" if number % 4 else f"order-{number % 6}"
        for queue in (*ORDERS, BILLS)[: 1 + number % 3]:
            name = f"{queue.topic}-{queue.number}-{number}"
            await store.append(
                [message(name.encode(), queue=queue, message_id=name, tag=tag, key=key)]
            )
    for number, delay in enumerate(
        ({"delay_ms": 5_000}, {"due_ms": WALL_MS + 600_000}, {"delay_ms": 7_200_000})
    ):
        name = f"later-{number}"
        put_off = scheduled_message.with_delay(
            message(name.encode(), queue=BILLS, message_id=name), **delay
        )
        await store.append([scheduled_message.delay(put_off, house.now_ms)])
    await house.schedules.run_once(house.now_ms)
    for number in range(4):
        half = message(b"half", queue=BILLS, message_id=f"half-{number}", key="shop")
        await coordinator.begin(Begin([half], "shop", CheckbackPolicy(), f"txn-{number}"))
    await coordinator.commit("txn-0")
    await coordinator.rollback("txn-1")
    first = await house.receive(3)
    await house.ack(*first[:1])
    await house.give_up(*first[1:2], reason="why")
    for group in ("a", "b"):
        await store.commit_offset(group, ORDERS[0], 5)
    await house.schedules.save_snapshot()
    await coordinator.save_snapshot()
    await house.close()


async def _ask(world: World) -> Answers:
    house, coordinator = await _house(world)
    found = {**await _stored(house.store), **await _states(house, coordinator)}
    found["received"] = [(one.message.message_id, one.attempt) for one in await house.receive()]
    await house.pass_time(10_000)
    found["delivered"] = await _names(house.store, BILLS)
    await coordinator.commit("txn-2")
    found["committed"] = await _names(house.store, BILLS)
    return found


async def _ask_again(world: World) -> Answers:
    house, coordinator = await _house(world)
    await house.pass_time(1)
    found = {**await _stored(house.store), **await _states(house, coordinator)}
    found["received"] = [(one.message.message_id, one.attempt) for one in await house.receive()]
    return found


async def _is_of(
    blocks: list[RecordBlock | None], store: LocalMessageStore, queue: QueueId
) -> bool:
    """Has each of the blocks of all records the bytes that a read finds?"""
    _, end = await store.offsets(queue)
    scanned = await store.read_records(
        queue, 0, max_scanned=end, max_messages=end, max_bytes=1 << 20
    )
    return all(
        block is None or block.data == b"".join([one.data for one in scanned.records])
        for block in blocks
    )


async def _stored(store: LocalMessageStore) -> Answers:
    found: Answers = {}
    topics = await store.topics()
    found["topics"] = dict(topics)
    # What the lives themselves write in their journals depends on when they do it.
    queues = [
        queue
        for topic in sorted(topics)
        if topic not in JOURNALS
        for queue in await store.queues(topic)
    ]
    # Tags first, and each from the middle too: nothing but the entries says what may be passed
    # over.
    for queue in queues:
        bounds = await store.offsets(queue)
        if not bounds.end:
            continue
        found[f"{queue} bounds"] = tuple(bounds)
        blocks = [store.block_now(queue, 0, count=bounds.end, max_bytes=1 << 20)]
        for tag in TAGS:
            codes = {queue_entry.tag_hash(tag)}
            for begin in (bounds.first, bounds.end // 2):
                at, tagged = begin, []
                while at < bounds.end:
                    scanned = await store.read_tagged(
                        queue, at, tag_codes=codes, max_scanned=5, max_messages=3, max_bytes=1 << 20
                    )
                    tagged += [(one.queue_offset, one.message_id) for one in scanned.messages]
                    assert scanned.next_offset > at
                    at = scanned.next_offset
                found[f"{queue} {tag} {begin}"] = tagged
        places = [(queue, at) for at in reversed(range(*bounds))]
        found[f"{queue} each"] = list(map(_plain, await store.read_each(places, max_bytes=1 << 20)))
        found[f"{queue}"] = [_plain(one) for one in await _all(store, queue)]
        blocks.append(store.block_now(queue, 0, count=bounds.end, max_bytes=1 << 20))
        found[f"{queue} block"] = await _is_of(blocks, store, queue)
    everywhere = ["orders", "bills", HALF_QUEUE.topic]
    for key in KEYS:
        keyed = await store.find_messages(KeyQuery(key, topics=everywhere, max_messages=100))
        found[f"key {key}"] = [one.message_id for one in keyed]
    for name in [one[1] for queue in (*ORDERS, BILLS) for one in found[f"{queue}"]]:
        by_id = await store.find_messages(
            KeyQuery(name, topics=everywhere, by_id=True, max_messages=10)
        )
        found[f"id {name}"] = [(str(one.queue), one.queue_offset) for one in by_id]
    for group in ("a", "b", "c"):
        found[f"offset {group}"] = await store.committed_offset(group, ORDERS[0])
    return found


async def _states(house: House, coordinator: TransactionCoordinator) -> Answers:
    found: Answers = {f"txn-{n}": (await coordinator.get(f"txn-{n}")).state for n in range(4)}
    page = await house.schedules.page(Wanted(tuple(ScheduleState)), after=None, max_items=100)
    found["schedules"] = [(one.schedule_id, one.state, one.entry.due_ms) for one in page.items]
    found["due"] = house.schedules.counts
    found["halves"] = await _names(house.store, HALF_QUEUE), await _names(house.store, OP_QUEUE)
    found["dead"] = [one.message_id for one in await house.dead_letters()]
    for queue in ORDERS:
        # Of a queue that was looked at in vain nothing is in the log: no position, which begins at
        # 0 as well.
        found[f"position {queue}"] = await house.delivery.position(GROUP, queue) or 0
    return found


async def _all(store: LocalMessageStore, queue: QueueId) -> list[Any]:
    bounds = await store.offsets(queue)
    at, found = bounds.first, []
    while at < bounds.end:
        found += await store.read(queue, at, max_messages=5, max_bytes=1 << 20)
        at = bounds.first + len(found)
    return found


async def _names(store: LocalMessageStore, queue: QueueId) -> list[str]:
    return [one.message_id for one in await _all(store, queue)]


def _plain(one: Any) -> tuple[Any, ...]:
    return one.queue_offset, one.message_id, one.body, one.tag, one.key
