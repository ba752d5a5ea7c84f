"""Stores of our own format, version 1: read exactly, encoded to the same bytes, opened, served and
continued.

What the engine that wrote them was given and answered is in the truths beside them (README.md).
"""

import dataclasses
import json
import lzma
import shutil
import tarfile
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.idempotency.keys import IdempotencyKeys, KeyedRequest
from storage.files.vfs import OsVfs
from storage.formats import checkpoint, names, scan, unit
from storage.formats import record as records
from storage.formats.record import Record
from storage.formats.row import rows_of
from storage.identifiers import Identifiers
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId, StoredMessage, TransactionBits
from tests.golden import write_own_store
from tests.support import check_pass
from tests.support.clock import ManualClock
from tests.support.message_json import assert_both_ways_are_equal
from txn import half_message
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnState

FOLDER = Path(__file__).parent / "escrowmq-1"
STORES = ["closed", "cut"]
SETTINGS = LocalStoreOptions(
    segment_bytes=1 << 15,
    queue_file_entries=20,
    index_slots=64,
    index_file_entries=200,
)  # as they were written
LATER_MS = write_own_store.WALL_MS + 86_000_000
SEGMENT_BYTES = SETTINGS.segment_bytes

each_store = pytest.mark.parametrize("name", STORES)


@lru_cache
def truth(name: str) -> dict[str, Any]:
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "store"


@pytest.fixture
def store_path(name: str, tmp_path: Path) -> Path:
    """A fresh copy of the store, as it lay on the disk."""
    return unpacked(name, tmp_path)


# --------------------------------------------------------------------------------------------------
# the bytes


@each_store
def test_every_record_is_what_was_appended_and_there_is_no_other(name, store_path):
    appended = [row for call in truth(name)["appends"] for row in call["messages"]]
    committed = [row["body"] for row in truth(name)["commits"]]

    read = [records.to_message(record) for record, _ in stored_records(store_path)]

    assert [
        as_row(message) for message in read if message.queue.topic != names.OFFSET_TOPIC
    ] == appended
    commits = [message for message in read if message.queue.topic == names.OFFSET_TOPIC]
    assert [json.loads(message.body) for message in commits] == committed
    assert [(message.key, message.tag) for message in commits] == [
        (row["group"], "commit") for row in committed
    ]
    assert [message.queue_offset for message in commits] == list(range(len(commits)))


@each_store
def test_every_append_is_a_unit_of_the_epoch_in_which_it_was_made(name, store_path):
    calls = [
        (row["messages"][0]["log_offset"], len(row["messages"]), row["epoch"])
        for row in truth(name)["appends"]
    ]
    found = {item.first_offset: item for item, _ in stored_units(store_path)}

    for first_offset, count, epoch in calls:
        item = found.pop(first_offset)
        assert (item.record_count, item.epoch) == (count, epoch)
        assert item.synced_offset <= first_offset
    assert [item.epoch for item in found.values()] == [
        row["epoch"] for row in truth(name)["commits"]
    ]


@each_store
def test_the_same_messages_are_encoded_to_the_same_bytes(name, store_path):
    given = {row["messages"][0]["log_offset"]: row["messages"] for row in truth(name)["appends"]}
    bytes_of = {item.first_offset: (item, raw) for item, raw in stored_units(store_path)}

    for first_offset, rows in given.items():
        item, raw = bytes_of[first_offset]
        made = unit.encode(
            rows_of([message_of(row) for row in rows]),
            [row["queue_offset"] for row in rows],
            first_offset=first_offset,
            synced_offset=item.synced_offset,
            epoch=item.epoch,
            stored_at_ms=rows[0]["stored_at_ms"],
        )
        assert made.data == raw


@each_store
def test_every_record_is_encoded_back_to_its_bytes_and_has_the_crc_of_its_body(name, store_path):
    for record, raw in stored_records(store_path):
        assert records.encode(record) == raw
        assert record.body_crc == records.body_crc(record.body)


@each_store
def test_every_record_has_the_json_of_its_message(name, store_path):
    assert_both_ways_are_equal([record for record, _ in stored_records(store_path)])


@each_store
def test_every_op_says_what_was_decided_and_where_the_finals_lie(name, store_path):
    """A start would find out without: these say it in a word."""
    read = [records.to_message(record) for record, _ in stored_records(store_path)]
    ops = [
        half_message.read_op(message) for message in read if message.queue.topic == names.OP_TOPIC
    ]
    decided = {
        row["transaction_id"]: row for row in truth(name)["transactions"] if row["resolved_by"]
    }

    assert {op.transaction_id for op in ops} == decided.keys()
    for op in ops:
        row = decided[op.transaction_id]
        assert op.state is TxnState[row["state"]]
        assert (op.resolved_by.name, op.resolved_at_ms, op.reason) == (
            row["resolved_by"],
            row["resolved_at_ms"],
            row["reason"],
        )
        places = [place for *_, place in row["messages"] if place is not None]
        assert all(begin <= place for begin, place in zip(op.finals_from, places, strict=True))


