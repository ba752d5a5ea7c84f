"""A store without snapshots, as a broker leaves it: queues whose messages have all expired go on at
the offset where their files end.
"""

import shutil
from pathlib import Path

import pytest

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import OffsetRange, QueueId
from tests.support.builders import message

ORDERS, RARE = QueueId("orders", 0), QueueId("rare", 1)
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384, prepare_ahead_bytes=8_192, queue_file_entries=10, index_slots=16,
    index_file_entries=200
)  # fmt: skip


async def open_store(root: Path) -> LocalMessageStore:
    clock = SystemClock()
    return await LocalMessageStore.open(
        root, OPTIONS, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )


async def fill(root: Path, *, rare: int) -> None:
    store = await open_store(root)
    await store.create_topic("orders", queue_count=1)
    await store.create_topic("rare", queue_count=2)
    for queue, count in ((RARE, rare), (ORDERS, 40)):
        for number in range(count):
            await store.append([message(b"x" * 1_000, queue=queue, message_id=f"m{number}")])
    await store.aclose()


def expire_first_segment(root: Path) -> None:
    """As a broker does: it removes the segment, and keeps the newest file of each queue."""
    (root / "commitlog" / f"{0:020}").unlink()
    for derived in ("snapshots", "index", "timers"):
        shutil.rmtree(root / derived)
    (root / "checkpoint").unlink()


@pytest.mark.parametrize("rare", [7, 10])
async def test_a_queue_whose_messages_have_all_expired_goes_on_where_its_files_end(tmp_path, rare):
    await fill(tmp_path, rare=rare)
    expire_first_segment(tmp_path)

    store = await open_store(tmp_path)
    bounds = await store.offsets(RARE)
    placed = await store.append([message(b"next", queue=RARE, message_id="next")])
    await store.aclose()

    assert bounds == OffsetRange(rare, rare)
    assert placed[0].queue_offset == rare


async def test_a_queue_that_has_messages_in_the_log_is_made_of_these(tmp_path):
    await fill(tmp_path, rare=7)
    expire_first_segment(tmp_path)

    store = await open_store(tmp_path)
    bounds = await store.offsets(ORDERS)
    await store.aclose()

    assert 0 < bounds.first < bounds.end == 40


async def test_files_of_other_programs_beside_the_queues_are_ignored(tmp_path):
    await fill(tmp_path, rare=7)
    expire_first_segment(tmp_path)
    (tmp_path / "consumequeue" / "backup").write_text("")

    store = await open_store(tmp_path)
    bounds = await store.offsets(RARE)
    await store.aclose()

    assert bounds == OffsetRange(7, 7)
