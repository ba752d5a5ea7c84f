"""C22: bits of derived files, turned over, and files that the disk does not give back.

Nothing is lost, hidden, doubled or reordered, and no request fails.

The files of a kind are independent of each other, so one life meets a flip in each of them.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import PurePath
from random import Random

import pytest

from storage.formats.queue_entry import ENTRY_BYTES
from tests.fault.campaign_size import FULL
from tests.fault.derived_damage import (
    Files,
    answers,
    derived_files,
    differences,
    flipped,
    sound_store,
)

pytestmark = pytest.mark.faults

Flip = tuple[PurePath, int, int]


@pytest.fixture(scope="module")
def files() -> Files:
    return sound_store()


@pytest.fixture(scope="module")
def sound(files):
    return answers(files)


def of_kind(files: Files, kind: str) -> list[PurePath]:
    return [path for path in derived_files(files) if kind in path.parts]


def used_bytes(files: Files, path: PurePath) -> int:
    """Without the zeros at its end, in whole entries."""
    return min(len(files[path]), -(-len(files[path].rstrip(b"\0")) // ENTRY_BYTES) * ENTRY_BYTES)


def every_bit(files: Files, kind: str) -> Iterator[list[Flip]]:
    """One flip in each file a life, until each bit of each has been met."""
    for number in count():
        at, bit = divmod(number, 8)
        flips = [(path, at, bit) for path in of_kind(files, kind) if at < used_bytes(files, path)]
        if not flips:
            return
        yield flips


def every_field_of_entries(files: Files) -> Iterator[list[Flip]]:
    """Each byte of an entry once, in any entry of each file."""
    randomness = Random(1)
    for at in range(ENTRY_BYTES):
        yield [
            (
                path,
                randomness.randrange(used_bytes(files, path) // ENTRY_BYTES) * ENTRY_BYTES + at,
                randomness.randrange(8),
            )
            for path in of_kind(files, "consumequeue")
        ]


def any_byte(files: Files, kind: str, lives: int) -> Iterator[list[Flip]]:
    randomness = Random(kind)
    for _ in range(lives):
        yield [
            (path, randomness.randrange(used_bytes(files, path)), randomness.randrange(8))
            for path in of_kind(files, kind)
        ]


def test_no_bit_of_a_consume_queue_file_changes_any_answer(files, sound):
    for flips in every_bit(files, "consumequeue") if FULL else every_field_of_entries(files):
        assert not differences(sound, answers(flipped(files, flips))), flips


@pytest.mark.parametrize("kind", ["index", "timers", "config"])
def test_no_bit_of_the_key_index_or_of_a_file_of_delays_changes_any_answer(files, sound, kind):
    for flips in every_bit(files, kind) if FULL else any_byte(files, kind, 4):
        assert not differences(sound, answers(flipped(files, flips))), flips


@pytest.mark.parametrize("kind", ["snapshots", "checkpoint"])
def test_no_bit_of_a_snapshot_or_of_the_checkpoint_changes_any_answer(files, sound, kind):
    for flips in any_byte(files, kind, 1_000 if FULL else 4):  # a checksum covers each as a whole
        assert not differences(sound, answers(flipped(files, flips))), flips


@pytest.mark.parametrize(
    "kind", ["consumequeue", "timers", "config", "snapshots", "checkpoint", "lock"]
)
def test_no_file_that_the_disk_does_not_give_back_changes_any_answer_or_refuses_a_start(
    files, sound, kind
):
    unreadable = [path for path in files if kind in path.parts]
    assert unreadable
    assert not differences(sound, answers(files, unreadable))


def test_nothing_derived_that_the_disk_does_not_give_back_changes_any_answer(files, sound):
    unreadable = [*derived_files(files)]
    assert not differences(sound, answers(files, unreadable))


def test_each_file_alone_that_the_disk_does_not_give_back_refuses_no_start(files, sound):
    newest_index = of_kind(files, "index")[-1]
    for path in (*of_kind(files, "snapshots"), newest_index):
        assert not differences(sound, answers(files, [path])), path
