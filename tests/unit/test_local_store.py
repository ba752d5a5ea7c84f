"""The embedded engine's own promises, on a simulated disk: when it answers, what it shows, how it
fails, what it refuses.
"""

import asyncio
import errno
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from random import Random

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from storage.errors import (
    Backpressure,
    CorruptRecord,
    FlushFailed,
    MessageTooLarge,
    StorageFull,
    StoreClosed,
    UnknownFormat,
    UnknownTopic,
)
from storage.files.faulty import FaultyVfs
from storage.files.simulated import SimulatedDisk
from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.names import file_name
from storage.formats.row import rows_of
from storage.local.lanes.runner import Lane
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.local.queues import replay
from storage.local.repair.repair import Repair
from storage.message import Appended, Durability, Placed, QueueId, StoredMessage
from storage.store import Snapshot
from tests.support.builders import message, messages
from tests.support.lives import in_world, with_world
from tests.support.simulation import ROOT, SimulatedClock, SimulatedLoop, SlowSync, World

QUEUE = QueueId("orders", 0)
EVERYTHING = {"max_messages": 1_000, "max_bytes": 1 << 30}
SMALL = {
    "segment_bytes": 16_384,
    "queue_file_entries": 10,
    "prepare_ahead_bytes": 8_192,
    "index_slots": 16,
    "index_file_entries": 40,
}


def options(**given) -> LocalStoreOptions:
    return LocalStoreOptions(**{**SMALL, **given})


async def open_with_orders(world: World, given: LocalStoreOptions) -> LocalMessageStore:
    store = await world.open_store(given)
    await store.create_topic("orders", queue_count=1)
    return store


def segment(disk: SimulatedDisk, base: int = 0) -> bytes:
    file = disk.open(ROOT / "commitlog" / file_name(base))
    return file.read(0, file.size())


def units(disk: SimulatedDisk) -> list[int]:
    """How many records each unit of the first segment has."""
    raw, at, sizes = segment(disk), 0, []
    while isinstance(step := scan.judge(raw, at, 0, segment_end=len(raw)), scan.Unit):
        sizes.append(len(step.records))
        at = step.end
    return sizes


def damage(disk: SimulatedDisk, offset: int, base: int = 0) -> None:
    """Flip one bit on the disk itself."""
    file = disk.open(ROOT / "commitlog" / file_name(base))
    (byte,) = file.read(offset - base, 1)
    file.write(offset - base, bytes([byte ^ 1]))
    file.sync()


# -------------------------------------------------------------------------------------------------
# units and group commit


def test_the_sends_of_one_turn_are_one_unit_and_one_sync():
    async def main(world):
        store = await open_with_orders(world, options())
        await asyncio.sleep(0.5)  # until the preparer is done
        syncs = world.disk.syncs
        await asyncio.gather(*[store.append([message()]) for _ in range(5)])
        assert world.disk.syncs - syncs == 1

    disk = in_world(main)

    assert units(disk) == [5]


def test_rows_that_are_appended_just_before_the_write_are_in_the_unit_of_their_turn():
    async def main(world):
        store = await open_with_orders(world, options())
        await asyncio.sleep(0.5)
        answers = [asyncio.get_running_loop().create_future() for _ in range(3)]

        def append(answer: asyncio.Future[Placed]) -> None:
            store.append_rows(
                rows_of([message()]),
                durability=None,
                done=answer.set_result,
                failed=answer.set_exception,
            )

        store.before_write(lambda: append(answers[0]))
        append(answers[1])
        store.before_write(lambda: append(answers[2]))
        await asyncio.gather(*answers)

    assert units(in_world(main)) == [3]


def test_rows_are_written_though_a_call_before_the_write_fails():
    async def main(world):
        store = await open_with_orders(world, options())

        def fail() -> None:
            raise ValueError("of the caller")

        called = []
        store.before_write(fail)
        store.before_write(lambda: called.append(True))
        with capture_logs() as logs:
            first = await store.append([message()])
        again = await store.append([message()])
        assert called == [True], "calls behind it are made, too"
        assert [line["event"] for line in logs] == ["callback_failed"]
        assert first[0].durable
        assert again[0].durable

    in_world(main)


@pytest.mark.parametrize(
    ("flush", "durability", "waits"),
    [
        (FlushPolicy.BEFORE_ACK, None, True),
        (FlushPolicy.BEFORE_ACK, Durability.SYNCED, True),
        (FlushPolicy.BEFORE_ACK, Durability.BUFFERED, False),
        (FlushPolicy.INTERVAL, Durability.SYNCED, True),
        (FlushPolicy.INTERVAL, None, False),
    ],
)
@with_world()
async def test_the_places_of_rows_that_wait_for_a_sync_are_reported_meanwhile(
    world, flush, durability, waits
):
    store = await open_with_orders(world, options(flush=flush))
    await asyncio.sleep(0.5)
    answer = asyncio.get_running_loop().create_future()
    reported = []

    def report(placed: Placed) -> None:
        assert not answer.done()
        assert store.synced_offset() <= placed.log_offsets[0]
        reported.append(placed)

    store.append_rows(
        rows_of(messages(2)),
        durability=durability,
        done=answer.set_result,
        failed=answer.set_exception,
        written=report,
    )
    placed = await answer
    await asyncio.sleep(0)

    assert reported == ([placed] if waits else [])


@with_world()
async def test_no_places_are_reported_to_an_append_that_was_refused_before(world):
    store = await open_with_orders(world, options())
    await asyncio.sleep(0.5)
    refused, reported = asyncio.get_running_loop().create_future(), []
    store.append_rows(
        rows_of([message()]),
        durability=None,
        done=refused.set_exception,
        failed=refused.set_result,
        written=reported.append,
    )
    # after the turn that writes, before the one that reports
    world.runner.soon(lambda: store._engine.fail(OSError("simulated")))

    assert isinstance(await refused, FlushFailed)
    await asyncio.sleep(0.5)
    assert reported == []


def test_what_arrives_during_a_sync_goes_with_the_next_one():
    async def main(world):
        store = await open_with_orders(world, options())
        await asyncio.sleep(0.5)
        first = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [asyncio.ensure_future(store.append([message()])) for _ in range(5)]
        await asyncio.gather(first, *rest)

    assert units(in_world(main)) == [1, 5]


class Flushes:
    """When each flush of the log begins, in seconds of the world."""

    def __init__(self, world: World) -> None:
        self.begun: list[float] = []
        self._beside = world.runner.beside
        self._loop = world.loop
        world.runner.beside = self.beside  # type: ignore[method-assign]

    def beside(self, lane, job, done, failed) -> None:
        if lane is Lane.FLUSH:
            self.begun.append(self._loop.now)
        self._beside(lane, job, done, failed)


async def append_buffered(store: LocalMessageStore, body: bytes = b"body") -> Appended:
    (appended,) = await store.append([message(body)], durability=Durability.BUFFERED)
    return appended


