"""Replay of the log: queues that end, are deleted and begin again within one window, and records
that are replayed together.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.errors import CorruptRecord
from storage.files.vfs import OsVfs
from storage.formats import queue_entry, scan
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.local.queues import queue_ends, queue_files, replay
from storage.local.queues.consume_queue import ConsumeQueue, ConsumeQueues, Unflushed
from storage.local.queues.queue_files import QueueFiles
from storage.local.queues.replay import Replay
from storage.local.recovery.queues_snapshot import restore_emptied
from storage.message import QueueId
from tests.support.broker_log import COMMIT, INNER, BrokerLog, Stored, inner_batch

GONE, KEPT = QueueId("gone", 1), QueueId("kept", 0)
NEVER_QUEUED = 0x4


@pytest.fixture
def log(tmp_path):
    return BrokerLog(tmp_path / "store")


@pytest.fixture
def files(tmp_path):
    directory, scratch = tmp_path / "consumequeue", tmp_path / "making"
    directory.mkdir()
    scratch.mkdir()
    return QueueFiles(OsVfs(), directory, entries_per_file=10, max_open=4, scratch=scratch)


def test_entries_that_wait_for_a_sync_take_no_more_memory_than_the_limit(files, monkeypatch):
    monkeypatch.setattr(queue_files, "MOST_KEPT_BYTES", 1_000)
    queue, entry = (
        ConsumeQueue(QueueId("orders", 0), first=0, end=0),
        bytes(queue_entry.ENTRY_BYTES),
    )

    for n in range(100):
        files.write(Unflushed(queue, 3 * n, 3 * entry))

        assert files._kept_bytes == sum(one.kept_bytes for one in files._unsynced.values()) <= 1_000


def write(log: BrokerLog, queue: QueueId, count: int) -> list[Stored]:
    return [
        log.append(queue.topic, b"body", {"UNIQ_KEY": "m"}, queue_number=queue.number)
        for _ in range(count)
    ]


def forget(log: BrokerLog, queue: QueueId, count: int) -> None:
    """The log has nothing of so many messages of the queue."""
    log.append(queue.topic, b"", {}, queue_number=queue.number, sys_flag=NEVER_QUEUED, width=count)


def note(log: BrokerLog, ends: Iterable[tuple[QueueId, int]], tag: str) -> None:
    (made,) = queue_ends.end_messages(ends, now_ms=0, tag=tag)
    log.append(queue_ends.QUEUE.topic, made.body, {"TAGS": tag})


def replayed(log: BrokerLog, files: QueueFiles) -> ConsumeQueues:
    """All of the log at once."""
    queues = ConsumeQueues()
    found = scan.scan(log.data, 0, begin=0, segment_end=1 << 20)
    assert found.end == len(log.data)
    Replay(queues, files).feed(log.data, 0, found)
    return queues


def places(queues: ConsumeQueues, queue: QueueId) -> list[int]:
    found = queues[queue]
    entries = found.recent(found.first, found.end - found.first)
    assert entries is not None
    return [entry.physical_offset for entry in queue_entry.decode_all(entries)]


def test_a_topic_that_is_deleted_and_created_again_has_only_its_new_messages(log, files):
    kept = write(log, KEPT, 2)
    write(log, GONE, 3)
    note(log, [(GONE, 3)], queue_ends.DELETED)
    kept += write(log, KEPT, 2)
    new = write(log, GONE, 2)

    queues = replayed(log, files)

    assert queues[GONE].bounds == (3, 5)
    assert places(queues, GONE) == [one.log_offset for one in new]
    assert places(queues, KEPT) == [one.log_offset for one in kept]
    assert queues.holds_messages("gone")


def test_a_topic_that_stays_deleted_is_unknown_and_its_end_is_remembered(log, files):
    write(log, GONE, 3)
    note(log, [(GONE, 3)], queue_ends.DELETED)

    queues = replayed(log, files)

    assert queues.find(GONE) is None
    (deleted,) = queues.deleted
    assert (deleted.id, deleted.end) == (GONE, 3)


def begin_again(log: BrokerLog, queue: QueueId) -> list[Stored]:
    """Messages of a queue from offset 0 on, behind others of it."""
    log._queue_ends[queue.topic, queue.number] = 0
    return write(log, queue, 2)


def test_a_queue_of_a_deleted_topic_that_is_forgotten_begins_at_0(log, files):
    write(log, GONE, 3)
    note(log, [(GONE, 3)], queue_ends.DELETED)
    note(log, [(GONE, 3)], queue_ends.FORGOTTEN)
    assert not list(replayed(log, files).deleted)

    new = begin_again(log, GONE)

    queues = replayed(log, files)
    assert queues[GONE].bounds == (0, 2)
    assert places(queues, GONE) == [one.log_offset for one in new]


def test_a_topic_that_is_known_again_before_the_log_says_that_it_is_forgotten_begins_at_0(
    log, files
):
    write(log, GONE, 3)
    note(log, [(GONE, 3)], queue_ends.DELETED)
    border = len(log.data)
    note(log, [(GONE, 3)], queue_ends.FORGOTTEN)
    begin_again(log, GONE)
    queues = ConsumeQueues()
    given = Replay(queues, files)

    feed(given, log, 0, border)
    queues.grow("gone", 2)
    feed(given, log, border, len(log.data))

    assert queues[GONE].bounds == (0, 2)


def test_files_of_a_topic_that_is_forgotten_bring_nothing_back(log, files):
    write(log, GONE, 3)
    queues = replayed(log, files)
    files.write(queues[GONE].take_unflushed())
    border = len(log.data)
    note(log, [(GONE, 3)], queue_ends.FORGOTTEN)
    queues = ConsumeQueues()
    given = Replay(queues, files)
    feed(given, log, border, len(log.data))
    assert dict(files.emptied(border)) == {GONE: 3}

    restore_emptied(files, queues, border, given.forgotten)

    assert queues.find(GONE) is None


def feed(replay: Replay, log: BrokerLog, begin: int, end: int) -> None:
    window = log.data[begin:end]
    replay.feed(window, begin, scan.scan(window, begin, begin=begin, segment_end=1 << 20))


def test_a_queue_of_which_nothing_is_left_goes_on_where_it_ended(log, files):
    forget(log, KEPT, 7)
    note(log, [(KEPT, 7), (GONE, 4)], queue_ends.ENDS)
    first = write(log, KEPT, 2)
    note(log, [(KEPT, 7)], queue_ends.ENDS)  # stated again, and older than what is known by now
    more = write(log, KEPT, 1)

    queues = replayed(log, files)

    assert queues[GONE].bounds == (4, 4)
    assert queues[KEPT].bounds == (7, 10)
    assert places(queues, KEPT) == [one.log_offset for one in first + more]


def test_a_queue_whose_next_message_is_not_the_next_one_is_refused(log, files):
    write(log, KEPT, 1)
    forget(log, KEPT, 1)
    write(log, KEPT, 1)

    with pytest.raises(CorruptRecord, match="it is number 2 of kept/0, the next is 1"):
        replayed(log, files)


def test_entries_that_are_too_many_for_memory_are_written_to_the_queues_that_still_exist(
    log, files, monkeypatch
):
    monkeypatch.setattr(replay, "_MOST_IN_MEMORY", 1)
    kept = write(log, KEPT, 2)
    write(log, GONE, 3)
    note(log, [(GONE, 3)], queue_ends.DELETED)

    queues = replayed(log, files)

    assert not queues[KEPT].has_unflushed
    entries = files.read(KEPT, 0, 9)[:2]
    assert [entry.physical_offset for entry in entries] == [one.log_offset for one in kept]
    assert dict(files.emptied(1 << 20)) == {queue_ends.QUEUE: 1, KEPT: 2}


def test_a_record_that_only_a_broker_writes_is_counted_in_each_window(log, files):
    write(log, KEPT, 1)
    borders = [0, len(log.data)]
    for _ in range(2):
        log.append(KEPT.topic, b"", {"INNER_MULTI_DISPATCH": "%LMQ%a"})
        write(log, KEPT, 1)
        borders.append(len(log.data))
    queues = ConsumeQueues()
    given = Replay(queues, files)

    for begin, end in pairwise(borders):
        window = log.data[begin:end]
        given.feed(window, begin, scan.scan(window, begin, begin=begin, segment_end=1 << 20))

    assert queues[KEPT].bounds == (0, 5)
    assert given.broker_records == {"light_queue": 2}


TAGS = [{}, {"TAGS": ""}, *({"TAGS": tag} for tag in ("red", "red", "blue", "größe", "x" * 40))]
OF_ONE_TOPIC = [QueueId("orders", 0), QueueId("orders", 1)]
ALIKE = [*OF_ONE_TOPIC, QueueId("orderz", 0), QueueId("xrders", 0)]  # topics of one length
PLAIN = [*ALIKE, QueueId("t" * 300, 0), QueueId("x", 7)]


def mixed_log(root: Path, seed: int) -> BrokerLog:
    """Runs of records of one form, long and short, with others between them."""
    randomness = Random(seed)
    log = BrokerLog(root)
    others: list[Callable[[], object]] = [
        lambda: log.append("orders", b"half", {"TAGS": "red"}, sys_flag=NEVER_QUEUED, width=0),
        lambda: log.append("orders", b"", {"INNER_MULTI_DISPATCH": "%LMQ%a", "TAGS": "red"}),
        lambda: log.append(SCHEDULE_TOPIC, b"late", {"DELAY": "3"}, queue_number=2),
        lambda: inner_batch(log, "batches", INNER),
        lambda: note(log, [(QueueId("orders", 1), 3)], queue_ends.DELETED),
        lambda: note(log, [(QueueId("none", 0), 5)], queue_ends.ENDS),
    ]
    of_this_log = randomness.sample(others, randomness.choice([1, 1, 2]))
    for _ in range(randomness.randrange(1, 7)):
        randomness.choice(of_this_log)()
        of_this_run = randomness.choice([OF_ONE_TOPIC, ALIKE, PLAIN])
        for number in range(randomness.choice([1, 10, 40, 100])):
            queue = randomness.choice(of_this_run)
            is_again = randomness.random() < (0.01 if number else 0.5)
            if seed % 3 == 0 and log._queue_ends[queue] and is_again:
                log._queue_ends[queue] -= 1  # the record before once more
            elif seed % 3 == 1 and randomness.random() < 0.002:
                log._queue_ends[queue] += 1  # one is missing
            log.append(
                queue.topic,
                randomness.randbytes(randomness.randrange(40)),
                {"UNIQ_KEY": "m", **randomness.choice(TAGS), "__more": "x"},
                queue_number=queue.number,
                sys_flag=randomness.choice([0, 0, COMMIT]),
                magic=records.MAGIC_V2 if len(queue.topic) > 127 else records.MAGIC_V1,
            )
    return log


def outcome(log: BrokerLog, root: Path, borders: Iterable[int]) -> object:
    """All that a replay gives, window by window; or the error that ends it."""
    (root / "consumequeue").mkdir(parents=True)
    files = QueueFiles(
        OsVfs(), root / "consumequeue", entries_per_file=10, max_open=4, scratch=root
    )
    queues = ConsumeQueues()
    given = Replay(queues, files)
    try:
        for begin, end in pairwise(borders):
            feed(given, log, begin, end)
    except CorruptRecord as error:
        return str(error)
    return (
        {queue.id: (queue.bounds, places(queues, queue.id)) for queue in queues},
        {queue.id: queue.recent(queue.first, queue.end - queue.first) for queue in queues},
        sorted((deleted.id, deleted.end) for deleted in queues.deleted),
        given.record_count,
        given.last_stored_at_ms,
        given.broker_records,
        given.queue_ids,
    )


def test_records_together_give_what_they_give_one_after_another(tmp_path, monkeypatch):
    taken: list[bool] = []
    feed_run = Replay._feed_run

    def noted(*arguments: Any) -> bool:
        taken.append(feed_run(*arguments))
        return taken[-1]

    monkeypatch.setattr(Replay, "_feed_run", noted)
    errors = 0
    for seed in range(60):
        log = mixed_log(tmp_path / "store", seed)
        found = scan.scan(log.data, 0, begin=0, segment_end=1 << 20)
        assert found.end == len(log.data)

        together = outcome(log, tmp_path / f"{seed}a", [0, len(log.data)])
        each = outcome(log, tmp_path / f"{seed}b", [*found.record_offsets.tolist(), found.end])

        assert together == each, seed
        errors += isinstance(each, str)
    assert 0 < errors < 30
    assert len(set(taken)) == 2
