"""The topics of a service as its replica reads them from a copy of the registry."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, insert
from structlog.testing import capture_logs

from app.registry.database import Database
from app.registry.followed_topics import FollowedTopics
from app.registry.registry_files import REGISTRY, read_files
from app.registry.tables import topics as table
from storage.errors import UnknownTopic
from storage.memory import MemoryMessageStore
from tests.support.clock import ManualClock

ROW = {
    "queues": 2,
    "message_types": ["normal"],
    "retention_ms": 1,
    "max_message_bytes": 1,
    "dedup_window_ms": 1,
    "max_delay_ms": 1,
    "created_at_ms": 7,
    "revision": 3,
}


def url_of(file: Path) -> URL:
    return URL.create("sqlite", database=str(file))


class Copied:
    """A registry, and the file of a replica that is replaced by a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(url_of(folder / REGISTRY))
        self._folder = folder
        self.path = folder / "copy.db"
        self.topics = FollowedTopics(url_of(self.path), ManualClock())
        self.store = MemoryMessageStore(ManualClock())

    async def add(self, topic: str, **more: Any) -> None:
        row = {"topic": topic, **ROW, **more}
        await self.database.run(lambda connection: connection.execute(insert(table).values(**row)))

    async def copy(self) -> None:
        self.replace(read_files(self._folder)[REGISTRY])
        await self.topics.refresh(self.store)

    def replace(self, content: bytes) -> None:
        new = self.path.with_suffix(".new")
        new.write_bytes(content)
        new.replace(self.path)

    def names(self) -> list[str]:
        return [topic.name for topic in self.topics.all()]


@pytest.fixture
async def copied(tmp_path):
    folder = tmp_path / "a?b%41#c \udcff"  # what a URL of SQLite would take for something else
    folder.mkdir()
    made = Copied(folder)
    await made.database.open()
    yield made
    await made.database.aclose()


async def test_they_are_those_of_the_last_copy_and_the_store_knows_their_queues(copied):
    await copied.topics.refresh(copied.store)
    assert not copied.topics.are_known, "nothing was copied yet"
    await copied.add("orders")
    await copied.add("gone", is_being_deleted=True)
    await copied.copy()
    assert (copied.topics.are_known, copied.names()) == (True, ["orders"])
    topic = copied.topics.get("orders")
    assert (topic.revision, topic.created_at_ms, len(topic.queues)) == (3, 7, 2)
    assert len(await copied.store.queues("orders")) == 2
    await copied.add("bills")
    await copied.copy()
    assert copied.names() == ["bills", "orders"]
    with pytest.raises(UnknownTopic):
        copied.topics.get("gone")


async def test_a_log_that_has_more_queues_than_the_copy_keeps_them(copied):
    await copied.store.create_topic("orders", queue_count=5)
    await copied.add("orders")
    await copied.copy()
    assert len(await copied.store.queues("orders")) == 5


async def test_another_store_gets_the_queues_though_the_copy_is_the_same(copied):
    await copied.add("orders")
    await copied.copy()
    other = MemoryMessageStore(ManualClock())
    await copied.topics.refresh(other)
    assert len(await other.queues("orders")) == 2


async def test_where_a_copy_cannot_be_read_they_stay_and_the_reason_is_logged_once(copied):
    await copied.add("orders")
    await copied.copy()
    with capture_logs() as logs:
        copied.replace(b"no database" * 1_000)
        await copied.topics.refresh(copied.store)
        await copied.topics.refresh(copied.store)
    assert [one["event"] for one in logs] == ["followed_topics_not_read"]
    assert copied.names() == ["orders"]
    await copied.add("bills")
    await copied.copy()
    assert copied.names() == ["bills", "orders"]
    copied.path.unlink()
    await copied.topics.refresh(copied.store)
    assert copied.names() == ["bills", "orders"]


async def test_nothing_is_left_beside_the_copy(copied):
    await copied.add("orders")
    await copied.copy()
    assert not [path for path in copied.path.parent.glob("copy.db*") if path != copied.path]