@with_world()
async def test_flushes_for_which_nothing_waits_begin_five_milliseconds_apart_and_take_all_with_them(
    world,
):
    store = await open_with_orders(world, options())
    await asyncio.sleep(0.5)
    flushes = Flushes(world)

    for _ in range(100):
        newest = await append_buffered(store)
        await asyncio.sleep(0.001)
    await store.wait_durable(newest.log_offset)

    gaps = [later - earlier for earlier, later in pairwise(flushes.begun[:-1])]
    assert min(gaps) > 0.0039, "clocks of whole milliseconds"
    assert 10 <= len(gaps) <= 25


@pytest.mark.parametrize("waits", ["nothing", "a reader", "an append", "a caller", "much"])
@with_world()
async def test_a_flush_begins_at_once_only_where_something_waits_for_it(world, waits):
    store = await open_with_orders(world, options(flush_max_bytes=4_096))
    await asyncio.sleep(0.5)
    flushes = Flushes(world)
    await store.append([message()])
    asked_at = world.loop.now
    assert asked_at - flushes.begun[0] < 0.004, "the last one has only just begun"
    waiting: list[asyncio.Future[object]] = []
    if waits == "a reader":
        arrival = store.wait_for_arrival(QUEUE, 1, timeout_ms=1_000)
        waiting.append(asyncio.ensure_future(arrival))
        await asyncio.sleep(0)

    appended = await append_buffered(store)
    if waits == "an append":
        waiting.append(asyncio.ensure_future(store.append([message()])))
    elif waits == "a caller":
        waiting.append(asyncio.ensure_future(store.wait_durable(appended.log_offset)))
    elif waits == "much":
        await append_buffered(store, b"x" * 4_096)
    await asyncio.sleep(0.0001)

    is_at_once = flushes.begun[-1] == asked_at
    assert is_at_once == (waits != "nothing")
    await asyncio.sleep(0.02)
    assert store.sureness_of(appended.log_offset).durable
    assert all(one.done() for one in waiting)


@with_world()
async def test_the_first_flush_after_a_pause_begins_at_once(world):
    store = await open_with_orders(world, options())
    await asyncio.sleep(0.5)
    flushes = Flushes(world)
    asked_at = world.loop.now

    await append_buffered(store)
    await asyncio.sleep(0)

    assert flushes.begun == [asked_at]


def test_a_unit_never_crosses_a_segment():
    async def main(world):
        store = await open_with_orders(world, options())
        for n in range(30):
            await store.append(
                [
                    message(b"x" * 1_000, message_id=f"a{n}"),
                    message(b"y" * 1_000, message_id=f"b{n}"),
                ]
            )
        found = await store.read(QUEUE, 0, **EVERYTHING)
        assert [one.message_id for one in found] == [
            f"{letter}{n}" for n in range(30) for letter in "ab"
        ]

    disk = in_world(main)

    raw = segment(disk)
    walk = scan.scan(raw, 0, begin=0, segment_end=len(raw))
    assert walk.stop is scan.Stop.END_OF_FILE
    assert records.start(raw, walk.end) == (len(raw) - walk.end, records.MAGIC_END_OF_FILE)
    assert disk.exists(ROOT / "commitlog" / file_name(len(raw)))


@with_world()
async def test_a_turn_that_does_not_fit_the_rest_of_a_segment_is_split_between_its_calls(world):
    store = await open_with_orders(world, options())
    await store.append([message(b"x" * 14_000)])
    await asyncio.gather(
        *[store.append([message(b"y" * 700, message_id=f"m{n}")] * 2) for n in range(4)]
    )
    assert [one.message_id for one in await store.read(QUEUE, 1, **EVERYTHING)] == [
        f"m{n}" for n in range(4) for _ in "ab"
    ]


@with_world()
async def test_an_append_that_no_segment_holds_is_refused_and_the_others_of_its_turn_are_stored(
    world,
):
    store = await open_with_orders(world, options())
    answers = await asyncio.gather(
        store.append([message(message_id="before")]),
        store.append([message(b"x" * 17_000)]),
        store.append([message(message_id="after")]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], MessageTooLarge)
    assert answers[1].limit_bytes == 16_384 - records.END_OF_FILE_BYTES
    found = await store.read(QUEUE, 0, **EVERYTHING)
    assert [(one.queue_offset, one.message_id) for one in found] == [
        (0, "before"),
        (1, "after"),
    ]


@with_world()
async def test_the_largest_append_that_a_segment_holds_is_stored(world):
    store = await open_with_orders(world, options())
    spare = len(
        unit.encode(
            rows_of([message(b"")]),
            [0],
            first_offset=0,
            synced_offset=0,
            epoch=1,
            stored_at_ms=0,
        ).data
    )
    largest = 16_384 - records.END_OF_FILE_BYTES - spare
    largest -= largest % 8
    await store.append([message(b"x" * largest)])
    with pytest.raises(MessageTooLarge):
        await store.append([message(b"x" * (largest + 8))])


@with_world()
async def test_more_than_may_wait_is_refused_and_stores_nothing(world):
    store = await open_with_orders(world, options(max_queued_bytes=3_000))
    answers = await asyncio.gather(
        *[store.append([message(b"x" * 500)]) for _ in range(10)], return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, Backpressure)]
    assert refused
    assert (await store.offsets(QUEUE)).end == 10 - len(refused)
    await store.append([message()])  # and goes on when there is room again
    assert store.status().queued_bytes == 0


# ---------------------------------------------------------------------------------------- when it
# answers, what it shows


@with_world()
async def test_before_ack_nobody_sees_a_message_before_it_is_durable(world):
    store = await open_with_orders(world, options())
    sending = asyncio.ensure_future(store.append([message()], durability=Durability.BUFFERED))
    (appended,) = await sending
    assert not appended.durable
    assert (await store.offsets(QUEUE)).end == 0

    await store.wait_durable(appended.log_offset)

    assert (await store.offsets(QUEUE)).end == 1


@with_world()
async def test_by_interval_a_message_is_seen_and_answered_at_once_and_synced_later(world):
    given = options(
        flush=FlushPolicy.INTERVAL, flush_interval_ms=50, flush_thorough_interval_ms=100
    )
    store = await open_with_orders(world, given)
    (appended,) = await store.append([message()])
    assert not appended.durable
    assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 1
    assert not store.sureness_of(appended.log_offset).durable

    await asyncio.sleep(0.3)

    assert store.sureness_of(appended.log_offset).durable


@with_world()
async def test_by_interval_a_waiting_reader_is_woken_before_a_buffered_append_is_answered(world):
    store = await open_with_orders(
        world, options(flush=FlushPolicy.INTERVAL, flush_interval_ms=60_000)
    )
    events: list[str] = []
    store.call_on_arrival(QUEUE, 0, lambda: events.append(f"woken at {store.bounds(QUEUE).end}"))
    appended = asyncio.get_running_loop().create_future()

    def answer(placed):
        events.append("answered")
        appended.set_result(placed)

    rows = rows_of([message()])
    store.append_rows(
        rows, durability=Durability.BUFFERED, done=answer, failed=appended.set_exception
    )

    assert not (await appended).durable
    assert events == ["woken at 1", "answered"]


