"""What a broker writes beside ordinary messages is served, kept and counted by name, or refused."""

import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage.clock import SystemClock
from storage.errors import CorruptRecord, LogOfDLedger
from storage.files.vfs import OsVfs
from storage.formats import broker_records, names, properties, queue_entry
from storage.formats import inner_batch as inner_batch_format
from storage.formats import record as records
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.verify.verification import StoreVerification
from storage.message import QueueId
from tests.support.broker_log import INNER, REVIVE, BrokerLog, inner_batch, with_every_kind
from tests.support.builders import message

ORDERS = QueueId("orders", 0)
SEGMENT_BYTES = 1 << 18
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES, queue_file_entries=100, index_slots=100, index_file_entries=400
)


@asynccontextmanager
async def opened(root: Path):
    clock = SystemClock()
    store = await LocalMessageStore.open(
        root, OPTIONS, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    try:
        yield store
    finally:
        await store.aclose()


async def bodies(store: LocalMessageStore, queue: QueueId = ORDERS, at: int = 0) -> list[bytes]:
    found = await store.read(queue, at, max_messages=100, max_bytes=1 << 20)
    return [one.body for one in found]


def with_batches(root: Path, *, count: int | None = None) -> BrokerLog:
    """An ordinary message, an inner batch of three, and one more."""
    log = BrokerLog(root, segment_bytes=SEGMENT_BYTES)
    log.append("orders", b"before", {properties.MESSAGE_ID: "before"})
    inner_batch(log, "orders", INNER, count=count)
    log.append("orders", b"behind", {properties.MESSAGE_ID: "behind"})
    log.close()
    return log


# --------------------------------------------------------------------------------------------------
# inner batches


async def test_the_messages_of_an_inner_batch_are_served_one_by_one(tmp_path):
    with_batches(tmp_path)

    async with opened(tmp_path) as store:
        found = await store.read(ORDERS, 0, max_messages=100, max_bytes=1 << 20)
        from_the_middle = await bodies(store, at=2)
        of_each = await store.read_each([(ORDERS, 3), (ORDERS, 1)], max_bytes=1 << 20)
        tagged = await store.read_tagged(
            ORDERS, 0, tag_codes={queue_entry.tag_hash("red")}, max_scanned=100, max_messages=100,
            max_bytes=1 << 20,
        )  # fmt: skip
        (placed,) = await store.append([message(b"ours")])

    assert [one.body for one in found] == [b"before", b"one", b"two", b"three", b"behind"]
    assert [one.queue_offset for one in found] == list(range(5))
    assert [one.message_id for one in found[1:4]] == ["inner_0", "inner_1", "inner_2"]
    assert [one.tag for one in found[1:4]] == ["red", "blue", "red"]
    assert from_the_middle == [b"two", b"three", b"behind"]
    assert [one.body for one in of_each] == [b"three", b"one"]
    assert [one.body for one in tagged.messages] == [b"one", b"three"]
    assert placed.queue_offset == 5


async def test_the_messages_of_an_inner_batch_are_served_by_the_queue_files_too(tmp_path):
    """After a clean stop nothing is in memory; a start without snapshots finds the same."""
    with_batches(tmp_path)
    expected = [b"before", b"one", b"two", b"three", b"behind"]
    async with opened(tmp_path):
        pass

    async with opened(tmp_path) as store:
        by_records = await store.read_records(
            ORDERS, 0, tag_codes=None, max_scanned=100, max_messages=100, max_bytes=1 << 20
        )
        assert await bodies(store) == expected
        assert [one.body for one in by_records.records] == expected
        assert store.block_now(ORDERS, 1, count=3, max_bytes=1 << 20) is None
        assert store.block_now(ORDERS, 1, count=1, max_bytes=1 << 20) is None


async def test_an_inner_batch_is_taken_apart_once_for_a_read_of_many_of_its_messages(
    tmp_path, monkeypatch
):
    log = BrokerLog(tmp_path, segment_bytes=SEGMENT_BYTES)
    inner_batch(log, "orders", [(b"%d" % number, "red") for number in range(90)])
    log.close()
    async with opened(tmp_path):
        pass
    taken_apart, decoded = [], []
    messages, decode = inner_batch_format.messages, records.decode
    monkeypatch.setattr(
        inner_batch_format, "messages", lambda body: (taken_apart.append(1), messages(body))[1]
    )

    async with opened(tmp_path) as store:
        monkeypatch.setattr(
            records, "decode", lambda raw: (decoded.append(len(raw)), decode(raw))[1]
        )
        assert len(await bodies(store)) == 90
        tagged = await store.read_tagged(
            ORDERS, 0, tag_codes={queue_entry.tag_hash("blue")}, max_scanned=90, max_messages=90,
            max_bytes=1 << 20,
        )  # fmt: skip

    assert tagged.next_offset == 90
    assert len(taken_apart) <= 2
    assert decoded.count(max(decoded)) <= 2  # the batch, among what it is made of


async def test_an_entry_into_an_inner_batch_that_is_damaged_is_made_again(tmp_path):
    with_batches(tmp_path)
    async with opened(tmp_path):
        pass
    (path,) = (tmp_path / "consumequeue" / "orders" / "0").iterdir()
    data = bytearray(path.read_bytes())
    data[2 * queue_entry.ENTRY_BYTES : 3 * queue_entry.ENTRY_BYTES] = b"\x07" * 20
    path.write_bytes(data)

    async with opened(tmp_path) as store:
        assert await bodies(store, at=2) == [b"two", b"three", b"behind"]
        assert store.status().rebuilt_entries == 1


async def test_an_inner_batch_that_does_not_have_its_messages_is_refused_by_name(tmp_path):
    """What lies around it is served."""
    with_batches(tmp_path, count=4)

    async with opened(tmp_path) as store:
        assert await bodies(store) == [b"before"]
        with pytest.raises(CorruptRecord, match="the batch counts 4 messages and has 3"):
            await bodies(store, at=1)
        assert await bodies(store, at=5) == [b"behind"]


@pytest.mark.parametrize(
    ("stated", "taken"),
    [(0, 1), (1, 1), (32_767, 32_767), (32_768, 1), (99_999, 1), (100_000, 1)],
)
def test_an_inner_batch_takes_as_many_queue_offsets_as_a_broker_can_count(stated, taken):
    own = f"INNER_NUM\x01{stated}\x02".encode()

    assert inner_batch_format.width(inner_batch_format.FLAG, own) == taken


async def test_a_verification_finds_nothing_wrong_with_inner_batches(tmp_path):
    with_batches(tmp_path)

    async with opened(tmp_path):
        pass
    verification = StoreVerification(OsVfs(), tmp_path, is_running=False)

    assert [finding for step in verification.steps() for finding in step.findings] == []


# --------------------------------------------------------------------------------------------------
# what is counted


async def test_the_start_log_counts_what_a_broker_left_by_its_kind(tmp_path):
    expected = with_every_kind(tmp_path)

    with capture_logs() as logs:
        async with opened(tmp_path) as store:
            assert await bodies(store) == [
                b"ordinary", b"one", b"two", b"three", b"light", b"last"
            ]  # fmt: skip
            assert await bodies(store, QueueId("bills", 0)) == [b"light"]
            assert await bodies(store, QueueId("%RETRY%shop+orders", 0)) == [b"popped"]
            assert (await store.offsets(QueueId(REVIVE, 3))).end == 2

    (found,) = [one for one in logs if one["event"] == "records_of_a_broker"]
    assert {name: found[name] for name in expected} == expected
    assert list(broker_records.KINDS) == list(expected)


async def test_what_this_service_writes_is_none_of_these_kinds(tmp_path):
    async with opened(tmp_path) as store:
        for topic in ("orders", names.REPLY_TOPIC, names.LEASE_TOPIC):
            await store.create_topic(topic, queue_count=1)
            await store.append([message(queue=QueueId(topic, 0))])
    for path in (tmp_path / "snapshots").iterdir():
        path.unlink()

    with capture_logs() as logs:
        async with opened(tmp_path) as store:
            assert store.recovery.replayed_records == 3

    assert "records_of_a_broker" not in [one["event"] for one in logs]


def test_the_note_of_a_repair_is_in_no_queue_and_none_of_a_brokers():
    own = b"UNIQ_KEY\x01m\x02"

    assert broker_records.kind_of(names.LOST_TOPIC.encode(), 0xC, own) is None
    assert broker_records.kind_of(b"orders", 0xC, own) == "unqueued"


async def test_queues_of_another_kind_beside_ours_do_no_harm(tmp_path):
    """RocksDB has its files in the same folder, a light queue a folder of its own."""
    with_batches(tmp_path)
    light = tmp_path / "consumequeue" / "%LMQ%a" / "0"
    light.mkdir(parents=True)
    (light / names.file_name(0)).write_bytes(bytes(2_000))
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000004")

    for _ in range(2):
        async with opened(tmp_path) as store:
            assert len(await bodies(store)) == 5

    assert (light / names.file_name(0)).exists()
    assert (tmp_path / "consumequeue" / "CURRENT").read_text() == "MANIFEST-000004"


# --------------------------------------------------------------------------------------------------
# what is refused


async def test_a_log_of_dledger_is_refused_and_no_byte_of_it_changed(tmp_path):
    with_batches(tmp_path)
    path = tmp_path / "commitlog" / names.file_name(0)
    entry = b"".join(
        [(1).to_bytes(4, "big"), (500).to_bytes(4, "big"), bytes(40), path.read_bytes()[:452]]
    )
    data = entry + bytes(SEGMENT_BYTES - len(entry))
    path.write_bytes(data)

    with pytest.raises(LogOfDLedger, match="found an entry of DLedger"):
        async with opened(tmp_path):
            pass

    assert path.read_bytes() == data


async def test_a_folder_of_dledger_is_refused_though_an_older_log_lies_beside_it(tmp_path):
    with_batches(tmp_path)
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    (data / names.file_name(0)).write_bytes(b"\x01")

    with pytest.raises(LogOfDLedger, match=re.escape(f"{data}: found a log of DLedger")):
        async with opened(tmp_path):
            pass
