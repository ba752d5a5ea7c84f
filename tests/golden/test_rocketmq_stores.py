"""Stores that a real RocketMQ 5.3.3 broker wrote: read exactly, given back byte for byte, opened,
served and settled.

What the broker itself said about them is in the manifests beside them (README.md).
"""

import json
import lzma
import re
import shutil
import tarfile
import zlib
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import Wanted
from scheduler.schedule_service import ScheduleService
from storage.clock import SystemClock
from storage.errors import UnknownQueue, UnknownTopic
from storage.files.vfs import OsVfs
from storage.formats import names, properties, queue_entry, scan
from storage.formats import record as records
from storage.formats.queue_entry import ENTRY_BYTES
from storage.formats.record import Record
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, OffsetRange, QueueId, StoredMessage
from tests.support import check_pass
from tests.support.check_pass import Half, OpMessage
from tests.support.http import ok
from tests.support.message_json import assert_both_ways_are_equal
from tests.support.server import Server
from txn import half_message
from txn.coordinator import TransactionCoordinator
from txn.half_message import HALF_QUEUE, HELD_QUEUE, OP_QUEUE
from txn.options import TransactionOptions
from txn.states import TxnState

FOLDER = Path(__file__).parent / "rocketmq-5.3.3"
STORES = ["public-1", "public-2"]  # stopped in order; killed while six threads were sending
BROKERS_SETTINGS = LocalStoreOptions(
    segment_bytes=1 << 20, queue_file_entries=1000, index_slots=5_000, index_file_entries=20_000
)
STATES = {  # our word for what the bytes prove
    "committed": TxnState.COMMITTED,
    "rolled_back": TxnState.ROLLED_BACK,
    "discarded": TxnState.HELD,
    "pending": TxnState.PREPARED,
}

pytestmark = pytest.mark.parametrize("name", STORES)


@lru_cache
def manifest(name: str) -> dict[str, Any]:
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