@with_world()
async def test_an_append_is_answered_and_other_readers_are_woken_though_the_wake_up_of_one_fails(
    world,
):
    store = await open_with_orders(world, options())
    woken = []

    def fail():
        raise ValueError("of the reader")

    store.call_on_arrival(QUEUE, 0, fail)
    store.call_on_arrival(QUEUE, 0, lambda: woken.append(True))

    with capture_logs() as logs:
        (appended,) = await store.append([message()])

    assert appended.durable
    assert woken == [True]
    assert [line["event"] for line in logs] == ["wake_failed"]


class Sends:
    """Sends of one turn, of which the second one is answered by a function that fails."""

    def __init__(self) -> None:
        self.answers: dict[int, Placed | Exception] = {}
        self.reported: list[int] = []  # those whose places were, before they were answered

    def send(self, store: LocalMessageStore, durability: Durability | None) -> None:
        for number in range(4):
            store.append_rows(
                rows_of([message()]),
                durability=durability,
                done=partial(self._done, number),
                failed=partial(self._failed, number),
                written=partial(self._written, number),
            )

    def _done(self, number: int, placed: Placed) -> None:
        if number == 1:
            raise ValueError("of the answer")
        self.answers[number] = placed

    def _failed(self, number: int, error: Exception) -> None:
        self.answers[number] = error
        if number == 2:
            raise ValueError("of the refusal")

    def _written(self, number: int, _: Placed) -> None:
        if number == 1:
            raise ValueError("of the report")
        self.reported.append(number)


@pytest.mark.parametrize(
    ("flush", "durability"),
    [
        (FlushPolicy.BEFORE_ACK, None),
        (FlushPolicy.BEFORE_ACK, Durability.BUFFERED),
        (FlushPolicy.INTERVAL, None),
        (FlushPolicy.INTERVAL, Durability.SYNCED),
    ],
)
@with_world()
async def test_an_answer_that_fails_is_reported_to_its_caller_and_all_others_are_answered(
    world, flush, durability
):
    store, sends = await open_with_orders(world, options(flush=flush)), Sends()
    await asyncio.sleep(0.5)

    with capture_logs() as logs:
        sends.send(store, durability)
        (appended,) = await store.append([message()], durability=durability)
        await asyncio.sleep(0.1)

    assert {number: type(one) for number, one in sends.answers.items()} == {
        0: Placed,
        1: ValueError,
        2: Placed,
        3: Placed,
    }
    assert sends.reported in ([], [0, 2, 3])
    assert {line["event"] for line in logs} == {"callback_failed"}
    assert appended.queue_offset == 4, "what was not answered is stored"
    assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 5
    assert store.pressure() == 0
    await store.aclose()


@with_world()
async def test_all_sends_are_refused_where_one_fails_to_take_that(world):
    def plan(call: str, path: PurePath) -> None:
        if call == "sync" and path.parent.name == "commitlog" and sends.reported:
            raise OSError(errno.EIO, "simulated")

    sends = Sends()
    faulty(world, plan)
    store = await open_with_orders(world, options())
    await asyncio.sleep(0.5)
    slow = SlowSync(world)
    slow.is_stuck = True
    sends.send(store, None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sends.reported == [0, 2, 3]

    slow.release()
    await asyncio.sleep(0.1)

    assert [type(sends.answers[number]) for number in range(4)] == [FlushFailed] * 4
    assert len(world.failures) == 1
    await store.aclose()


@with_world()
async def test_a_send_that_cannot_be_encoded_is_refused_and_takes_no_place_of_its_queue(world):
    store, refused = await open_with_orders(world, options()), []
    (row,) = rows_of([message()])
    wrong = (*row[:3], 1 << 80, *row[4:])  # no field is so wide

    first = asyncio.ensure_future(store.append([message()]))
    await asyncio.sleep(0)
    store.append_rows([wrong], durability=None, done=refused.append, failed=refused.append)
    last = await store.append([message()])

    assert [type(one) for one in refused] == [struct.error]
    assert [one.queue_offset for one in (*await first, *last)] == [0, 1]
    assert [one.queue_offset for one in await store.read(QUEUE, 0, **EVERYTHING)] == [0, 1]


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("deriver", "note_visible"),
        ("deriver", "on_flushed"),
        ("preparer", "on_flushed"),
        ("copies", "note_own"),
        ("tail", "show"),
        ("flusher", "request"),
    ],
)
@with_world()
async def test_a_mistake_in_a_part_of_the_store_fails_it_and_nothing_waits_without_end(
    world, part, call
):
    world.raises_bugs = False
    store = await open_with_orders(world, options())
    await store.append([message()])
    await asyncio.sleep(0.5)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("of the part")

    before = getattr(store._engine, part)
    setattr(before, call, fail)
    waits = asyncio.gather(
        store.append([message()]),
        store.append([message()], durability=Durability.BUFFERED),
        store.commit_offset("billing", QUEUE, 1),
        return_exceptions=True,
    )
    with capture_logs() as logs:
        await asyncio.wait_for(waits, timeout=1)
    delattr(before, call)

    assert [str(failure) for failure in world.failures] == ["of the part"]
    assert "store_part_failed" in {line["event"] for line in logs}
    with pytest.raises(FlushFailed):
        await store.append([message()])
    await store.aclose()
    assert world.disk.exists(ROOT / "abort"), "the next start recovers"


@with_world()
async def test_by_interval_few_pages_wait_for_the_thorough_flush_and_many_for_the_next_interval(
    world,
):
    given = options(
        segment_bytes=65_536,
        flush=FlushPolicy.INTERVAL,
        flush_interval_ms=50,
        flush_thorough_interval_ms=10_000,
    )
    store = await open_with_orders(world, given)
    (few,) = await store.append([message()])
    await asyncio.sleep(5)
    assert not store.sureness_of(few.log_offset).durable

    (many,) = await store.append([message(b"x" * 17_000)])
    await asyncio.sleep(0.2)

    assert store.sureness_of(many.log_offset).durable
    assert store.sureness_of(few.log_offset).durable


@with_world()
async def test_by_interval_a_power_cut_can_take_no_more_than_the_limit_of_unsynced_bytes(world):
    given = options(flush=FlushPolicy.INTERVAL, flush_interval_ms=60_000, flush_max_bytes=4_096)
    store = await open_with_orders(world, given)
    for _ in range(20):
        await store.append([message(b"x" * 1_000)])
        await asyncio.sleep(0.02)
        status = store.status()
        assert status.written_end - status.durable_end < 4_096 + 1_200