@each_store
def test_the_log_ends_as_it_was_left(name, store_path):
    *full, (base_offset, last) = segments(store_path)

    for offset, data in full:
        walk = walked(offset, data)
        assert walk.stop is scan.Stop.END_OF_FILE
        assert data[walk.end - offset :][:8] == records.encode_end_of_file(
            offset + SEGMENT_BYTES - walk.end
        )
    walk, torn_at = walked(base_offset, last), truth(name)["torn_at"]
    assert walk.stop is (scan.Stop.EMPTY if torn_at is None else scan.Stop.DAMAGED)
    assert any(last[walk.end - base_offset :]) == (torn_at is not None)
    assert torn_at in (None, walk.end)


@each_store
def test_the_checkpoint_says_how_far_the_log_was_on_disk_and_whether_it_was_closed(
    name, store_path
):
    page = (store_path / "checkpoint").read_bytes()
    slot = checkpoint.newest_slot(page)
    walk = walked(*segments(store_path)[-1])

    assert len(page) == checkpoint.PAGE_BYTES
    assert slot is not None
    assert (slot.epoch, slot.is_clean) == (truth(name)["epoch"], truth(name)["closed_in_order"])
    assert slot.synced_offset == walk.end if slot.is_clean else slot.synced_offset <= walk.end
    last = [record for record, _ in stored_records(store_path)][-1]
    assert checkpoint.decode_fields(page).physic_ms <= last.stored_at_ms
    assert (store_path / "abort").exists() is not truth(name)["closed_in_order"]


def test_between_them_the_stores_hold_every_kind_of_record_that_we_write(tmp_path):
    found = []
    for name in STORES:
        store_path = unpacked(name, tmp_path / name)
        found += [(record, raw) for record, raw in stored_records(store_path)]
        counts = {item.record_count for item, _ in stored_units(store_path)}
        assert {1, 2, 3, 60} <= counts
        assert len(segments(store_path)) == 2

    assert {record.magic for record, _ in found} == {records.MAGIC_V1, records.MAGIC_V2}
    assert {record.transaction for record, _ in found} == {
        TransactionBits.NONE,
        TransactionBits.COMMIT,
    }
    assert {(record.magic, padding_of(record)) for record, _ in found} == {
        (magic, length)
        for magic in (records.MAGIC_V1, records.MAGIC_V2)
        for length in range(unit.ALIGNMENT)
    }
    assert all(len(raw) % unit.ALIGNMENT == 0 for _, raw in found)
    own = write_own_store
    topics = {
        names.HALF_TOPIC,
        names.OP_TOPIC,
        names.HELD_TOPIC,
        names.CHECK_TOPIC,
        names.OFFSET_TOPIC,
        names.IDEMPOTENCY_TOPIC,
    }
    assert {record.topic for record, _ in found} == topics | {
        q.topic for q in (own.ORDERS, own.EMAILS, own.LETTERS, own.RETRY)
    }
    assert any(not record.properties.isascii() for record, _ in found)
    assert any(b"__empty\x01" in record.properties for record, _ in found)


@each_store
def test_by_rocketmqs_rules_the_same_transactions_are_decided(name, store_path):
    """Its check pass knows nothing of our properties: it must not ask about what is decided, nor
    forget what is not.
    """
    read = [records.to_message(record) for record, _ in stored_records(store_path)]
    halves = [
        check_pass.half_of(message) for message in read if message.queue.topic == names.HALF_TOPIC
    ]
    ops = [check_pass.op_of(message) for message in read if message.queue.topic == names.OP_TOPIC]

    found = check_pass.check_pass(halves, ops)

    decided = {
        row["transaction_id"]: row["resolved_by"] is not None for row in truth(name)["transactions"]
    }
    assert {(half.transaction_id, half.queue_offset in found.decided) for half in halves} == set(
        decided.items()
    )
    assert set(decided.values()) == {True, False}


# --------------------------------------------------------------------------------------------------
# the engine


def keep_all(_: Path) -> None:
    """The store as it lay there."""


def without_snapshots(store_path: Path) -> None:
    shutil.rmtree(store_path / "snapshots")