@pytest.fixture
def store_path(name: str, tmp_path: Path) -> Path:
    """A fresh copy of the store, as it lay on the broker's disk."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


@pytest.fixture
def without_groups(store_path: Path) -> None:
    """Nothing says which groups the broker had: all begin at the first message."""
    for of in ("subscriptionGroup.json", "consumerOffset.json"):
        for path in (store_path / "config").glob(f"{of}*"):
            path.unlink()


@pytest.fixture
def server(name: str, store_path: Path) -> Iterator[Server]:
    """The service on the store."""
    of_broker = {
        "SEGMENT_BYTES": BROKERS_SETTINGS.segment_bytes,
        "QUEUE_FILE_ENTRIES": BROKERS_SETTINGS.queue_file_entries,
        "INDEX_SLOTS": BROKERS_SETTINGS.index_slots,
        "INDEX_FILE_ENTRIES": BROKERS_SETTINGS.index_file_entries,
        "RETENTION_MS": 100 * 365 * 86_400_000,
    }
    environment = {f"ESCROWMQ_LOCAL__{key}": str(value) for key, value in of_broker.items()}
    with Server(store_path.parent, dev=False, environment=environment) as running:
        yield running


# --------------------------------------------------------------------------------------------------
# the bytes


def test_every_record_that_the_broker_served_is_read_field_by_field_and_there_is_no_other(
    name, store_path
):
    served = sorted(manifest(name)["served"], key=lambda row: row["physical_offset"])

    read = [as_served(record, raw) for record, raw in stored_records(store_path)]

    assert [row["physical_offset"] for row in read] == [row["physical_offset"] for row in served]
    for row, expected in zip(read, served, strict=True):
        assert row == expected


def test_every_record_is_encoded_back_to_its_bytes(name, store_path):
    for record, raw in stored_records(store_path):
        assert records.encode(record) == raw


def test_every_record_has_the_json_of_its_message(name, store_path):
    assert_both_ways_are_equal([record for record, _ in stored_records(store_path)])


def test_behind_the_last_record_lies_nothing(name, store_path):
    for path in sorted((store_path / "commitlog").iterdir()):
        data = path.read_bytes()
        walk = walked(data, names.base_offset(path.name))

        assert walk.stop is scan.Stop.EMPTY
        assert not any(data[walk.end - names.base_offset(path.name) :])


def test_every_folder_of_a_queue_has_a_name_that_may_be_stored(name, store_path):
    topics = [path.name for path in (store_path / "consumequeue").iterdir()]

    assert len(topics) > 8
    assert [topic for topic in topics if not names.is_stored_name(topic)] == []


def test_the_tag_hashes_of_the_broker_are_ours(name, store_path):
    """Its own entries against the tags of the records that they point to; some tags are not
    ASCII.
    """
    log = {record.physical_offset: record for record, _ in stored_records(store_path)}
    tags = set()
    for path, entries in broker_entries(store_path).items():
        if path.parts[0] == "SCHEDULE_TOPIC_XXXX":
            continue  # there stands the time of delivery
        for entry in entries:
            tag = properties.decode(log[entry.physical_offset].properties).get(properties.TAGS)
            tags.add(tag)
            assert entry.tag_hash == queue_entry.tag_hash(tag)

    assert {tag for tag in tags if tag is not None and not tag.isascii()}


# --------------------------------------------------------------------------------------------------
# the engine


async def test_consume_queues_built_anew_are_the_brokers(name, store_path):
    brokers = {path: data for path, data in queue_files(store_path).items() if any(data)}
    shutil.rmtree(store_path / "consumequeue")

    async with opened(store_path):
        pass

    built = queue_files(store_path)
    assert built.keys() == brokers.keys()
    if manifest(name)["clean_stop"]:
        assert built == brokers
    for path, data in brokers.items():
        # A killed broker's queues may end before its log does; as far as they go they are the same.
        written = len(data.rstrip(b"\0")) // ENTRY_BYTES * ENTRY_BYTES
        assert built[path][:written] == data[:written]


async def test_queues_are_served_with_the_bounds_and_the_messages_that_the_broker_told(
    name, store_path
):
    served: dict[QueueId, list[dict[str, Any]]] = {}
    for row in sorted(manifest(name)["served"], key=lambda row: row["queue_offset"]):
        served.setdefault(QueueId(row["topic"], row["queue_id"]), []).append(row)

    async with opened(store_path) as store:
        for text, bounds in manifest(name)["queue_bounds"].items():
            topic, _, number = text.rpartition("/")
            queue = QueueId(topic, int(number))
            expected = served.pop(queue, [])

            found = await bounds_of(store, queue)
            messages = [message async for message in everything(store, queue)] if expected else []
            # A killed broker told its bounds after its next start, when it had delivered what had
            # become due meanwhile.
            told = (
                OffsetRange(*bounds)
                if manifest(name)["clean_stop"]
                else OffsetRange(bounds[0], len(expected))
            )
            assert found == told
            assert len(messages) == len(expected)
            for message, row in zip(messages, expected, strict=True):
                assert_is(message, row)
    assert not served


@pytest.mark.parametrize("payload", ["auto", "base64"])
@pytest.mark.parametrize("count", [20, 1_000])
def test_a_pull_gives_every_body_as_its_sender_had_it(name, server, payload, count):
    with server.client() as api:
        for (topic, number), rows in public_rows(name).items():
            found: dict[int, bytes] = {}
            while len(found) < len(rows):
                query = {"offset": len(found), "max_messages": count, "payload": payload}
                page = ok(api.get(f"/v1/topics/{topic}/queues/{number}/messages", params=query))
                found |= {one["queue_offset"]: body_of(one) for one in page["messages"]}
                assert len(found) == page["next_offset"]
            for offset, row in enumerate(rows):
                assert sha256(found[offset]).hexdigest() == row["body_sha256"]


def test_a_pull_as_records_gives_the_stored_bytes(name, store_path, server):
    stored = {
        (record.topic, record.queue_number, record.queue_offset): raw
        for record, raw in stored_records(store_path)
    }
    with server.client(headers={"Accept": "application/vnd.escrowmq.records"}) as api:
        for (topic, number), rows in public_rows(name).items():
            query = {"offset": 0, "max_messages": len(rows), "max_bytes": 16 << 20}
            answer = api.get(f"/v1/topics/{topic}/queues/{number}/messages", params=query)
            assert answer.status_code == 200
            expected = b"".join(stored[topic, number, row["queue_offset"]] for row in rows)
            assert answer.content[40:] == expected


@pytest.mark.parametrize("ordered", [False, True])
def test_a_group_receives_every_body_as_its_sender_had_it(name, server, ordered):
    rows = {
        (topic, number, offset): row
        for (topic, number), rows in public_rows(name).items()
        for offset, row in enumerate(rows)
    }
    found: dict[tuple[str, int, int], bytes] = {}
    topics = [{"topic": topic} for topic in sorted({topic for topic, _, _ in rows})]
    with server.client() as api:
        ok(api.put("/v1/groups/new-readers", json={"topics": topics, "ordered": ordered}), 201)
        while not rows.keys() <= found.keys():
            asked = {"max_messages": 50, "max_bytes": 16 << 20}
            messages = ok(api.post("/v1/groups/new-readers/receive", json=asked))["messages"]
            assert messages
            found |= {
                (one["topic"], one["queue_id"], one["queue_offset"]): body_of(one)
                for one in messages
            }
            entries = [{"receipt_handle": one["receipt_handle"]} for one in messages]
            ok(api.post("/v1/groups/new-readers/ack", json={"entries": entries}))
    for place, row in rows.items():
        assert sha256(found[place]).hexdigest() == row["body_sha256"]


def test_a_message_that_is_looked_up_has_its_body_as_its_sender_had_it(name, server):
    rows = [row for of_queue in public_rows(name).values() for row in of_queue]
    times = Counter(row["msg_id"] for row in rows)
    rows = [row for row in rows if times[row["msg_id"]] == 1]  # those of a batch share one
    compressed = [row for row in rows if row["sys_flag"] & 0x700]
    assert {row["sys_flag"] & 0x700 for row in compressed} == {0x100, 0x200, 0x300}
    with server.client() as api:
        for row in [*compressed, *rows[:20]]:
            path = f"/v1/messages/{row['msg_id']}"
            bodies = [api.get(f"{path}/payload").content, body_of(ok(api.get(path)))]
            for key in row["properties"].get("KEYS", "").split():
                query = {"topic": row["topic"], "key": key, "page_size": 100}
                items = ok(api.get("/v1/messages", params=query))["items"]
                found = {item["message_id"]: body_of(item) for item in items}
                bodies.append(found[row["msg_id"]])
            for body in bodies:
                assert sha256(body).hexdigest() == row["body_sha256"]


def test_a_message_of_a_broker_with_several_keys_shows_them_and_is_found_by_each(name, server):
    several = 0
    with server.client() as api:
        for (topic, number), rows in public_rows(name).items():
            query = {"offset": 0, "max_messages": len(rows), "max_bytes": 16 << 20}
            path = f"/v1/topics/{topic}/queues/{number}/messages"
            shown = ok(api.get(path, params=query | {"payload": "omit"}))["messages"]
            for one, row in zip(shown, rows, strict=True):
                keys = list(dict.fromkeys(row["properties"].get("KEYS", "").split()))
                assert one.get("key") == (keys[0] if keys else None)
                assert one.get("keys") == (keys if len(keys) > 1 else None)
                several += len(keys) > 1
                for key in keys if len(keys) > 1 and several < 20 else ():
                    given = {"topic": topic, "key": key, "page_size": 1_000, "payload": "omit"}
                    assert one in ok(api.get("/v1/messages", params=given))["items"]
    assert several > 100


@pytest.mark.usefixtures("without_groups")
def test_dead_letters_and_retries_of_a_broker_say_how_often_they_were_delivered(name, server):
    asked = {"max_messages": 100, "lease_ms": 600_000}
    with server.client() as api:
        for group in manifest(name)["groups"].values():
            if len(group) > 127:
                continue  # only a broker has groups of such names
            letters = rows_of_topic(name, names.dead_letter_topic(group))
            retries = rows_of_topic(name, names.retry_topic(group))
            ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": "orders"}]}), 201)
            items = ok(api.get(f"/v1/groups/{group}/dead-letters"))["items"]
            assert [item["attempts"] for item in items] == [
                row["reconsume_times"] for row in letters
            ]
            found: dict[str, list[int]] = {}
            while messages := ok(api.post(f"/v1/groups/{group}/receive", json=asked))["messages"]:
                for one in messages:
                    found.setdefault(one["message_id"], []).append(one["attempt"])
            for row in retries:
                assert row["reconsume_times"] + 1 in found[row["msg_id"]]


async def test_opening_and_closing_changes_no_byte_of_the_log(name, store_path):
    before = {path.name: path.read_bytes() for path in (store_path / "commitlog").iterdir()}

    for _ in range(2):
        async with opened(store_path) as store:
            report = store.recovery

    after = {path.name: path.read_bytes() for path in (store_path / "commitlog").iterdir()}
    assert {path: after[path] for path in before} == before
    assert not any(any(data) for path, data in after.items() if path not in before)
    assert report.was_clean
    assert report.replayed_records == 0


async def test_what_is_appended_behind_the_brokers_records_is_served_after_the_next_start(
    name, store_path
):
    queue = QueueId("orders", 0)
    async with opened(store_path) as store:
        given = [message async for message in everything(store, queue)]
        await store.append([moved(given[-1], queue)])

    shutil.rmtree(store_path / "snapshots")
    async with opened(store_path) as store:
        messages = [message async for message in everything(store, queue)]

    assert messages[:-1] == given
    assert (messages[-1].queue_offset, messages[-1].body) == (len(given), given[-1].body)


# --------------------------------------------------------------------------------------------------
# transactions


async def test_every_transaction_has_the_outcome_that_the_bytes_prove(name, store_path):
    rows = [row for row in manifest(name)["messages"] if row["kind"] == "transaction"]
    stored = {
        row["unique_key"]: row["transaction"]
        for row in rows
        if row["transaction"]["half_queue_offsets"]
    }

    async with settled(store_path) as (_, coordinator):
        found = {transaction.transaction_id: transaction for transaction in coordinator.table}

        assert found.keys() == stored.keys()
        for transaction_id, expected in stored.items():
            transaction = found[transaction_id]
            assert transaction.state is STATES[expected["outcome"]], f"{transaction_id}: {expected}"
            assert transaction.producer_group == expected["producer_group"]
            assert transaction.sequence == expected["half_queue_offsets"][0]
    assert len({expected["outcome"] for expected in stored.values()}) == 3


def test_the_check_pass_finds_by_two_topics_alone_what_has_an_op_and_what_has_none(
    name, store_path
):
    rows = [
        row
        for row in manifest(name)["messages"]
        if row["kind"] == "transaction" and row["transaction"]["half_queue_offsets"]
    ]
    halves, ops = transaction_topics(store_path)

    found = check_pass.check_pass(halves, ops)

    transactions = check_pass.decided_transactions(halves, found)
    assert {key: op is not None for key, op in transactions.items()} == {
        row["unique_key"]: row["transaction"]["op_recorded"] for row in rows
    }
    for row in rows:
        written = [half.queue_offset for half in halves if half.transaction_id == row["unique_key"]]
        assert written == row["transaction"]["half_queue_offsets"]


def test_the_check_pass_goes_on_from_where_the_broker_had_come(name, store_path):
    """What its group has committed lies beside the store; before it nothing is left that was not
    written again behind it.
    """
    half_offset, op_offset = committed_by_the_broker(store_path)
    halves, ops = transaction_topics(store_path)
    whole = check_pass.check_pass(halves, ops)

    rest = check_pass.check_pass(halves, ops, half_offset=half_offset, op_offset=op_offset)

    assert half_offset > 0
    assert rest.undecided == [offset for offset in whole.undecided if offset >= half_offset]
    pending = {half.transaction_id for half in halves if half.queue_offset in rest.undecided}
    moved_away = {
        row["unique_key"]
        for row in manifest(name)["messages"]
        if row["kind"] == "transaction" and row["transaction"]["outcome"] == "discarded"
    }
    decided = check_pass.decided_transactions(halves, whole)
    assert {key for key, op in decided.items() if op is None} <= pending | moved_away


async def test_a_committed_transaction_knows_where_its_message_went(name, store_path):
    log = {row["physical_offset"]: row for row in manifest(name)["served"]}

    async with settled(store_path) as (_, coordinator):
        for row in manifest(name)["messages"]:
            if row["kind"] == "transaction" and row["transaction"]["outcome"] == "committed":
                (message,) = (await coordinator.get(row["unique_key"])).messages
                final = log[row["transaction"]["final_physical_offset"][0]]

                assert (message.queue, message.final_offset) == (
                    QueueId(final["topic"], final["queue_id"]),
                    final["queue_offset"],
                )


async def test_a_decided_transaction_with_a_half_that_no_op_names_gets_its_op_once(
    name, store_path
):
    halves, ops = transaction_topics(store_path)
    undecided = set(check_pass.check_pass(halves, ops).undecided)
    outcomes = {
        row["unique_key"]: row["transaction"]["outcome"]
        for row in manifest(name)["messages"]
        if row["kind"] == "transaction" and row["transaction"]["half_queue_offsets"]
    }
    incomplete = {
        half.transaction_id: STATES[outcomes[half.transaction_id]]
        for half in halves
        if half.queue_offset in undecided
        and outcomes[half.transaction_id] in ("committed", "rolled_back")
    }
    assert len(incomplete) == {"public-1": 8, "public-2": 74}[name]

    for _ in range(2):
        async with settled(store_path) as (store, _):
            ops = [half_message.read_op(message) async for message in everything(store, OP_QUEUE)]
        shutil.rmtree(store_path / "snapshots")

    ours = [op for op in ops if op.state is not None]
    assert len(ours) == len(incomplete)
    assert {op.transaction_id: op.state for op in ours} == incomplete


async def test_a_broker_that_is_given_the_store_back_asks_about_nothing_that_is_decided(
    name, store_path
):
    progress = committed_by_the_broker(store_path)
    async with settled(store_path) as (_, coordinator):
        left = [one.transaction_id for one in coordinator.table if not one.state.is_decided]
    halves, ops = transaction_topics(store_path)
    for half_offset, op_offset in (progress, (0, 0)):  # where its group stands, and a new one
        rest = check_pass.check_pass(halves, ops, half_offset=half_offset, op_offset=op_offset)
        asked = {half.transaction_id for half in halves if half.queue_offset in rest.undecided}
        assert asked <= set(left)
    assert asked == set(left)
    assert left

    async with settled(store_path) as (_, coordinator):
        for number, transaction_id in enumerate(left):
            decide = coordinator.commit if number % 2 else coordinator.rollback
            await decide(transaction_id)
    halves, ops = transaction_topics(store_path)
    assert check_pass.check_pass(halves, ops).undecided == []


async def test_pending_transactions_of_a_broker_can_be_decided_and_stay_so(name, store_path):
    async with settled(store_path) as (_, coordinator):
        pending = [
            one.transaction_id for one in coordinator.table if one.state is TxnState.PREPARED
        ]
        committed, rolled_back = pending[::2], pending[1::2]
        for transaction_id in committed:
            await coordinator.commit(transaction_id)
        for transaction_id in rolled_back:
            await coordinator.rollback(transaction_id)

    shutil.rmtree(store_path / "snapshots")
    async with settled(store_path) as (store, coordinator):
        halves = {half.message_id: half async for half in everything(store, HALF_QUEUE)}
        for transaction_id in committed:
            transaction = await coordinator.get(transaction_id)
            (message,) = transaction.messages
            (final,) = await store.read(
                message.queue, message.final_offset, max_messages=1, max_bytes=1 << 20
            )

            assert transaction.state is TxnState.COMMITTED
            half = halves[final.message_id]
            assert (final.body, final.key, final.tag, final.properties) == (
                half.body,
                half.key,
                half.tag,
                half.properties,
            )
            assert half_message.real_queue(half) == final.queue
        assert {coordinator.table.get(transaction_id).state for transaction_id in rolled_back} == {
            TxnState.ROLLED_BACK
        }


async def test_a_half_that_the_broker_has_given_up_on_is_held_until_somebody_resolves_it(
    name, store_path
):
    async with settled(store_path) as (store, coordinator):
        pending = next(one for one in coordinator.table if one.state is TxnState.PREPARED)
        (half,) = await store.read(HALF_QUEUE, pending.sequence, max_messages=1, max_bytes=1 << 20)
        # the half itself, as RocketMQ's resolveDiscardMsg moves it
        await store.append([moved(half, HELD_QUEUE)])

    async with settled(store_path) as (_, coordinator):
        assert coordinator.table.get(pending.transaction_id).state is TxnState.HELD
        assert coordinator.table.held_count == 1
        await coordinator.resume(pending.transaction_id)

    shutil.rmtree(store_path / "snapshots")
    async with settled(store_path) as (_, coordinator):
        assert coordinator.table.get(pending.transaction_id).state is TxnState.PREPARED
        assert coordinator.table.held_count == 0


# --------------------------------------------------------------------------------------------------
# delayed messages


async def test_what_the_broker_delivered_is_not_delivered_again_and_what_it_left_is_delivered_once(
    name, store_path
):
    rows = [
        row
        for row in manifest(name)["messages"]
        if row["kind"] in ("delayed", "timed") and row["acknowledged"]
    ]
    left = {row["unique_key"] for row in rows if not row["delivered"]}
    topics = {row["topic"] for row in manifest(name)["messages"]}
    for _ in range(2):
        async with opened(store_path) as store:
            service = ScheduleService(store, SystemClock(), ScheduleOptions())
            await service.start()
            # Two years after any time of theirs; the first sweep allows nothing yet of what is so
            # long overdue.
            for now_ms in (2_000_000_000_000, 2_000_000_001_000):
                await service.run_once(now_ms)
            page = await service.page(Wanted(ScheduleState), after=None, max_items=1_000)
            assert {one.state for one in page.items} == {ScheduleState.DELIVERED}
            queues = [
                queue
                for topic in await store.topics()
                if topic in topics
                for queue in await store.queues(topic)
            ]
            found = Counter(
                [
                    message.message_id
                    for queue in queues
                    async for message in everything(store, queue)
                ]
            )
        shutil.rmtree(store_path / "snapshots")

    assert left
    assert {row["unique_key"]: found[row["unique_key"]] for row in rows} == {
        row["unique_key"]: 1 for row in rows
    }


# --------------------------------------------------------------------------------------------------
# helpers


def walked(data: bytes, base_offset: int) -> scan.Scan:
    return scan.scan(data, base_offset, begin=base_offset, segment_end=base_offset + len(data))


def stored_records(store_path: Path) -> Iterator[tuple[Record, bytes]]:
    """Every record of the log and its bytes, in log order."""
    for path in sorted((store_path / "commitlog").iterdir()):
        data, base_offset = path.read_bytes(), names.base_offset(path.name)
        walk = walked(data, base_offset)
        for offset, length in zip(
            walk.record_offsets.tolist(), walk.record_bytes.tolist(), strict=True
        ):
            raw = data[offset - base_offset : offset - base_offset + length]
            yield records.decode(raw), raw


def as_served(record: Record, raw: bytes) -> dict[str, Any]:
    """The record in the words of the manifest: what the Java client was served."""
    found = properties.decode(record.properties)
    body = opened_body(record)
    # the id of a message that has none
    place = record.store_host + record.physical_offset.to_bytes(8, "big")
    row = {
        "topic": record.topic,
        "queue_id": record.queue_number,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": len(raw),
        "sys_flag": record.sys_flag & ~records.COMPRESSED,
        "flag": record.flag,
        "born_timestamp": record.born_at_ms,
        "born_host": str(ip_address(record.born_host[:-4])),
        "store_timestamp": record.stored_at_ms,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
        "stored_body_crc": record.body_crc,
        "body_length": len(body),
        "body_sha256": sha256(body).hexdigest(),
        "msg_id": found.get(properties.MESSAGE_ID, place.hex().upper()),
        "properties": found,
    }
    return row | {"body": body.decode()} if record.topic == names.OP_TOPIC else row


def transaction_topics(store_path: Path) -> tuple[list[Half], list[OpMessage]]:
    """Everything in the half topic and in the op topic, by queue offset."""
    messages = [records.to_message(record) for record, _ in stored_records(store_path)]
    halves = [check_pass.half_of(message) for message in messages if message.queue == HALF_QUEUE]
    ops = [check_pass.op_of(message) for message in messages if message.queue == OP_QUEUE]
    return halves, ops


def committed_by_the_broker(store_path: Path) -> tuple[int, int]:
    """How far its check service had come in the half queue and in the op queue."""
    text = (store_path / "config" / "consumerOffset.json").read_text()
    table = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', text))["offsetTable"]
    half, op = (
        table.get(f"{queue.topic}@CID_RMQ_SYS_TRANS", {}).get("0", 0)
        for queue in (HALF_QUEUE, OP_QUEUE)
    )
    return half, op


def opened_body(record: Record) -> bytes:
    if not record.sys_flag & records.COMPRESSED:
        return record.body
    opening = {
        0x100: lz4.frame.decompress,
        0x200: lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
        0x300: zlib.decompress,
    }
    return opening[record.sys_flag & 0x700](record.body)


def assert_is(message: StoredMessage, row: dict[str, Any]) -> None:
    """The message that the engine served is the record that the broker served."""
    own, reserved = properties.split(row["properties"])
    assert (message.queue, message.queue_offset) == (
        QueueId(row["topic"], row["queue_id"]),
        row["queue_offset"],
    )
    assert (message.log_offset, message.prepared_log_offset) == (
        row["physical_offset"],
        row["prepared_offset"],
    )
    assert (message.born_at_ms, message.stored_at_ms) == (
        row["born_timestamp"],
        row["store_timestamp"],
    )
    assert message.transaction == row["sys_flag"] & records.TRANSACTION_MASK
    assert message.header is not None
    flags = row["sys_flag"] & ~records.TRANSACTION_MASK
    assert message.header.sys_flag & ~records.COMPRESSED == flags
    assert (message.header.flag, message.header.reconsume_times) == (
        row["flag"],
        row["reconsume_times"],
    )
    assert str(ip_address(message.header.born_host[:-4])) == row["born_host"]
    assert message.message_id == reserved.pop(properties.MESSAGE_ID, "")
    assert message.key == reserved.pop(properties.KEYS, None)
    assert message.tag == reserved.pop(properties.TAGS, None)
    assert (message.properties, message.system) == (own, reserved)
    assert records.body_crc(message.body) == row["stored_body_crc"]


def public_rows(name: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The messages of the topics that clients read, in the order of each queue."""
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in sorted(manifest(name)["served"], key=lambda row: row["queue_offset"]):
        if row["topic"] in manifest(name)["topics"]:
            queues.setdefault((row["topic"], row["queue_id"]), []).append(row)
    return queues