@with_world()
async def test_by_interval_nobody_sees_what_must_be_durable_first_nor_what_lies_behind_it(world):
    store = await open_with_orders(
        world, options(flush=FlushPolicy.INTERVAL, flush_interval_ms=60_000)
    )
    must = asyncio.ensure_future(
        store.append([message(message_id="must")], durability=Durability.SYNCED)
    )
    behind = asyncio.ensure_future(store.append([message(message_id="behind")]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (await store.offsets(QUEUE)).end == 0
    assert not must.done()
    assert not behind.done()

    await asyncio.gather(must, behind)

    assert must.result()[0].durable
    assert [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)] == [
        "must",
        "behind",
    ]


@with_world()
async def test_a_send_whose_sync_takes_longer_than_the_limit_is_answered_as_not_durable_and_seen_later(
    world,
):
    disk = SlowSync(world)
    store = await open_with_orders(world, options(sync_timeout_ms=5_000))
    disk.is_stuck = True
    begun = world.loop.now
    (appended,) = await store.append([message()])
    assert not appended.durable
    assert world.loop.now - begun == pytest.approx(5.0, abs=0.1)
    assert (await store.offsets(QUEUE)).end == 0

    disk.release()

    assert await store.wait_for_arrival(QUEUE, 0, timeout_ms=1_000)


@with_world()
async def test_sends_behind_a_sync_that_does_not_come_back_are_answered_too(world):
    disk = SlowSync(world)
    store = await open_with_orders(world, options(sync_timeout_ms=5_000))
    disk.is_stuck = True
    first = asyncio.ensure_future(store.append([message()]))
    await asyncio.sleep(1)
    begun = world.loop.now
    (second,) = await store.append([message()])
    (third,) = await store.append([message()])
    assert not second.durable
    assert not third.durable
    assert world.loop.now - begun < 2 * 2 * 5.0
    await first

    disk.release()

    assert await store.wait_for_arrival(QUEUE, 2, timeout_ms=1_000)
    assert (await store.append([message()]))[0].durable


def test_an_offset_is_committed_only_when_it_is_on_disk_however_long_its_sync_takes():
    async def main(world):
        disk = SlowSync(world)
        store = await open_with_orders(world, options(sync_timeout_ms=5_000))
        await store.append(messages(2))
        await store.commit_offset("billing", QUEUE, 1)
        disk.is_stuck = True
        committing = asyncio.ensure_future(store.commit_offset("billing", QUEUE, 2))
        cancelled = asyncio.ensure_future(store.commit_offset("billing", QUEUE, 2))
        await asyncio.sleep(60)
        assert not committing.done()
        assert await store.committed_offset("billing", QUEUE) == 1
        cancelled.cancel()
        disk.release()
        await committing
        assert await store.committed_offset("billing", QUEUE) == 2

    async def again(world):
        store = await open_with_orders(world, options())
        assert await store.committed_offset("billing", QUEUE) == 2

    disk = in_world(main)
    for seed in range(10):
        in_world(again, disk.after_power_cut(Random(seed)))


def test_a_topic_is_whole_after_a_power_cut_that_took_its_deletion():
    outcomes = set()

    async def main(world):
        disk = SlowSync(world)
        store = await open_with_orders(world, options(sync_timeout_ms=5_000))
        await store.append(messages(2))
        await store.commit_offset("billing", QUEUE, 1)
        disk.is_stuck = True
        deleting = asyncio.ensure_future(store.delete_topic("orders"))
        await asyncio.sleep(60)  # snapshots are saved meanwhile
        assert not deleting.done()

    async def again(world):
        store = await open_with_orders(world, options())
        committed = await store.committed_offset("billing", QUEUE)
        outcomes.add((tuple(await store.offsets(QUEUE)), committed))

    disk = in_world(main)
    for seed in range(10):
        in_world(again, disk.after_power_cut(Random(seed)))
    # a power cut may leave the deletion: then the topic is made again
    assert outcomes == {((0, 2), 1), ((2, 2), None)}


@with_world()
async def test_of_messages_that_are_read_together_those_of_a_topic_deleted_meanwhile_are_refused(
    world,
):
    emails = QueueId("emails", 0)
    store = await open_with_orders(world, options())
    await store.create_topic("emails", queue_count=1)
    await store.append([message(), message(queue=emails)])
    await store.aclose()
    store = await open_with_orders(world, options())
    world.runner.hold_up(Lane.READ, seconds=0.5)
    reading = asyncio.ensure_future(store.read_each([(emails, 0), (QUEUE, 0)], max_bytes=1 << 20))
    await asyncio.sleep(0)
    await store.delete_topic("emails")

    refused, found = await reading

    assert isinstance(refused, UnknownTopic)
    assert isinstance(found, StoredMessage)


class PassingClock(SimulatedClock):
    """Ten milliseconds pass before one reading, as on a busy machine."""

    def __init__(self, loop: SimulatedLoop, wall_ms: int) -> None:
        super().__init__(loop, wall_ms)
        self.readings_before: int | None = None
        self._passed_ms = 0

    def monotonic_ms(self) -> int:
        if self.readings_before is not None:
            self._passed_ms += 10 * (self.readings_before == 0)
            self.readings_before -= 1
        return super().monotonic_ms() + self._passed_ms


@pytest.mark.parametrize("readings", range(6))
@with_world()
async def test_a_send_behind_a_slow_sync_is_answered_whenever_the_limit_passes(world, readings):
    """Of both the sync in flight and the sends: while it is worked out which of them are late."""
    disk = SlowSync(world)
    world.clock = clock = PassingClock(world.loop, world.clock.wall_ms())
    store = await open_with_orders(world, options(sync_timeout_ms=5_000))
    disk.is_stuck = True
    earlier = asyncio.ensure_future(store.append([message()]))
    await asyncio.sleep(0.1)
    behind = asyncio.ensure_future(store.append([message()]))
    await asyncio.sleep(4.895)
    clock.readings_before = readings

    await asyncio.wait([behind], timeout=20)

    assert behind.done()
    await earlier
    disk.release()
    await behind


@pytest.mark.parametrize("before", [0.0, 0.1, 2.5, 4.9])
@with_world()
async def test_the_limit_of_a_send_counts_from_when_it_was_taken_and_not_from_an_earlier_one(
    world, before
):
    disk = SlowSync(world)
    store = await open_with_orders(world, options(sync_timeout_ms=5_000))
    disk.is_stuck = True
    earlier = asyncio.ensure_future(store.append([message()]))
    await asyncio.sleep(before)
    begun = world.loop.now

    (appended,) = await store.append([message()])

    assert not appended.durable
    assert world.loop.now - begun == pytest.approx(5.0, abs=0.01)
    assert store.status().syncs.answered_before == 2
    await earlier
    disk.release()


@with_world()
async def test_a_buffered_send_behind_a_sync_that_does_not_come_back_is_answered_at_the_limit(
    world,
):
    disk = SlowSync(world)
    given = options(
        flush=FlushPolicy.INTERVAL,
        flush_interval_ms=60_000,
        slow_sync_ms=2_000,
        sync_timeout_ms=5_000,
    )
    store = await open_with_orders(world, given)
    disk.is_stuck = True
    stuck = asyncio.ensure_future(store.append([message()], durability=Durability.SYNCED))
    await asyncio.sleep(6)
    begun = world.loop.now

    (appended,) = await store.append([message()], durability=Durability.BUFFERED)

    assert not appended.durable
    assert world.loop.now - begun == pytest.approx(5.0, abs=0.01)
    await stuck
    disk.release()


@with_world()
async def test_a_slow_sync_is_reported_while_it_runs_and_when_it_has_ended(world):
    disk = SlowSync(world)
    store = await open_with_orders(world, options(warn_sync_ms=500))
    with structlog.testing.capture_logs() as lines:
        disk.is_stuck = True
        waiting = asyncio.ensure_future(store.append([message()]))
        await asyncio.sleep(0.4)
        assert lines == []
        await asyncio.sleep(0.3)
        (running,) = lines
        in_flight_ms = store.status().syncs.in_flight_ms
        await asyncio.sleep(2)
        disk.release()
        await waiting
        await store.append([message()])

    assert (running["event"], running["running_ms"], running["bytes"] > 0) == (
        "sync_is_slow",
        500,
        True,
    )
    assert in_flight_ms == pytest.approx(700, abs=10)
    (_, ended) = lines
    assert (ended["event"], ended["answered_before_sync"]) == ("sync_was_slow", 0)
    assert ended["took_ms"] == store.status().syncs.longest_ms == pytest.approx(2_700, abs=10)
    assert store.status().last_flush_ms < 500, (
        "the next sync was quick, and the longest one is kept"
    )
    assert sum(store.status().syncs.counts[-4:]) == 1


@with_world()
async def test_a_sync_that_takes_long_makes_buffered_sends_wait(world):
    disk = SlowSync(world)
    given = options(flush=FlushPolicy.INTERVAL, flush_interval_ms=60_000, slow_sync_ms=2_000)
    store = await open_with_orders(world, given)
    disk.is_stuck = True
    stuck = asyncio.ensure_future(store.append([message()], durability=Durability.SYNCED))
    await asyncio.sleep(1)
    assert not (await store.append([message()], durability=Durability.BUFFERED))[0].durable
    await asyncio.sleep(2)
    waiting = asyncio.ensure_future(store.append([message()], durability=Durability.BUFFERED))
    await asyncio.sleep(0.5)
    assert not waiting.done()

    disk.release()

    await waiting
    assert (await stuck)[0].durable


LARGE = {"segment_bytes": 8 << 20, "prepare_ahead_bytes": 4 << 20}


def test_a_large_append_lets_others_have_their_turns_and_what_comes_meanwhile_is_stored_behind_it():
    async def main(world):
        store = await open_with_orders(world, options(**LARGE))
        await store.append([message(message_id="before")])
        await asyncio.sleep(1)  # until there is room for it
        large = asyncio.ensure_future(
            store.append([message(bytes(3 << 20), message_id="large"), message(bytes(1 << 19))])
        )
        await asyncio.sleep(0)
        before = world.loop.turns
        small = asyncio.ensure_future(
            store.append([message(message_id="after")], durability=Durability.BUFFERED)
        )
        while store.stored_offset() < 3 << 20:
            assert not small.done()
            await asyncio.sleep(0)
        turns = world.loop.turns - before

        assert turns >= 3
        assert [one.queue_offset for one in await large] == [1, 2]
        assert [one.queue_offset for one in await small] == [3]
        await store.flush()
        found = await store.read(QUEUE, 0, **EVERYTHING)
        assert [len(one.body) for one in found] == [
            len(message().body),
            3 << 20,
            1 << 19,
            len(message().body),
        ]
        await store.aclose()

    disk = in_world(main)

    assert units(disk) == [1, 2, 1]


def test_a_process_that_is_killed_within_a_large_append_leaves_none_of_it():
    async def begin(world):
        store = await open_with_orders(world, options(**LARGE))
        await store.append([message(message_id="before")])
        await asyncio.sleep(1)
        large = asyncio.ensure_future(store.append([message(b"x" * (3 << 20))]))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not large.done()

    disk = in_world(begin)
    assert len(segment(disk).rstrip(b"\0")) > 4_096, "a part of it is in the page cache"

    async def again(world):
        store = await open_with_orders(world, options(**LARGE))
        await store.append([message(message_id="after")])
        return [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)]

    with World(disk, 2) as world:
        assert world.call(again(world)) == ["before", "after"]