def without_anything_derived(store_path: Path) -> None:
    shutil.rmtree(store_path / "snapshots")
    shutil.rmtree(store_path / "consumequeue")


@each_store
@pytest.mark.parametrize("prepare", [keep_all, without_snapshots, without_anything_derived])
async def test_opening_it_gives_back_what_was_served_offsets_transactions_and_keys(
    name, store_path, prepare
):
    prepare(store_path)

    async with opened(store_path) as service:
        await assert_is(service, name)


@each_store
async def test_after_a_second_start_it_is_still_the_same(name, store_path):
    for _ in range(2):
        async with opened(store_path) as service:
            await assert_is(service, name)

    async with opened(store_path) as service:
        assert service.store.recovery.was_clean
        assert service.store.recovery.replayed_records == 0


@each_store
async def test_a_start_sees_how_it_was_left(name, store_path):
    async with opened(store_path) as service:
        recovery = service.store.recovery

    assert recovery.was_clean is truth(name)["closed_in_order"]
    assert recovery.cut_at == truth(name)["torn_at"]


@pytest.mark.parametrize("name", ["closed"])
async def test_a_closed_store_is_opened_from_its_snapshots_once_its_keys_have_been_indexed_with_sums(
    name, store_path
):
    async with opened(store_path) as service:
        # That release kept no sums of its key index, so the index is made again from the log, once.
        assert service.store.recovery.was_clean
        assert service.store.recovery.walked_bytes == service.store.recovery.end_offset > 0
        # One begin, and a commit with its op, came after the table was kept.
        assert service.replayed == 2

    async with opened(store_path) as service:
        assert (service.store.recovery.walked_bytes, service.store.recovery.replayed_records) == (
            0,
            0,
        )


@pytest.mark.parametrize("name", ["closed"])
async def test_opening_a_closed_store_changes_no_byte_of_its_log(name, store_path):
    before = dict(segments(store_path))

    async with opened(store_path):
        pass

    after = dict(segments(store_path))
    assert {offset: after[offset] for offset in before} == before
    assert not any(any(data) for offset, data in after.items() if offset not in before)


@pytest.mark.parametrize("name", ["closed"])
async def test_consume_queues_built_anew_are_those_that_were_kept(name, store_path):
    kept = queue_files(store_path)
    without_anything_derived(store_path)

    async with opened(store_path):
        pass

    assert queue_files(store_path) == kept


@each_store
async def test_it_goes_on_where_it_ended(name, store_path):
    orders = QueueId("orders", 0)
    async with opened(store_path) as service:
        end = (await service.store.offsets(orders)).end
        await service.store.append([message_of(truth(name)["appends"][0]["messages"][0])])
        await service.coordinator.rollback("resumed")
        await service.coordinator.commit("held")

    without_snapshots(store_path)
    async with opened(store_path) as service:
        assert (await service.store.offsets(orders)).end == end + 2
        fates = {
            one: (await service.coordinator.get(one)).state
            for one in ("resumed", "held", "rolled-back")
        }
        assert fates == {
            "resumed": TxnState.ROLLED_BACK,
            "held": TxnState.COMMITTED,
            "rolled-back": TxnState.ROLLED_BACK,
        }


# --------------------------------------------------------------------------------------------------
# helpers


@dataclasses.dataclass
class Service:
    store: LocalMessageStore
    coordinator: TransactionCoordinator
    idempotency: IdempotencyKeys
    replayed: int


@asynccontextmanager
async def opened(store_path: Path) -> AsyncIterator[Service]:
    clock = ManualClock(LATER_MS)
    identifiers = Identifiers(clock, Random(0))
    store = await LocalMessageStore.open(store_path, SETTINGS, OsVfs(), clock, identifiers)
    try:
        coordinator = TransactionCoordinator(store, clock, identifiers, TransactionOptions())
        replayed = await coordinator.start()
        idempotency = IdempotencyKeys(store, clock)
        await idempotency.start()
        yield Service(store, coordinator, idempotency, replayed)
        await coordinator.save_snapshot()
        await idempotency.save_snapshot()
    finally:
        await store.aclose()


def with_first_keys(transaction: dict[str, Any]) -> dict[str, Any]:
    """Of a key with blanks, which is several keys by now, a transaction names the first one."""
    messages = [
        [message_id, queue, None if key is None else key.split()[0], final_offset]
        for message_id, queue, key, final_offset in transaction["messages"]
    ]
    return transaction | {"messages": messages}


