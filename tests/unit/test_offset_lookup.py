"""A log offset that a client names gives the message of that place, and never bytes that only look
like one.
"""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storage.clock import SystemClock
from storage.errors import CorruptRecord
from storage.files.vfs import OsVfs
from storage.formats import names, offset_id
from storage.formats import record as records
from storage.formats.offset_id import OffsetId
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.broker_log import INNER, BrokerLog, broker_record, inner_batch
from tests.support.builders import message, messages
from tests.support.golden import manifest, unpack

ORDERS = QueueId("orders", 0)
TOPICS = ["orders"]
OPTIONS = LocalStoreOptions(segment_bytes=1 << 18, index_slots=100, index_file_entries=400)
BODY_AT = records.FIXED_BYTES - 3  # before the lengths of topic and properties


@asynccontextmanager
async def opened(root: Path, options: LocalStoreOptions = OPTIONS):
    clock = SystemClock()
    store = await LocalMessageStore.open(
        root, options, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    try:
        if "orders" not in await store.topics():
            await store.create_topic("orders", queue_count=1)
        yield store
    finally:
        await store.aclose()


async def with_messages(root: Path, count: int = 3) -> list[int]:
    """The log offsets of some messages of a store that was closed."""
    async with opened(root) as store:
        return [one.log_offset for one in await store.append(messages(count, body_bytes=500))]


def change(root: Path, at: int, raw: bytes) -> None:
    with (root / "commitlog" / names.file_name(0)).open("r+b") as file:
        file.seek(at)
        file.write(raw)


async def test_a_record_in_the_body_of_a_message_is_no_message(tmp_path):
    """Its sender knows where the body will be, and may state any topic and queue offset."""
    async with opened(tmp_path) as store:
        first, _ = await store.append(messages(2))
        for queue_offset in (0, 2, 3):
            place = store.stored_offset() + BODY_AT
            forged = broker_record(place, b"forged", topic="orders", queue_offset=queue_offset)
            (sent,) = await store.append([message(forged)])
            assert sent.log_offset + BODY_AT == place
            assert store._log.read_at(place).body == b"forged", "by its bytes it is a whole record"

            assert await store.read_at(place, topics=TOPICS) == []
            (found,) = await store.read_at(sent.log_offset, topics=TOPICS)
            assert found.body == forged
        assert len(await store.read_at(first.log_offset, topics=TOPICS)) == 1


async def test_a_length_in_a_body_that_leads_to_the_end_of_its_record_is_no_damage(tmp_path):
    async with opened(tmp_path) as store:
        begin = store.stored_offset()
        await store.append([message(bytes(200))])
        record_bytes = store.stored_offset() - begin
        body = (record_bytes - BODY_AT).to_bytes(4, "big") + bytes(196)
        (sent,) = await store.append([message(body)])
        assert store.stored_offset() == sent.log_offset + record_bytes

        assert await store.read_at(sent.log_offset + BODY_AT, topics=TOPICS) == []


async def test_a_message_is_found_at_its_place_after_a_start_too(tmp_path):
    offsets = await with_messages(tmp_path)

    async with opened(tmp_path) as store:
        found = [await store.read_at(at, topics=TOPICS) for at in offsets]

    assert [[one.message_id for one in here] for here in found] == [["msg_0"], ["msg_1"], ["msg_2"]]


@pytest.mark.parametrize(
    ("at", "raw"), [(BODY_AT + 7, b"\xff"), (records.MAGIC_AT, b"\0"), (35, b"\xff")],
    ids=["body", "magic", "stated place"],
)  # fmt: skip
async def test_a_damaged_record_is_damaged_by_its_log_offset_too(tmp_path, at, raw):
    first, second, third = await with_messages(tmp_path)
    change(tmp_path, second + at, raw)

    async with opened(tmp_path) as store:
        with pytest.raises(CorruptRecord) as caught:
            await store.read_at(second, topics=TOPICS)
        assert caught.value.physical_offset == second
        for whole in (first, third):
            assert len(await store.read_at(whole, topics=TOPICS)) == 1


async def test_the_log_offset_of_an_inner_batch_gives_all_of_its_messages_and_no_others(tmp_path):
    log = BrokerLog(tmp_path, segment_bytes=OPTIONS.segment_bytes)
    before = log.append("orders", b"before", {})
    many = inner_batch(log, "orders", [(b"%d" % number, "red") for number in range(150)])
    three = inner_batch(log, "orders", INNER)
    behind = log.append("orders", b"behind", {})
    log.close()

    async with opened(tmp_path) as store:

        async def bodies(log_offset: int) -> list[bytes]:
            return [one.body for one in await store.read_at(log_offset, topics=TOPICS)]

        assert await bodies(before.log_offset) == [b"before"]
        assert await bodies(many.log_offset) == [b"%d" % number for number in range(150)]
        assert await bodies(three.log_offset) == [b"one", b"two", b"three"]
        assert await bodies(behind.log_offset) == [b"behind"]


async def test_every_offset_message_id_that_a_broker_answered_leads_to_its_message(tmp_path):
    root = unpack("public-1", tmp_path)
    said = [one for one in manifest("public-1")["messages"] if one["offset_msg_id"]]
    options = LocalStoreOptions(segment_bytes=1 << 20, queue_file_entries=1_000)
    found = {}

    async with opened(root, options) as store:
        topics = [*await store.topics()]
        for one in said:
            place = offset_id.decode(one["offset_msg_id"])
            for stored in await store.read_at(
                place.log_offset, topics=topics, store_host=place.store_host
            ):
                found[one["offset_msg_id"]] = stored.message_id

    assert len(said) > 100
    assert found == {
        one["offset_msg_id"]: one.get("unique_key_in_store", one["unique_key"]) for one in said
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "7F454D5100002A9F00000000000012C8",
            OffsetId(bytes.fromhex("7F454D5100002A9F"), 0x12C8),
        ),
        ("20010db8" + "0" * 24 + "00002A9FFFFFFFFFFFFFFFFF", OffsetId(
            bytes.fromhex("20010db8" + "0" * 24 + "00002A9F"), (1 << 64) - 1)),
        ("7F454D5100002A9F00000000000012C", None),
        ("7F454D5100002A9F00000000000012CG", None),
        ("msg_7F454D5100002A9F0000000012C8", None),
        ("7F454D5100002A9F00000000000012C8\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_an_offset_message_id_names_a_broker_and_a_log_offset(text, expected):
    assert offset_id.decode(text) == expected
    if expected is not None:
        assert offset_id.encode(expected) == text.upper()