def test_a_log_that_fails_within_a_large_append_acknowledges_nothing_of_it():
    failing = False

    def plan(call: str, path: PurePath) -> None:
        if failing and call == "sync" and path.parent.name == "commitlog":
            raise OSError(errno.EIO, "simulated")

    async def main(world):
        nonlocal failing
        faulty(world, plan)
        store = await open_with_orders(world, options(**LARGE, flush=FlushPolicy.INTERVAL))
        await store.append([message()])
        await asyncio.sleep(1)
        # a turn takes as long as a part of a sync
        world.runner.soon = lambda call: world.loop.call_later(0.0002, call)
        failing = True
        begin = store.stored_offset()
        first = asyncio.ensure_future(store.append([message()], durability=Durability.SYNCED))
        while store.stored_offset() == begin:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        large = asyncio.ensure_future(store.append([message(b"x" * (3 << 20))]))
        await asyncio.wait({first})
        assert b"xxx" in segment(world.disk), "a part of it is stored"
        last = asyncio.ensure_future(store.append([message()]))
        await asyncio.wait({first, large, last}, timeout=1)
        assert [call.done() and type(call.exception()) for call in (first, large, last)] == [
            FlushFailed
        ] * 3
        await store.aclose()

    in_world(main)


@with_world()
async def test_closing_answers_whatever_was_taken_and_takes_nothing_more(world):
    store = await open_with_orders(world, options())
    sending = [asyncio.ensure_future(store.append([message()])) for _ in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await store.append([message()])
    await closing
    assert all(answer[0].durable for answer in await asyncio.gather(*sending))


# --------------------------------------------------------------------------------------------------
# failures


def faulty(world: World, plan: Callable[[str, PurePath], None]) -> None:
    world.vfs = FaultyVfs(world.disk, plan)


def test_a_failed_sync_is_final_nobody_is_acknowledged_and_it_is_never_tried_again():
    world = World(SimulatedDisk(), 1)
    syncs: list[PurePath] = []
    failing = False

    def plan(call: str, path: PurePath) -> None:
        if call == "sync" and path.parent.name == "commitlog":
            syncs.append(path)
            if failing:
                raise OSError(errno.EIO, "simulated")

    async def main():
        nonlocal failing
        faulty(world, plan)
        store = await open_with_orders(world, options())
        await store.append([message()])
        await asyncio.sleep(1)
        failing = True
        waiting = [asyncio.ensure_future(store.append([message()])) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # behind the sync in flight
        waiting.append(asyncio.ensure_future(store.append([message()])))
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(answer, FlushFailed) for answer in answers)
        assert len(world.failures) == 1
        await asyncio.sleep(1)
        before = len(syncs)
        failing = False
        with pytest.raises(FlushFailed):
            await store.append([message()])
        await asyncio.sleep(20)
        await store.aclose()
        assert len(syncs) == before
        assert world.disk.exists(ROOT / "abort")  # the next start recovers

    with world:
        world.call(main())


@pytest.mark.parametrize(
    ("fails", "where"),
    [
        ("sync", "checkpoint"),
        ("sync_directory", str(ROOT)),
        ("close", "commitlog/*"),
        ("close", "consumequeue/*/*/*"),
        ("close", "index/*"),
    ],
)
@with_world()
async def test_a_close_that_fails_says_so_and_leaves_no_file_open_and_the_directory_free(
    world, fails, where
):
    failing = False

    def plan(call: str, path: PurePath) -> None:
        if failing and call == fails and path.match(where):
            raise OSError(errno.EIO, "simulated")

    faulty(world, plan)
    store = await open_with_orders(world, options())
    await store.append(messages(30))
    failing = True

    with pytest.raises(OSError, match="simulated"):
        await store.aclose()
    failing = False

    assert world.disk.open_files == 0
    again = await open_with_orders(world, options())
    assert len(await again.read(QUEUE, 0, **EVERYTHING)) == 30
    await again.aclose()


def test_a_full_disk_refuses_what_needs_space_and_goes_on_when_there_is_some_again():
    world = World(SimulatedDisk(), 1)
    is_full = False

    def plan(call: str, path: PurePath) -> None:
        if is_full and call == "allocate":
            raise OSError(errno.ENOSPC, "simulated")

    async def main():
        nonlocal is_full
        faulty(world, plan)
        store = await open_with_orders(world, options(prepare_ahead_bytes=4_096))
        await asyncio.sleep(0.5)
        is_full = True
        refused = 0
        for _ in range(20):
            try:
                await store.append([message(b"x" * 1_000)])
            except StorageFull:
                refused += 1
        assert 0 < refused < 20
        stored = (await store.offsets(QUEUE)).end
        assert stored == 20 - refused
        assert world.failures == []

        is_full = False
        await asyncio.sleep(2)

        await store.append([message(b"x" * 1_000)])
        assert len(await store.read(QUEUE, 0, **EVERYTHING)) == stored + 1

    with world:
        world.call(main())


def test_derived_files_that_do_not_fit_the_disk_wait_in_memory():
    world = World(SimulatedDisk(), 1)
    is_full = True

    def plan(call: str, path: PurePath) -> None:
        if is_full and call in ("write", "extend") and "consumequeue" in str(path):
            raise OSError(errno.ENOSPC, "simulated")
        if (
            is_full
            and call == "extend"
            and path.parent.name == "making"
            and path.name.startswith("0-")
        ):
            raise OSError(errno.ENOSPC, "simulated")

    async def main():
        nonlocal is_full
        faulty(world, plan)
        store = await open_with_orders(
            world, options(queue_flush_interval_ms=10, snapshot_interval_ms=20)
        )
        await store.append(messages(30))
        await asyncio.sleep(0.5)
        assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 30
        assert world.failures == []
        assert store.status().replay_backlog_bytes > 0

        is_full = False
        await asyncio.sleep(0.5)

        assert store.status().replay_backlog_bytes == 0

    with world:
        world.call(main())


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("where", ["consumequeue/*/*/*", "index/*"])
def test_what_a_full_disk_took_from_derived_files_as_they_were_synced_is_written_again(
    where, number
):
    syncs = 0

    def plan(call: str, path: PurePath) -> None:
        nonlocal syncs
        if call == "sync" and path.match(where):
            syncs += 1
            if syncs == number:  # its pages count as written from then on, and are not
                world.disk.fail_sync_number = world.disk.syncs + 1
                world.disk.sync_errno = errno.ENOSPC

    async def main() -> list[int]:
        faulty(world, plan)
        store = await open_with_orders(world, given)
        places = []
        for begin in range(0, 800, 40):
            sent = [message(key=f"key-{n}") for n in range(begin, begin + 40)]
            places += [appended.log_offset for appended in await store.append(sent)]
            await asyncio.sleep(0.02)
        with capture_logs() as logs:
            await asyncio.sleep(0.5)
        assert syncs > number
        assert store.status().replay_backlog_bytes == 0
        assert (world.failures, logs) == ([], [])
        forget_what_is_not_on_disk(world.disk)
        assert derived(store) == places
        return places

    def derived(store: LocalMessageStore) -> list[int]:
        """Where the messages are, by the queue's files, if the key index agrees."""
        files, index = store._files.queue_files, store._files.key_index
        found = [entry.physical_offset for entry in files.read(QUEUE, 0, 800)]
        by_key = [index.find("orders", f"key-{n}", from_ms=0, to_ms=1 << 62) for n in range(800)]
        assert [[place] for place in found] == [*map(list, by_key)]
        return found

    given = options(  # many sectors of 512 bytes in each file
        segment_bytes=1 << 20,
        queue_file_entries=1_000,
        index_slots=2_000,
        index_file_entries=1_000,
        queue_flush_interval_ms=10,
        snapshot_interval_ms=40,
    )
    with World(SimulatedDisk(), 1) as world:
        places = world.call(main())
    with World(world.disk.after_power_cut(Random(1)), 2) as world:
        store = world.call(open_with_orders(world, given))
        assert store.recovery.snapshot_offset == store.recovery.end_offset
        assert derived(store) == places


def forget_what_is_not_on_disk(disk: SimulatedDisk, folder: PurePath = ROOT) -> None:
    """The page cache forgets pages that it takes for written."""
    for name in disk.list_directory(folder):
        try:
            file = disk.open(folder / name)
        except FileNotFoundError:
            forget_what_is_not_on_disk(disk, folder / name)
        else:
            file.drop_cache()
            file.close()


@with_world()
async def test_a_log_that_is_more_than_a_minute_ahead_of_the_clock_is_told_once_and_when_the_clock_has_caught_up(
    world,
):
    store = await open_with_orders(world, options())
    with capture_logs() as told:
        for jump_ms in (0, 3_600_000, -59_000, -2_000, -1, 3_600_000):
            world.clock.jump(jump_ms)
            await store.append([message()])
    times = [one.stored_at_ms for one in await store.read(QUEUE, 0, **EVERYTHING)]
    assert times == sorted(times)
    assert [line["event"] for line in told] == ["clock_behind_log", "clock_caught_up_with_log"]
    assert 60_000 < told[0]["log_ahead_ms"] <= 61_000


# --------------------------------------------------------------------------------------------
# damage, and what is refused


def filled(count: int = 40, *, closes: bool = True, per_append: int = 1) -> SimulatedDisk:
    """A store with so many appends, closed in order or killed."""

    async def main(world):
        store = await open_with_orders(world, options())
        for n in range(count):
            await store.append(
                [message(b"x" * 100, message_id=f"m{n}.{k}", key="key") for k in range(per_append)]
            )
        if closes:
            await store.aclose()

    return in_world(main)


def first_places(disk: SimulatedDisk) -> list[tuple[int, int]]:
    raw = segment(disk)
    walk = scan.scan(raw, 0, begin=0, segment_end=len(raw))
    return list(zip(walk.record_offsets.tolist(), walk.record_bytes.tolist(), strict=True))


def test_a_damaged_record_is_named_and_never_served_and_the_rest_of_the_queue_is():
    disk = filled()
    place, length = first_places(disk)[5]
    damage(disk, place + 95)  # in the body

    async def main(world):
        store = await open_with_orders(world, options())
        assert [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)] == [
            f"m{n}.0" for n in range(5)
        ]
        with pytest.raises(CorruptRecord) as caught:
            await store.read(QUEUE, 5, **EVERYTHING)
        assert caught.value.physical_offset == place
        assert len(await store.read(QUEUE, 6, **EVERYTHING)) == 34
        assert length > 95

    in_world(main, disk)


