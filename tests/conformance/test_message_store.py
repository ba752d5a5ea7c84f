"""What every engine promises behind the seam (storage/store.py)."""

import asyncio

import msgspec
import pytest

from storage.errors import (
    InvalidRequest,
    OffsetBeyondEnd,
    OffsetExpired,
    StoreClosed,
    UnknownQueue,
    UnknownTopic,
)
from storage.formats.queue_entry import tag_hash
from storage.formats.record import HOST
from storage.formats.row import rows_of
from storage.message import (
    DueEntry,
    Durability,
    OffsetRange,
    Placed,
    QueueId,
    RecordHeader,
    Row,
    StoredMessage,
    TransactionBits,
)
from storage.store import KeyQuery, MessageStore, Snapshot, WaitingTimers, find_message
from tests.support.builders import message, messages

FIRST = QueueId("orders", 0)
SECOND = QueueId("orders", 1)
EVERYTHING = {"max_messages": 1_000, "max_bytes": 1 << 30}


BROKERS = RecordHeader(
    flag=-1, sys_flag=0x303, born_host=bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F]), reconsume_times=7
)
IPV6 = RecordHeader(flag=7, sys_flag=0x12, born_host=bytes(range(20)), reconsume_times=1)
HEADERS = {"ours": None, "a broker's": BROKERS, "born at an IPv6 address": IPV6}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
async def test_what_was_appended_is_read_with_every_field(store, header):
    sent = message(
        b"\x00\xff body",
        key="key-1",
        tag="tag",
        properties={"own": "väl", "empty": ""},
        system={"__SHARDINGKEY": "customer"},
        transaction=TransactionBits.COMMIT,
        prepared_log_offset=8,
        header=header,
        born_at_ms=1_700_000_000_001,
    )

    (appended,) = await store.append([sent])
    (found,) = await store.read(FIRST, 0, **EVERYTHING)

    for field in sent.__struct_fields__:
        assert getattr(found, field) == getattr(sent, field), field
    assert found.ordering_key == "customer"
    (record,), _ = await store.read_records(FIRST, 0, max_scanned=1, **EVERYTHING)
    assert msgspec.structs.replace(record.message(), log_offset=found.log_offset) == found
    assert (found.queue, found.queue_offset, found.stored_at_ms) == (
        appended.queue,
        appended.queue_offset,
        appended.stored_at_ms,
    )
    assert found.log_offset == appended.log_offset


async def append_rows(
    store: MessageStore, rows: list[Row], *, durability: Durability | None = None
) -> Placed:
    answer = asyncio.get_running_loop().create_future()
    store.append_rows(
        rows, durability=durability, done=answer.set_result, failed=answer.set_exception
    )
    assert not answer.done()
    return await answer


@pytest.mark.parametrize(
    "durability", [None, Durability.MEMORY, Durability.BUFFERED, Durability.SYNCED]
)
async def test_messages_appended_as_rows_are_stored_as_messages_are(store, durability):
    given = [
        message(b"1", message_id="m1", key="k", tag="t", queue=SECOND),
        message(
            b"",
            message_id="m2",
            properties={"own": "väl", "empty": ""},
            system={"__SHARDINGKEY": "customer"},
        ),
        message(
            b"3",
            message_id="m3",
            key="a b",
            transaction=TransactionBits.COMMIT,
            prepared_log_offset=8,
            header=IPV6,
            queue=SECOND,
        ),
        message(b"4", message_id="m4", header=BROKERS, queue=SECOND),
    ]
    expected = await store.append(given)

    placed = await append_rows(store, rows_of(given), durability=durability)
    await store.flush()

    assert list(placed.queue_offsets) == [3, 1, 4, 5]
    assert placed.stored_at_ms >= expected[0].stored_at_ms
    found = [*await store.read(FIRST, 0, **EVERYTHING), *await store.read(SECOND, 0, **EVERYTHING)]
    by_place = {one.log_offset: one for one in found}
    for one, before, log_offset in zip(given, expected, placed.log_offsets, strict=True):
        first, second = by_place[before.log_offset], by_place[log_offset]
        for field in one.__struct_fields__:
            assert getattr(second, field) == getattr(first, field) == getattr(one, field), field
        assert second.stored_at_ms == placed.stored_at_ms


