"""The epochs of a log, and up to where two logs agree."""

from itertools import pairwise
from random import Random

import pytest

from storage.formats.epochs import EpochHistory, common_end
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from tests.support.builders import messages
from tests.support.lives import run_lives
from tests.support.simulation import ROOT, World

OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    queue_file_entries=10,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=40,
)


def test_an_epoch_is_noted_once_and_never_a_lower_one():
    history = EpochHistory()

    for epoch, offset in ((1, 0), (1, 100), (3, 200), (2, 300), (3, 400)):
        history.note(epoch, offset)

    assert history == EpochHistory([(1, 0), (3, 200)])
    assert history.last_epoch == 3


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "expected"),
    [
        ([(1, 0)], 500, [(1, 0)], 300, 300),
        ([(1, 0)], 300, [(1, 0)], 500, 300),
        # the other one began a new epoch at 200, we went on in the old one
        ([(1, 0)], 500, [(1, 0), (2, 200)], 900, 200),
        # and both did, with different numbers
        ([(1, 0), (3, 400)], 500, [(1, 0), (2, 200)], 900, 200),
        ([(1, 0), (2, 200), (5, 600)], 700, [(1, 0), (2, 200), (4, 500)], 900, 500),
        # what an earlier beginning would say does not count: the newest common epoch does
        ([(1, 0), (2, 200)], 250, [(2, 200), (3, 300)], 900, 250),
        ([(1, 0)], 100, [(2, 0)], 100, 0),
        ([], 0, [(1, 0)], 100, 0),
        # behind the records of a broker
        ([(1, 300)], 500, [], 200, 200),
        ([(1, 300)], 500, [(2, 250)], 400, 250),
    ],
)
def test_two_logs_agree_up_to_the_shorter_end_of_the_newest_epoch_that_both_have(
    own, own_end, other, other_end, expected
):
    assert common_end(EpochHistory(own), own_end, EpochHistory(other), other_end) == expected
    assert common_end(EpochHistory(other), other_end, EpochHistory(own), own_end) == expected


def test_the_common_end_of_logs_that_follow_one_another_is_where_their_bytes_part():
    """Logs as lists of epochs, one byte a unit: each new primary goes on from some node's log."""
    for seed in range(300):
        randomness = Random(seed)
        logs: list[list[int]] = [[], [], []]
        for epoch in range(1, 6):
            primary = randomness.randrange(3)
            logs[primary] += [epoch] * randomness.randrange(1, 6)
            for follower in {0, 1, 2} - {primary}:
                if randomness.random() < 0.5:  # it is cut, and follows up to some place
                    begin = common(logs[primary], logs[follower])
                    end = randomness.randrange(begin, len(logs[primary]) + 1)
                    logs[follower] = logs[primary][:end]
        for one, other in pairwise([*logs, logs[0]]):
            parts_at = common(one, other)
            found = common_end(history_of(one), len(one), history_of(other), len(other))
            assert found == parts_at, (seed, one, other)


def common(one: list[int], other: list[int]) -> int:
    """How many units they have in common."""
    equal = 0
    while equal < min(len(one), len(other)) and one[equal] == other[equal]:
        equal += 1
    return equal


def history_of(log: list[int]) -> EpochHistory:
    history = EpochHistory()
    for offset, epoch in enumerate(log):
        history.note(epoch, offset)
    return history


async def opened(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=1)
    return store


def test_a_store_knows_where_its_epochs_begin_whether_it_walks_them_or_kept_them():
    """Each life is killed but the third; the first unit of the second goes into a new segment."""
    ends: list[int] = []
    known: list[EpochHistory] = []

    async def live(store: LocalMessageStore, body_bytes: int) -> None:
        known.append(EpochHistory(store._files.recovered.epochs))
        await store.append(messages(3, body_bytes=body_bytes))
        ends.append(store.stored_offset())

    async def closed(store: LocalMessageStore) -> None:
        await live(store, 100)
        await store.aclose()

    lives = [
        lambda store: live(store, 4_000),
        lambda store: live(store, 4_000),
        closed,
        lambda store: live(store, 100),
    ]
    disk, _ = run_lives(tuple(lives), opened)

    second, third = (2, ends[0]), (3, ends[1])
    assert ends[0] < 16_384 < ends[1]
    assert known[1:] == [
        EpochHistory([(1, 0), second]),
        EpochHistory([(1, 0), second, third]),
        EpochHistory([(1, 0), second, third]),  # an orderly end begins no epoch
    ]
    for path in disk.list_directory(ROOT / "snapshots"):
        disk.remove(ROOT / "snapshots" / path)
    run_lives((lambda store: live(store, 100),), opened, disk=disk)
    assert known[-1] == EpochHistory([(1, 0), second, third, (4, ends[3])])
