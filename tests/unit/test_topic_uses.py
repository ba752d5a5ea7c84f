"""The deletion of a topic sees every change that names it, or comes before it."""

import asyncio
import sqlite3
from collections.abc import Coroutine
from contextlib import closing, suppress
from typing import Any

import pytest

from app.registry.database import Database
from app.registry.options import LimitOptions
from app.registry.topic_uses import TopicUses
from app.registry.topics import Topic, Topics, TopicSettings
from storage.clock import SystemClock
from storage.errors import StorageFull, TopicInUse, UnknownTopic
from storage.memory import MemoryMessageStore


async def until_waiting(task: "asyncio.Task[Any]") -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()


def begun(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.ensure_future(work)


async def test_a_deletion_waits_for_what_is_being_stored_and_later_changes_wait_for_it():
    uses, happened = TopicUses(), []

    async def use(name: str) -> None:
        async with uses.using(["orders", "emails"]):
            happened.append(name)

    async def delete() -> None:
        async with uses.closed("orders"):
            happened.append("deleted")

    async with uses.using(["orders"]):
        deleting, using = begun(delete()), begun(use("later"))
        await until_waiting(deleting)
        await until_waiting(using)
        happened.append("stored")
    await asyncio.gather(deleting, using)

    assert happened == ["stored", "deleted", "later"]


async def test_changes_of_other_topics_and_those_that_fail_hold_up_no_deletion():
    uses = TopicUses()

    with suppress(StorageFull):
        async with uses.using(["orders"]):
            raise StorageFull
    async with uses.using(["emails"]), uses.closed("orders"), uses.using(["emails"]):
        pass
    async with uses.using(["orders"]):
        pass


@pytest.fixture
async def topics(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'registry.db'}")
    await database.open()
    opened = Topics(
        database,
        MemoryMessageStore(SystemClock()),
        SystemClock(),
        LimitOptions(),
        creates_on_use=False,
        retention_ms=86_400_000,
    )
    await opened.open()
    yield opened
    await opened.schema_process.aclose()
    await database.aclose()


async def nothing(_: Topic) -> None:
    """Refuse nothing."""


async def test_a_request_that_found_a_topic_before_its_deletion_does_not_create_it_again(topics):
    topic, _ = await topics.create(TopicSettings(topic="orders", retention_ms=86_400_000))
    await topics.begin_deletion("orders", nothing)
    await topics.end_deletion("orders")

    with pytest.raises(UnknownTopic):
        await topics.ensure(topic)


async def test_a_topic_is_known_until_its_deletion_is_on_disk(topics):
    await topics.create(TopicSettings(topic="orders", retention_ms=86_400_000))
    looked = asyncio.Event()

    async def look(_: Topic) -> None:
        looked.set()

    deleting = begun(topics.begin_deletion("orders", look))
    await looked.wait()
    while not deleting.done():  # the registry writes on a thread of its own
        known = topics.knows("orders")
        await asyncio.sleep(0)
    assert known
    await deleting
    assert not topics.knows("orders")


async def test_a_deletion_that_the_registry_refuses_leaves_the_topic_known(topics):
    await topics.create(TopicSettings(topic="orders", retention_ms=86_400_000))

    async def refuse(_: Topic) -> None:
        raise StorageFull

    with pytest.raises(StorageFull):
        await topics.begin_deletion("orders", refuse)

    assert topics.knows("orders")
    assert topics.being_deleted() == []
    async with topics.using(["orders"]):
        pass


async def test_a_deletion_that_goes_on_while_the_topics_are_read_again_takes_no_row_of_a_new_topic(
    topics, tmp_path
):
    settings = TopicSettings(topic="orders", retention_ms=86_400_000)
    await topics.create(settings)
    await topics.begin_deletion("orders", nothing)
    with closing(sqlite3.connect(tmp_path / "registry.db")) as other:
        other.execute("DELETE FROM topics")  # the end of the deletion, whose answer is lost
        other.commit()

    await topics.reload()

    with pytest.raises(TopicInUse):
        await topics.create(settings)
    await topics.end_deletion("orders")  # of a second request
    await topics.create(settings)
    await topics.reload()
    assert topics.knows("orders")
    assert topics.being_deleted() == []