async def test_rows_that_are_refused_raise_at_once_and_store_nothing(store):
    good, unknown = rows_of([message(), message(queue=QueueId("orders", 2))])
    with pytest.raises(UnknownQueue):
        await append_rows(store, [good, unknown])
    with pytest.raises(UnknownTopic):
        await append_rows(store, rows_of([message(queue=QueueId("nothing", 0))]))
    with pytest.raises(InvalidRequest):
        await append_rows(store, [])
    assert await store.offsets(FIRST) == OffsetRange(0, 0)

    await store.aclose()
    with pytest.raises(StoreClosed):
        await append_rows(store, [good])


async def test_offsets_of_each_queue_rise_by_one_in_the_order_given(store):
    given = [
        message(bytes([n]), queue=[FIRST, SECOND][n % 2], message_id=f"m{n}") for n in range(10)
    ]

    appended = await store.append(given)

    assert [(place.queue, place.queue_offset) for place in appended] == [
        ([FIRST, SECOND][n % 2], n // 2) for n in range(10)
    ]
    assert [found.message_id for found in await store.read(SECOND, 0, **EVERYTHING)] == [
        "m1",
        "m3",
        "m5",
        "m7",
        "m9",
    ]
    assert await store.offsets(FIRST) == OffsetRange(0, 5)


async def test_appends_of_one_caller_keep_their_order(store):
    for n in range(30):
        await store.append([message(str(n).encode(), message_id=f"m{n}")])

    assert [int(found.body) for found in await store.read(FIRST, 0, **EVERYTHING)] == list(
        range(30)
    )


async def test_appends_at_the_same_time_are_all_stored_once(store):
    answers = await asyncio.gather(
        *[store.append([message(message_id=f"m{n}")]) for n in range(50)]
    )

    offsets = [place.queue_offset for (place,) in answers]
    found = await store.read(FIRST, 0, **EVERYTHING)
    assert sorted(offsets) == list(range(50))
    assert {one.message_id: one.queue_offset for one in found} == {
        f"m{n}": offsets[n] for n in range(50)
    }


async def test_appending_nothing_is_nothing(store):
    assert await store.append([]) == []
    assert await store.offsets(FIRST) == OffsetRange(0, 0)


async def test_what_other_machines_are_to_have_is_refused_where_there_are_none(store):
    with pytest.raises(InvalidRequest):
        await store.append([message()], durability=Durability.REPLICATED)
    with pytest.raises(InvalidRequest):
        await append_rows(store, rows_of([message()]), durability=Durability.REPLICATED)

    assert store.stored_offset() == 0


async def test_an_append_of_nearly_as_many_bytes_as_one_may_take_is_stored(store):
    body = b"x" * (min(store.append_limit_bytes(), 1 << 20) - 1_000)

    await store.append([message(), message(body)])

    assert (await store.read(FIRST, 1, **EVERYTHING))[0].body == body


@pytest.mark.parametrize("durability", [Durability.BUFFERED, Durability.SYNCED])
async def test_an_append_can_ask_for_more_or_for_less_and_is_readable_in_the_end(store, durability):
    (appended,) = await store.append([message()], durability=durability)

    assert await store.wait_for_arrival(FIRST, appended.queue_offset, timeout_ms=10_000)
    assert appended.durable or durability is Durability.BUFFERED
    assert len(await store.read(FIRST, 0, **EVERYTHING)) == 1


async def test_a_message_for_an_unknown_queue_stores_nothing_of_its_call(store):
    with pytest.raises(UnknownQueue):
        await store.append([message(), message(queue=QueueId("orders", 2))])
    with pytest.raises(UnknownTopic):
        await store.append([message(), message(queue=QueueId("nowhere", 0))])

    assert await store.offsets(FIRST) == OffsetRange(0, 0)


async def test_reading_at_the_end_is_empty_and_behind_it_an_error_with_the_bounds(store):
    await store.append(messages(3))

    assert await store.read(FIRST, 3, **EVERYTHING) == []
    with pytest.raises(OffsetBeyondEnd) as caught:
        await store.read(FIRST, 4, **EVERYTHING)
    assert (caught.value.requested, caught.value.available) == (4, (0, 3))


async def test_a_read_is_no_longer_than_asked_for(store):
    await store.append(messages(10, body_bytes=100))

    assert len(await store.read(FIRST, 2, max_messages=3, max_bytes=1 << 20)) == 3
    assert len(await store.read(FIRST, 2, max_messages=100, max_bytes=350)) == 3
    assert len(await store.read(FIRST, 2, max_messages=100, max_bytes=300)) == 3
    assert len(await store.read(FIRST, 2, max_messages=100, max_bytes=299)) == 2


async def test_one_message_always_comes_even_if_it_is_too_large(store):
    await store.append([message(b"x" * 5_000, message_id="large"), message(message_id="small")])

    assert [
        found.message_id for found in await store.read(FIRST, 0, max_messages=10, max_bytes=1)
    ] == ["large"]


async def test_unknown_topics_and_queues_are_told_apart(store):
    nowhere, no_queue = QueueId("nowhere", 0), QueueId("orders", 7)

    for ask in (
        lambda queue: store.read(queue, 0, **EVERYTHING),
        store.offsets,
        lambda queue: store.wait_for_arrival(queue, 0, timeout_ms=1),
        lambda queue: store.committed_offset("group", queue),
        lambda queue: store.commit_offset("group", queue, 0),
    ):
        with pytest.raises(UnknownTopic):
            await ask(nowhere)
        with pytest.raises(UnknownQueue):
            await ask(no_queue)
    with pytest.raises(UnknownTopic):
        await store.queues("nowhere")


async def test_a_topic_may_grow_and_not_shrink(store):
    await store.append(messages(3))

    await store.create_topic("orders", queue_count=2)
    await store.create_topic("orders", queue_count=4)

    assert await store.queues("orders") == tuple(QueueId("orders", n) for n in range(4))
    assert await store.offsets(FIRST) == OffsetRange(0, 3)
    with pytest.raises(InvalidRequest):
        await store.create_topic("orders", queue_count=3)


async def test_a_reader_waits_until_something_arrives(store):
    waiting = asyncio.ensure_future(store.wait_for_arrival(FIRST, 1, timeout_ms=20_000))
    await store.append([message(queue=SECOND)])
    await store.append([message()])
    assert not waiting.done()

    await store.append([message()])

    assert await waiting


async def test_a_reader_does_not_wait_for_what_is_there(store):
    await store.append([message()])

    assert await store.wait_for_arrival(FIRST, 0, timeout_ms=0)


async def test_a_reader_waits_no_longer_than_it_said(store):
    assert not await store.wait_for_arrival(FIRST, 0, timeout_ms=5)


async def test_a_waiting_reader_is_let_go_when_the_store_closes(store):
    waiting = asyncio.ensure_future(store.wait_for_arrival(FIRST, 0, timeout_ms=60_000))
    await asyncio.sleep(0)

    await store.aclose()

    assert not await waiting


async def test_many_readers_are_woken_by_one_arrival(store):
    waiting = [
        asyncio.ensure_future(store.wait_for_arrival(FIRST, 0, timeout_ms=20_000))
        for _ in range(100)
    ]
    await asyncio.sleep(0)

    await store.append([message()])

    assert all(await asyncio.gather(*waiting))


async def test_an_arrival_calls_each_who_waits_for_it_once(store):
    called: list[str] = []
    store.call_on_arrival(FIRST, 0, lambda: called.append("one"))
    store.call_on_arrival(FIRST, 0, lambda: called.append("two"))

    await store.append([message()])
    await store.append([message()])

    assert sorted(called) == ["one", "two"]


async def test_who_is_called_on_an_arrival_is_called_at_once_where_it_is_there(store):
    await store.append([message()])
    called: list[bool] = []

    store.call_on_arrival(FIRST, 0, lambda: called.append(True))

    assert called == [True]
    with pytest.raises(UnknownTopic):
        store.call_on_arrival(QueueId("nothing", 0), 0, lambda: None)


async def test_a_call_that_is_forgotten_is_not_made(store):
    called: list[str] = []
    forgotten, other = (lambda: called.append("forgotten")), (lambda: called.append("other"))
    for call in (forgotten, other):
        store.call_on_arrival(FIRST, 0, call)

    store.forget_call(FIRST, forgotten)
    store.forget_call(FIRST, forgotten)
    store.forget_call(SECOND, other)
    await store.append([message()])

    assert called == ["other"]


async def test_who_is_called_on_an_arrival_is_called_when_the_store_closes_and_when_the_topic_is_deleted(
    store,
):
    await store.create_topic("gone", queue_count=1)
    called: list[str] = []
    store.call_on_arrival(QueueId("gone", 0), 0, lambda: called.append("gone"))
    store.call_on_arrival(FIRST, 0, lambda: called.append("first"))

    await store.delete_topic("gone")
    assert "gone" in called
    await store.aclose()
    assert "first" in called

    store.call_on_arrival(FIRST, 0, lambda: called.append("later"))
    assert "later" in called


async def test_a_group_continues_where_it_said_forwards_and_backwards(store):
    await store.append(messages(5))
    assert await store.committed_offset("group", FIRST) is None

    for offset in (3, 5, 0):
        await store.commit_offset("group", FIRST, offset)
        assert await store.committed_offset("group", FIRST) == offset

    assert await store.committed_offset("another", FIRST) is None
    with pytest.raises(OffsetBeyondEnd):
        await store.commit_offset("group", FIRST, 6)
    with pytest.raises(OffsetBeyondEnd):
        await store.commit_offset("group", FIRST, -1)


async def test_the_offsets_of_a_deleted_group_are_forgotten_and_those_of_others_stay(store):
    for group in ("billing", "shipping"):
        for queue in (FIRST, SECOND):
            await store.commit_offset(group, queue, 0)
    assert store.committed_count() == 4

    await store.forget_offsets("billing")
    await store.forget_offsets("never")

    assert (set(store.committed_queues("billing")), store.committed_count()) == (set(), 2)
    assert set(store.committed_queues("shipping")) == {FIRST, SECOND}
    assert await store.committed_offset("billing", FIRST) is None
    await store.commit_offset("billing", FIRST, 0)
    assert list(store.committed_queues("billing")) == [FIRST]


async def test_a_closed_store_takes_nothing_and_gives_nothing(store):
    await store.append([message()])

    await store.aclose()
    await store.aclose()

    with pytest.raises(StoreClosed):
        await store.append([message()])
    with pytest.raises(StoreClosed):
        await store.read(FIRST, 0, **EVERYTHING)
    with pytest.raises(StoreClosed):
        await store.commit_offset("group", FIRST, 0)


async def test_a_closed_store_answers_no_read_and_takes_no_change(store):
    await store.append([message(tag="a", key="k")])
    await store.commit_offset("group", FIRST, 1)
    await store.aclose()
    scan, entry = {"max_scanned": 1, **EVERYTHING}, DueEntry(1, 2, 3)

    for refused in (
        lambda: store.read(FIRST, 0, **EVERYTHING),
        lambda: store.read_tagged(FIRST, 0, tag_codes={97}, **scan),
        lambda: store.read_records(FIRST, 0, **scan),
        lambda: store.read_each([(FIRST, 0)], max_bytes=1),
        lambda: store.find_messages(KeyQuery("k", topics=["orders"], max_messages=1)),
        lambda: store.load_snapshot("table"),
        lambda: store.read_due(None, until_ms=9, max_entries=1),
        lambda: store.holds_due(entry),
        lambda: store.count_due(until_ms=9),
        lambda: store.flush(),
        lambda: store.delete_topic("orders"),
        lambda: store.forget_offsets("group"),
        lambda: append_rows(store, rows_of([message()])),
    ):
        with pytest.raises(StoreClosed):
            await refused()
    with pytest.raises(StoreClosed):
        store.block_now(FIRST, 0, count=1, max_bytes=1 << 20)


async def test_messages_that_lie_anywhere_are_read_together_each_or_the_reason_why_it_is_not_to_be_had(
    store,
):
    await store.append(messages(5))
    await store.append([message(b"other", queue=SECOND)])
    places = [
        (FIRST, 4),
        (SECOND, 0),
        (FIRST, 5),
        (FIRST, 0),
        (FIRST, 1),
        (QueueId("nowhere", 0), 0),
    ]

    found = await store.read_each(places, max_bytes=1 << 20)

    one_by_one = [
        (await store.read(*place, max_messages=1, max_bytes=1))[0]
        for place in places
        if place[0].topic == "orders" and place[1] < 5
    ]
    assert [one for one in found if isinstance(one, StoredMessage)] == one_by_one
    assert [type(found[2]), type(found[5])] == [OffsetBeyondEnd, UnknownTopic]


async def test_the_bounds_of_a_queue_are_its_offsets(store):
    await store.append(messages(3))

    assert store.bounds(FIRST) == await store.offsets(FIRST) == (0, 3)
    with pytest.raises(UnknownTopic):
        store.bounds(QueueId("nothing", 0))
    with pytest.raises(UnknownQueue):
        store.bounds(QueueId("orders", 2))


async def test_a_block_has_the_records_of_its_messages_or_is_left_to_an_ordinary_read(store):
    await store.append(messages(5))
    await store.flush()

    block = store.block_now(FIRST, 1, count=3, max_bytes=1 << 20)

    records, _ = await store.read_records(FIRST, 1, max_scanned=3, **EVERYTHING)
    assert block is None or block.data == b"".join(record.data for record in records)
    with pytest.raises(UnknownTopic):
        store.block_now(QueueId("nothing", 0), 0, count=1, max_bytes=1 << 20)
    with pytest.raises(UnknownQueue):
        store.block_now(QueueId("orders", 2), 0, count=1, max_bytes=1 << 20)


async def test_space_can_be_reserved_and_is_used_by_appends_from_the_reserve(store):
    store.set_reserve(1 << 14)

    (appended,) = await store.append([message()], from_reserve=True)

    assert appended.queue_offset == 0
    assert 0 <= store.pressure() <= 1


async def test_a_call_before_the_write_is_made_later_and_the_rows_that_it_appends_are_stored(store):
    stored = asyncio.get_running_loop().create_future()
    called: list[bool] = []

    def append() -> None:
        called.append(True)
        store.append_rows(
            rows_of([message()]),
            durability=None,
            done=stored.set_result,
            failed=stored.set_exception,
        )

    store.before_write(append)

    assert called == []
    assert list((await stored).queue_offsets) == [0]
    assert called == [True]


async def test_no_reader_waits_once_the_service_stops_and_messages_are_still_stored(store):
    waiting = asyncio.ensure_future(store.wait_for_arrival(FIRST, 0, timeout_ms=60_000))
    called: list[str] = []
    store.call_on_arrival(FIRST, 0, lambda: called.append("before"))
    await asyncio.sleep(0)

    store.stop_waiting()

    assert await waiting is False
    assert await store.wait_for_arrival(FIRST, 0, timeout_ms=60_000) is False
    store.call_on_arrival(FIRST, 0, lambda: called.append("after"))
    assert called == ["before", "after"]
    await store.append([message()])
    assert len(await store.read(FIRST, 0, **EVERYTHING)) == 1


async def test_there_is_no_progress_of_delays_by_another_server_where_there_was_none(store):
    store.keep_delay_progress({FIRST: 3})
    store.keep_waiting_timers(WaitingTimers([], 3))

    assert store.delay_progress_by_others() is None


async def test_an_engine_with_files_of_its_own_reports_them_and_another_has_none(store):
    await store.append([message()])
    await store.flush()

    if store.admin is not None:
        assert store.admin.status().durable_end == store.synced_offset()
        assert [one.begin for one in await store.admin.segments()][:1] == [0]


async def test_a_message_is_found_from_where_it_is_expected(store):
    await store.append(messages(150))

    found = await find_message(store, FIRST, 3, "msg_140")

    assert found is not None
    assert found.queue_offset == 140
    assert await find_message(store, FIRST, 0, "no such id") is None


async def test_topics_with_messages_are_listed_and_others_are_not(store):
    await store.create_topic("empty", queue_count=1)
    await store.append([message()])

    listed = await store.topics()

    assert listed["orders"] == 2
    assert "empty" not in listed


async def test_a_buffered_message_is_durable_after_a_wait_for_it(store):
    (appended,) = await store.append([message()], durability=Durability.BUFFERED)

    await store.wait_durable(appended.log_offset)

    assert store.sureness_of(appended.log_offset).durable


async def test_after_a_flush_all_that_was_stored_before_is_durable(store):
    (appended,) = await store.append([message()], durability=Durability.BUFFERED)

    synced_offset = await store.flush()

    assert appended.log_offset < synced_offset == store.synced_offset() <= store.stored_offset()
    assert store.sureness_of(appended.log_offset).durable


async def test_the_last_snapshot_of_a_name_is_given_back(store):
    await store.append(messages(3))

    await store.save_snapshot("table", Snapshot((b"old",), {FIRST: 1}))
    await store.save_snapshot("table", Snapshot((b"ne", b"w"), {FIRST: 3}))

    kept = await store.load_snapshot("table")
    assert kept is not None
    assert (kept.data, kept.positions) == (b"new", {FIRST: 3})
    assert await store.load_snapshot("missing") is None


# --------------------------------------------------------------------------------------------------
# messages by their keys


async def ids_of(store, key, **given) -> list[str]:
    return [
        found.message_id
        for found in await store.find_messages(
            KeyQuery(key, **{"topics": ["orders"], "max_messages": 100, **given})
        )
    ]


async def test_a_message_is_found_by_its_id_and_by_each_of_its_keys_as_soon_as_it_can_be_read(
    store,
):
    await store.append(
        [
            message(b"x", message_id="m1", key="8812 customer-7"),
            message(b"8812", message_id="m2", key="9000"),
        ]
    )

    assert await ids_of(store, "m1", by_id=True) == ["m1"]
    assert await ids_of(store, "8812") == ["m1"]
    assert await ids_of(store, "customer-7") == ["m1"]
    assert await ids_of(store, "9000") == ["m2"]
    for never_an_id in ("8812", "m", "m11", ""):
        assert await ids_of(store, never_an_id, by_id=True) == []
    for never_a_key in ("m1", "88", "8812 customer-7", "customer", "m", "orders"):
        assert await ids_of(store, never_a_key) == []


async def test_messages_that_share_one_of_several_keys_are_found_by_it_newest_first(store):
    for number, key in enumerate(["a b", "b", "c b a", " b  d ", "b b", " "]):
        await store.append([message(b"x", message_id=f"m{number}", key=key)])

    assert await ids_of(store, "b") == ["m4", "m3", "m2", "m1", "m0"]
    assert await ids_of(store, "a") == ["m2", "m0"]
    assert await ids_of(store, "d") == ["m3"]
    assert await ids_of(store, "b", max_messages=2) == ["m4", "m3"]
    for never_a_key in ("", " ", "a b", "b b"):
        assert await ids_of(store, never_a_key) == []


async def test_what_a_key_finds_is_as_it_was_stored(store):
    await store.append(
        [message(b"the body", message_id="m1", key="väl", tag="t", properties={"a": "b"})]
    )

    (found,) = await store.find_messages(KeyQuery("väl", topics=["orders"], max_messages=1))

    (read,) = await store.read(FIRST, 0, **EVERYTHING)
    assert found == read


async def test_messages_of_one_key_come_newest_first_and_no_more_than_asked_for(store):
    for n in range(300):
        await store.append(
            [message(b"x", message_id=f"m{n}", key="same", queue=[FIRST, SECOND][n % 2])]
        )

    assert await ids_of(store, "same", max_messages=1_000) == [
        f"m{n}" for n in reversed(range(300))
    ]
    assert await ids_of(store, "same", max_messages=3) == ["m299", "m298", "m297"]
    assert await ids_of(store, "same", max_messages=0) == []
    for max_bytes, found in ((0, 2), (1, 2), (2, 3), (10, 11), (1_000, 300)):
        assert len(await ids_of(store, "same", max_messages=1_000, max_bytes=max_bytes)) == found
    third = (await store.find_messages(KeyQuery("same", topics=["orders"], max_messages=3)))[-1]
    assert await ids_of(store, "same", older_than=third.log_offset, max_messages=2) == [
        "m296",
        "m295",
    ]


async def test_only_the_topics_asked_for_are_searched(store):
    await store.create_topic("emails", queue_count=1)
    await store.append(
        [
            message(b"x", message_id="m1", key="k"),
            message(b"x", message_id="m2", key="k", queue=QueueId("emails", 0)),
        ]
    )

    assert await ids_of(store, "k") == ["m1"]
    assert await ids_of(store, "k", topics=["emails"]) == ["m2"]
    assert await ids_of(store, "k", topics=["emails", "orders", "nowhere"]) == ["m2", "m1"]
    assert await ids_of(store, "k", topics=[]) == []


async def test_a_lookup_keeps_to_its_time(store):
    (first,) = await store.append([message(b"x", message_id="m1", key="k")])
    at_ms = first.stored_at_ms

    assert await ids_of(store, "k", from_ms=at_ms, to_ms=at_ms) == ["m1"]
    assert await ids_of(store, "k", from_ms=at_ms + 1) == []
    assert await ids_of(store, "k", to_ms=at_ms - 1) == []


async def test_a_closed_store_finds_nothing_any_more(store):
    await store.append([message(b"x", message_id="m1")])
    await store.aclose()

    with pytest.raises(StoreClosed):
        await ids_of(store, "m1", by_id=True)


# --------------------------------------------------------------------------------------------------
# by the log offset of a receipt


async def test_a_message_is_found_at_the_log_offset_of_its_receipt_and_nowhere_else(store):
    await store.create_topic("emails", queue_count=1)
    sent = [
        message(b"1" * 300, message_id="m1"),
        message(b"2", message_id="m2", queue=SECOND, key="k", header=IPV6),
        message(b"", message_id="m3", queue=QueueId("emails", 0)),
    ]
    placed = [*await store.append(sent[:2]), *await store.append(sent[2:])]

    both = ["orders", "emails"]
    for one, where in zip(sent, placed, strict=True):
        (found,) = await store.read_at(where.log_offset, topics=both)
        assert [found] == await store.read(one.queue, where.queue_offset, **EVERYTHING)
    starts = {one.log_offset for one in placed}
    for other in {*range(store.stored_offset() + 9), 1 << 62} - starts:
        assert await store.read_at(other, topics=both) == []


async def test_only_messages_of_the_topics_asked_for_are_found_at_a_log_offset(store):
    (placed,) = await store.append([message()])
    at = placed.log_offset

    assert await store.read_at(at, topics=["emails"]) == []
    assert await store.read_at(at, topics=[]) == []
    assert len(await store.read_at(at, topics=["emails", "orders"])) == 1
    await store.delete_topic("orders")
    assert await store.read_at(at, topics=["orders"]) == []
    await store.create_topic("orders", queue_count=2)
    assert await store.read_at(at, topics=["orders"]) == []


async def test_a_message_is_found_at_a_log_offset_of_the_store_that_it_names(store):
    (placed,) = await store.append([message(header=BROKERS)])

    assert len(await store.read_at(placed.log_offset, topics=["orders"], store_host=HOST)) == 1
    for other in (BROKERS.born_host, IPV6.born_host, HOST[:-1], b""):
        assert await store.read_at(placed.log_offset, topics=["orders"], store_host=other) == []


async def test_a_closed_store_finds_nothing_at_a_log_offset(store):
    (placed,) = await store.append([message()])
    await store.aclose()

    with pytest.raises(StoreClosed):
        await store.read_at(placed.log_offset, topics=["orders"])


# --------------------------------------------------------------------------------------------------
# by tag code


async def test_of_tags_only_those_with_a_wanted_hash_are_read_and_what_was_looked_at_is_said(store):
    tags = ["a", None, "b", "a", "b", "AaAa", "BBBB", "c"]
    await store.append([message(message_id=f"m{n}", tag=tag) for n, tag in enumerate(tags)])

    async def read(at: int, *wanted: str, **limits: int) -> tuple[list[int], int]:
        codes = {tag_hash(tag) for tag in wanted}
        given = {"tag_codes": codes, "max_scanned": 1_000, **EVERYTHING, **limits}
        found = await store.read_tagged(FIRST, at, **given)
        offsets = [one.queue_offset for one in found.messages]
        records, next_offset = await store.read_records(FIRST, at, **given)
        assert ([one.queue_offset for one in records], next_offset) == (offsets, found.next_offset)
        return offsets, found.next_offset

    assert await read(0, "a", "c") == ([0, 3, 7], 8)
    assert await read(1, "a") == ([3], 8)
    assert await read(0, "AaAa") == ([5, 6], 8), "two tags of one hash: the caller compares"
    assert await read(0, "nothing") == ([], 8)
    assert await read(0, "b", max_scanned=3) == ([2], 3)
    assert await read(0, "a", max_messages=1) == ([0], 3)
    assert await read(8, "a") == ([], 8)


async def test_a_read_by_tag_ends_before_the_bytes_are_too_many_but_not_before_its_first_message(
    store,
):
    await store.append(
        [message(b"x" * 100, message_id=f"m{n}", tag="ab"[n % 2]) for n in range(10)]
    )

    async def read(max_bytes: int) -> tuple[int, int]:
        found = await store.read_tagged(
            FIRST,
            0,
            tag_codes={tag_hash("b")},
            max_scanned=100,
            max_messages=100,
            max_bytes=max_bytes,
        )
        return len(found.messages), found.next_offset

    assert await read(1) == (1, 3)
    assert await read(299) == (2, 5)
    assert await read(500) == (5, 10)


async def test_a_read_by_tag_spans_what_is_in_memory_and_what_is_in_files(store):
    for start in range(0, 2_000, 100):
        await store.append(
            [
                message(message_id=f"m{n}", tag="rare" if n % 97 == 0 else "often")
                for n in range(start, start + 100)
            ]
        )

    found = await store.read_tagged(
        FIRST, 3, tag_codes={tag_hash("rare")}, max_scanned=5_000, **EVERYTHING
    )

    assert [one.queue_offset for one in found.messages] == list(range(97, 2_000, 97))
    assert found.next_offset == 2_000


async def test_a_read_by_tag_asks_for_what_is_there(store):
    await store.append([message(tag="a")])

    with pytest.raises(OffsetBeyondEnd):
        await store.read_tagged(FIRST, 2, tag_codes={97}, max_scanned=10, **EVERYTHING)
    with pytest.raises(UnknownQueue):
        await store.read_tagged(
            QueueId("orders", 2), 0, tag_codes={97}, max_scanned=10, **EVERYTHING
        )


# --------------------------------------------------------------------------------------------------
# deleted topics


async def test_what_a_deleted_topic_had_can_neither_be_read_nor_looked_up(store):
    await store.append([message(b"1", queue=FIRST, key="k")])
    await store.commit_offset("billing", FIRST, 1)

    await store.delete_topic("orders")
    await store.delete_topic("orders")  # a second time nothing happens

    for refused in (
        store.read(FIRST, 0, max_messages=1, max_bytes=1),
        store.append([message(queue=FIRST)]),
        store.queues("orders"),
        store.offsets(FIRST),
        store.committed_offset("billing", FIRST),
    ):
        with pytest.raises(UnknownTopic):
            await refused
    assert await store.find_messages(KeyQuery("k", topics=["orders"], max_messages=9)) == []


async def test_what_a_deleted_topic_had_is_found_where_it_is_asked_for_though_the_topic_exists_again(
    store,
):
    await store.append([message(b"1", queue=FIRST, key="k")])
    await store.delete_topic("orders")
    gone = await store.find_messages(
        KeyQuery("k", topics=["orders"], with_deleted=True, max_messages=9)
    )
    await store.create_topic("orders", queue_count=2)
    await store.append([message(b"2", queue=FIRST, key="k")])
    both = await store.find_messages(
        KeyQuery("k", topics=["orders"], with_deleted=True, max_messages=9)
    )

    assert [one.body for one in gone] == [b"1"]
    assert [one.body for one in both] == [b"2", b"1"]


async def test_a_topic_created_under_the_name_of_a_deleted_one_goes_on_at_its_offsets(store):
    await store.append([message(queue=FIRST, key="k"), message(queue=FIRST)])
    await store.commit_offset("billing", FIRST, 1)

    await store.delete_topic("orders")
    assert store.deleted_queues() == 1  # the other has no end to be remembered
    await store.create_topic("orders", queue_count=3)
    assert store.deleted_queues() == 0
    (appended, other) = await store.append(
        [message(b"new", queue=FIRST, key="k"), message(queue=SECOND)]
    )

    assert (appended.queue_offset, other.queue_offset) == (2, 0)
    assert await store.offsets(FIRST) == (2, 3)
    assert await store.committed_offset("billing", FIRST) is None
    assert [
        one.body
        for one in await store.find_messages(KeyQuery("k", topics=["orders"], max_messages=9))
    ] == [b"new"]
    assert [one.body for one in await store.read(FIRST, 2, max_messages=9, max_bytes=99)] == [
        b"new"
    ]
    with pytest.raises(OffsetExpired):
        await store.read(FIRST, 1, max_messages=1, max_bytes=1)


async def test_appends_taken_before_a_deletion_are_answered_and_do_not_outlive_it(store):
    taken = [asyncio.ensure_future(store.append([message(queue=FIRST)])) for _ in range(5)]
    await asyncio.sleep(0)

    await store.delete_topic("orders")
    answered = await asyncio.gather(*taken)
    await store.create_topic("orders", queue_count=2)

    assert [one.queue_offset for (one,) in answered] == [0, 1, 2, 3, 4]
    assert await store.offsets(FIRST) == (5, 5)


async def test_a_reader_that_waits_in_a_topic_is_woken_when_it_is_deleted(store):
    waiting = asyncio.ensure_future(store.wait_for_arrival(FIRST, 0, timeout_ms=60_000))
    await asyncio.sleep(0)

    await store.delete_topic("orders")

    assert await waiting is False