def rows_of_topic(name: str, topic: str) -> list[dict[str, Any]]:
    rows = [row for row in manifest(name)["served"] if row["topic"] == topic]
    return sorted(rows, key=lambda row: row["queue_offset"])


def body_of(message: dict[str, Any]) -> bytes:
    """The body of a message as JSON."""
    assert "payload_problem" not in message
    payload = message["payload"].encode()
    return b64decode(payload) if message["payload_encoding"] == "base64" else payload


def queue_files(store_path: Path) -> dict[Path, bytes]:
    folder = store_path / "consumequeue"
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def broker_entries(store_path: Path) -> dict[Path, list[queue_entry.QueueEntry]]:
    return {
        path: [entry for entry in queue_entry.decode_all(data) if entry.record_bytes]
        for path, data in queue_files(store_path).items()
    }


@asynccontextmanager
async def opened(store_path: Path) -> AsyncIterator[LocalMessageStore]:
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    store = await LocalMessageStore.open(store_path, BROKERS_SETTINGS, OsVfs(), clock, identifiers)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def settled(
    store_path: Path,
) -> AsyncIterator[tuple[LocalMessageStore, TransactionCoordinator]]:
    """The store with a coordinator that has started on it."""
    async with opened(store_path) as store:
        clock = SystemClock()
        coordinator = TransactionCoordinator(
            store, clock, Identifiers(clock, SystemRandom()), TransactionOptions()
        )
        await coordinator.start()
        yield store, coordinator


async def bounds_of(store: LocalMessageStore, queue: QueueId) -> OffsetRange:
    try:
        return await store.offsets(queue)
    except (UnknownTopic, UnknownQueue):
        return OffsetRange(0, 0)  # nothing was ever stored there


async def everything(store: LocalMessageStore, queue: QueueId) -> AsyncIterator[StoredMessage]:
    at = (await store.offsets(queue)).first
    while messages := await store.read(queue, at, max_messages=50, max_bytes=64 << 10):
        for message in messages:
            yield message
        at += len(messages)


def moved(message: StoredMessage, queue: QueueId) -> Message:
    """The same message, to be appended to another queue."""
    return Message(
        **{name: getattr(message, name) for name in Message.__struct_fields__} | {"queue": queue}
    )