class ReadLane:
    """Counts how often the disk is asked.

    The world's own runner does the work, and has no place where one could listen.
    """

    def __init__(self, world: World) -> None:
        self.jobs = 0
        self._beside = world.runner.beside
        world.runner.beside = self.beside  # type: ignore[method-assign]

    def beside(self, lane, job, done, failed) -> None:
        self.jobs += lane is Lane.READ
        self._beside(lane, job, done, failed)


def test_what_was_verified_and_lies_in_the_page_cache_is_read_without_the_read_lane():
    disk = filled()

    async def main(world):
        store = await open_with_orders(world, options())
        lane = ReadLane(world)
        first = await store.read(QUEUE, 0, **EVERYTHING)
        asked = lane.jobs
        again = await store.read(QUEUE, 0, **EVERYTHING)

        assert asked
        assert lane.jobs == asked
        assert again == first
        assert [one.message_id for one in first] == [f"m{n}.0" for n in range(40)]

    in_world(main, disk)


@with_world()
async def test_a_long_read_from_memory_lets_others_have_their_turns(world):
    store = await open_with_orders(
        world, options(segment_bytes=1 << 20, prepare_ahead_bytes=1 << 20)
    )
    await store.append(messages(320))
    before = world.loop.turns

    assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 320

    assert world.loop.turns - before >= 9