async def assert_is(service: Service, name: str) -> None:
    """Everything that the service can be asked for is what the truth says."""
    expected, store = truth(name), service.store
    rows: dict[str, list[dict[str, Any]]] = {}
    for call in expected["appends"]:
        for row in call["messages"]:
            rows.setdefault(f"{row['topic']}/{row['queue_id']}", []).append(row)

    bounds = {}
    for topic in await store.topics():
        for queue in await store.queues(topic):
            bounds[str(queue)] = list(await store.offsets(queue))
            if topic != names.OFFSET_TOPIC:
                assert [as_row(message) async for message in everything(store, queue)] == rows.pop(
                    str(queue), []
                )
    assert bounds == {
        queue: found for queue, found in expected["queue_bounds"].items() if queue in bounds
    }
    assert [
        found
        for queue, found in expected["queue_bounds"].items()
        if queue not in bounds and found != [0, 0]
    ] == []
    assert rows == {}
    for group, queue, offset in expected["committed_offsets"]:
        assert await store.committed_offset(group, queue_of(queue)) == offset
    known_ids = [one.transaction_id for one in service.coordinator.table]
    assert [write_own_store.facts_of(await service.coordinator.get(one)) for one in known_ids] == [
        with_first_keys(one) for one in expected["transactions"]
    ]
    for sent in expected["sent_keys"]:
        request = KeyedRequest(sent["scope"], sent["key"], sent["fingerprint"])
        known = await service.idempotency.lookup(request, window_ms=1 << 40)
        assert known is not None
        assert [message.message_id for message in known.messages] == sent["message_ids"]
        places = {
            row["message_id"]: row["log_offset"]
            for call in expected["appends"]
            for row in call["messages"]
        }
        assert [place.log_offset for _, place in await service.idempotency.find(known)] == [
            places[one] for one in sent["message_ids"]
        ]


async def everything(store: LocalMessageStore, queue: QueueId) -> AsyncIterator[StoredMessage]:
    at = (await store.offsets(queue)).first
    while messages := await store.read(queue, at, max_messages=50, max_bytes=64 << 10):
        for message in messages:
            yield message
        at += len(messages)


def as_row(message: StoredMessage) -> dict[str, Any]:
    """The message in the words of the truth."""
    place = {
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "stored_at_ms": message.stored_at_ms,
    }
    return write_own_store.row_of(message) | place


def message_of(row: dict[str, Any]) -> Message:
    plain = {
        name: row[name]
        for name in (
            "message_id",
            "born_at_ms",
            "key",
            "tag",
            "properties",
            "system",
            "prepared_log_offset",
        )
    }
    queue = QueueId(row["topic"], row["queue_id"])
    return Message(
        queue=queue,
        body=b64decode(row["body"]),
        transaction=TransactionBits[row["transaction"]],
        **plain,
    )


def queue_of(text: str) -> QueueId:
    topic, _, number = text.rpartition("/")
    return QueueId(topic, int(number))


def segments(store_path: Path) -> list[tuple[int, bytes]]:
    found = sorted((store_path / "commitlog").iterdir())
    assert all(path.stat().st_size == SEGMENT_BYTES for path in found)
    return [(names.base_offset(path.name) or 0, path.read_bytes()) for path in found]


def walked(base_offset: int, data: bytes) -> scan.Scan:
    return scan.scan(data, base_offset, begin=base_offset, segment_end=base_offset + len(data))


def stored_records(store_path: Path) -> Iterator[tuple[Record, bytes]]:
    """Every record of the log and its bytes, in log order."""
    for base_offset, data in segments(store_path):
        walk = walked(base_offset, data)
        for offset, length in zip(
            walk.record_offsets.tolist(), walk.record_bytes.tolist(), strict=True
        ):
            raw = data[offset - base_offset : offset - base_offset + length]
            yield records.decode(raw), raw


def stored_units(store_path: Path) -> Iterator[tuple[unit.UnitItem, bytes]]:
    """Every unit of the log and its bytes."""
    found: dict[int, tuple[unit.UnitItem, bytes]] = {}
    for record, raw in stored_records(store_path):
        item = unit.decode_item(record.properties, record.properties.rindex(unit.UNIT_ITEM_START))
        assert item is not None
        _, before = found.get(item.first_offset, (item, b""))
        found[item.first_offset] = (item, before + raw)
    yield from found.values()


def padding_of(record: Record) -> int:
    own = record.properties[: record.properties.rindex(unit.UNIT_ITEM_START)]
    return len(own) - len(own.rstrip(b"\x02")) - bool(own.rstrip(b"\x02"))


def queue_files(store_path: Path) -> dict[Path, bytes]:
    folder = store_path / "consumequeue"
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