def test_of_a_damaged_unit_the_records_are_served_that_show_no_damage():
    disk = filled(4, per_append=3)
    place, _ = first_places(disk)[4]  # the middle one of the second unit
    damage(disk, place + 95)

    async def main(world):
        store = await open_with_orders(world, options())
        assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 4
        with pytest.raises(CorruptRecord):
            await store.read(QUEUE, 4, **EVERYTHING)
        assert [one.queue_offset for one in await store.read(QUEUE, 5, **EVERYTHING)] == list(
            range(5, 12)
        )

    in_world(main, disk)


def test_of_a_unit_whose_damage_nobody_can_place_no_record_is_served():
    disk = filled(4, per_append=3)
    place, _ = first_places(disk)[4]
    damage(disk, place + 47)  # the born time: no checksum but the unit's covers it

    async def main(world):
        store = await open_with_orders(world, options())
        for offset in (3, 4, 5):
            with pytest.raises(CorruptRecord):
                await store.read(QUEUE, offset, **EVERYTHING)
        assert len(await store.read(QUEUE, 6, **EVERYTHING)) == 6

    in_world(main, disk)


@pytest.mark.parametrize("at", [0, 5, 30, 60])
def test_damage_to_what_was_on_disk_refuses_the_start_and_names_the_place(at):
    disk = filled(60, closes=False)
    remove_snapshots(disk)
    place, _ = first_places(disk)[min(at, len(first_places(disk)) - 1)]
    damage(disk, place + 90)

    async def main(world):
        with pytest.raises(CorruptRecord, match="known to have been on disk") as caught:
            await world.open_store(options())
        assert caught.value.physical_offset == place
        assert caught.value.path.name == file_name(0)

    in_world(main, disk)


def remove_snapshots(disk: SimulatedDisk) -> None:
    for name in disk.list_directory(ROOT / "snapshots"):
        disk.remove(ROOT / "snapshots" / name)


def test_a_missing_segment_refuses_the_start():
    disk = filled(200)
    assert disk.exists(ROOT / "commitlog" / file_name(2 * 16_384))
    disk.remove(ROOT / "commitlog" / file_name(16_384))

    async def main(world):
        with pytest.raises(UnknownFormat, match="a gap before this segment"):
            await world.open_store(options())

    in_world(main, disk)


def test_the_loss_of_the_last_segments_refuses_the_start():
    disk = filled(200)
    for name in disk.list_directory(ROOT / "commitlog")[1:]:
        disk.remove(ROOT / "commitlog" / name)

    async def main(world):
        with pytest.raises(CorruptRecord, match="the log was on disk up to"):
            await world.open_store(options())

    in_world(main, disk)


@pytest.mark.parametrize("name", ["00000000000000000001", "0000000000000001638"])
def test_a_file_of_digits_that_does_not_belong_into_the_log_refuses_the_start(name):
    disk = filled(3)
    disk.open(ROOT / "commitlog" / name, create=True)

    async def main(world):
        with pytest.raises(UnknownFormat):
            await world.open_store(options())

    in_world(main, disk)


@pytest.mark.parametrize("name", ["readme", "foo.tmp", "00000000000000000000.bak", ".hidden"])
def test_a_file_that_can_be_no_segment_is_left_alone_with_a_warning(name):
    disk = filled(3)
    disk.open(ROOT / "commitlog" / name, create=True)

    async def main(world):
        store = await world.open_store(options())
        assert len(await store.read(QUEUE, 0, max_messages=100, max_bytes=1 << 20)) == 3
        await store.aclose()

    with capture_logs() as logs:
        in_world(main, disk)

    assert disk.exists(ROOT / "commitlog" / name)
    assert [(one["event"], one["log_level"]) for one in logs if one["event"] == "file_ignored"] == [
        ("file_ignored", "warning")
    ]


def test_segments_of_another_length_than_configured_refuse_the_start_and_say_both():
    disk = filled(200)

    async def main(world):
        with pytest.raises(UnknownFormat, match="found 16384 bytes, expected 32768") as caught:
            await world.open_store(options(segment_bytes=32_768))
        assert caught.value.repair == ""
        assert str(caught.value).endswith(
            "the segments have 16384 bytes: start with ESCROWMQ_LOCAL__SEGMENT_BYTES=16384"
        )

    in_world(main, disk)


def test_the_length_of_the_segments_is_named_also_where_the_first_ones_have_expired():
    disk = filled(200)
    disk.remove(ROOT / "commitlog" / file_name(0))

    async def main(world):
        with pytest.raises(UnknownFormat, match="ESCROWMQ_LOCAL__SEGMENT_BYTES=16384"):
            await world.open_store(options(segment_bytes=32_768))

    in_world(main, disk)


def test_the_only_segment_may_be_truncated_or_of_another_setting():
    disk = filled(3)
    only = ROOT / "commitlog" / file_name(0)
    disk.open(only).extend(8_192)

    async def refused(world):
        with pytest.raises(UnknownFormat) as caught:
            await world.open_store(options())
        sentence = str(caught.value)
        assert "start with ESCROWMQ_LOCAL__SEGMENT_BYTES=8192; or, if" in sentence
        assert f"`escrowmq store repair {ROOT} --fit-segment {only.name}`" in sentence

    disk = in_world(refused, disk)
    owner = Repair(disk, ROOT, folder="repair-1", now_ms=0, segment_bytes=16_384)
    owner.fit_segment(only.name)
    owner.close()

    async def opened(world):
        store = await world.open_store(options())
        assert len(await store.read(QUEUE, 0, max_messages=100, max_bytes=1 << 20)) == 3
        await store.aclose()

    in_world(opened, disk)


def test_one_segment_of_another_length_is_to_be_repaired():
    disk = filled(200)
    last = ROOT / "commitlog" / disk.list_directory(ROOT / "commitlog")[-1]
    disk.open(last).extend(4_096)

    async def main(world):
        with pytest.raises(UnknownFormat) as caught:
            await world.open_store(options())
        assert (caught.value.repair, caught.value.remedy) == (f"--fit-segment {last.name}", "")

    in_world(main, disk)


# -----------------------------------------------------------------------------------------------
# what is derived comes back


def everything_is_there(disk: SimulatedDisk, count: int = 40, *, was_clean: bool) -> SimulatedDisk:
    async def main(world):
        store = await open_with_orders(world, options())
        assert store.recovery.was_clean is was_clean
        found = await store.read(QUEUE, 0, **EVERYTHING)
        assert [one.message_id for one in found] == [f"m{n}.0" for n in range(count)]
        await store.append([message()])
        assert (await store.offsets(QUEUE)).end == count + 1
        await store.aclose()

    return in_world(main, disk)


def test_a_start_after_an_orderly_close_walks_nothing():
    disk = filled()

    async def main(world):
        store = await open_with_orders(world, options())
        assert store.recovery == msgspec.structs.replace(
            store.recovery,
            was_clean=True, walked_bytes=0, replayed_records=0, wiped_bytes=0, rebuilt_queues=0,
            indexed_keys=0, buffered_records=0, cut_records=0,
        )  # fmt: skip
        assert store.recovery.checkpoint_offset == store.recovery.end_offset

    in_world(main, disk)
    everything_is_there(filled(), was_clean=True)


def test_the_first_start_of_a_store_does_not_report_a_crash_and_one_after_its_kill_does():
    disk = SimulatedDisk()

    async def main(world):
        store = await open_with_orders(world, options())
        assert store.recovery.was_clean
        # the life ends without a close

    async def again(world):
        store = await open_with_orders(world, options())
        assert not store.recovery.was_clean
        await store.aclose()

    in_world(again, in_world(main, disk))


def test_a_start_after_a_kill_walks_what_is_newer_than_the_last_snapshot():
    everything_is_there(filled(closes=False), was_clean=False)


@pytest.mark.parametrize("folder", ["consumequeue/orders/0", "snapshots"])
def test_derived_files_that_are_gone_are_made_again(folder):
    disk = filled()
    path = ROOT / folder
    for name in disk.list_directory(path):
        disk.remove(path / name)

    again = everything_is_there(disk, was_clean=True)

    assert again.list_directory(path)


def test_a_checkpoint_that_is_gone_makes_the_start_walk_the_log():
    disk = filled()
    disk.remove(ROOT / "checkpoint")

    everything_is_there(disk, was_clean=False)


@pytest.mark.parametrize("at", [0, 9, 40])
def test_a_damaged_snapshot_is_not_believed(at):
    disk = filled()
    file = disk.open(ROOT / "snapshots" / "consume_queues")
    (byte,) = file.read(at, 1)
    file.write(at, bytes([byte ^ 0x10]))

    everything_is_there(disk, was_clean=True)


def test_queue_files_equal_the_log_after_a_rebuild():
    disk = filled()
    path = ROOT / "consumequeue" / "orders" / "0"
    before = {name: disk.open(path / name).read(0, 1_000) for name in disk.list_directory(path)}
    remove_snapshots(disk)

    async def main(world):
        store = await open_with_orders(world, options())
        await store.aclose()

    disk = in_world(main, disk)

    assert {
        name: disk.open(path / name).read(0, 1_000) for name in disk.list_directory(path)
    } == before


def test_a_start_that_finds_more_entries_than_memory_may_hold_writes_them_as_it_walks(monkeypatch):
    monkeypatch.setattr(replay, "_MOST_IN_MEMORY", 20)
    disk = filled()
    path = ROOT / "consumequeue" / "orders" / "0"
    (first, *_) = names = disk.list_directory(path)
    before = disk.open(path / first).read(0, 1_000)
    for name in names:
        disk.remove(path / name)

    async def main(world):
        await world.open_store(options())
        assert world.disk.open(path / first).read(0, 1_000) == before

    everything_is_there(in_world(main, disk), was_clean=False)


def test_a_table_that_is_kept_while_another_round_is_under_way_is_on_disk_after_an_orderly_close():
    """The last round of a close takes it along."""

    async def write(world):
        store = await open_with_orders(
            world, options(queue_flush_interval_ms=10, snapshot_interval_ms=20)
        )
        await store.append([message()])
        deriver = store._deriver
        async with asyncio.timeout(10):
            while deriver.thorough_begun == deriver.thorough_ended:  # noqa: ASYNC110  # a round has no event of its own
                await asyncio.sleep(0.000_01)
        await store.save_snapshot("table", Snapshot((b"x",), {QUEUE: 1}))
        await store.aclose()

    async def read(world):
        store = await open_with_orders(world, options())
        found = await store.load_snapshot("table")
        assert found is not None
        assert bytes(found.data) == b"x"

    in_world(read, disk=in_world(write))


def test_a_snapshot_that_reflects_more_than_the_log_holds_is_not_given_back():
    async def main(world):
        store = await open_with_orders(world, options())
        await store.append(messages(5))
        await store.save_snapshot("table", Snapshot((b"x",), {QUEUE: 9}))
        await store.aclose()

    async def again(world):
        store = await open_with_orders(world, options())
        assert await store.load_snapshot("table") is None
        await store.append(messages(6))  # other ones than it knows

    async def at_last(world):
        store = await open_with_orders(world, options())
        assert (await store.offsets(QUEUE)).end > 9
        assert await store.load_snapshot("table") is None

    in_world(at_last, in_world(again, in_world(main)))


def test_committed_offsets_and_that_a_group_is_deleted_survive_a_kill_and_an_orderly_close():
    async def main(world):
        store = await open_with_orders(world, options())
        await store.append(messages(5))
        await store.commit_offset("group", QUEUE, 2)
        await store.commit_offset("deleted", QUEUE, 3)
        await store.forget_offsets("deleted")
        await store.commit_offset("group", QUEUE, 4)

    async def again(world):
        store = await open_with_orders(world, options())
        assert await store.committed_offset("group", QUEUE) == 4
        assert await store.committed_offset("deleted", QUEUE) is None
        await store.aclose()

    in_world(again, in_world(again, in_world(main)))


def test_the_epoch_rises_at_each_start_after_a_crash_and_stays_at_one_in_order():
    def epoch(disk: SimulatedDisk) -> int:
        raw = segment(disk)
        return scan.scan(raw, 0, begin=0, segment_end=len(raw)).epoch

    async def main(world):
        store = await open_with_orders(world, options())
        await store.append([message()])
        await store.aclose()

    async def killed(world):
        store = await open_with_orders(world, options())
        await store.append([message()])

    first = in_world(main)
    assert epoch(first) == 1
    second = in_world(main, first)
    assert epoch(second) == 1
    third = in_world(killed, second)
    assert epoch(third) == 1
    assert epoch(in_world(main, third)) == 2


def test_a_page_goes_on_from_the_queue_file_into_memory():
    async def main(world):
        store = await open_with_orders(world, options())
        await store.append(messages(3))
        await store.aclose()

    async def again(world):
        store = await open_with_orders(world, options())
        await store.append(messages(4))

        assert len(await store.read(QUEUE, 1, **EVERYTHING)) == 6

    in_world(again, in_world(main))
