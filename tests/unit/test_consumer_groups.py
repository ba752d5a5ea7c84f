"""The registry of consumer groups: what is changed at once is changed one after the other."""

import asyncio

import pytest
from sqlalchemy import delete

from app.registry.consumer_groups import ConsumerGroups
from app.registry.database import Database
from app.registry.options import LimitOptions
from app.registry.tables import consumer_groups
from app.registry.vault import Vault
from delivery.groups import GroupRules, Start
from storage.errors import StorageFull
from tests.support.clock import ManualClock


async def test_a_group_that_is_made_while_one_of_its_name_is_deleted_begins_once_that_one_has_ended(
    database_url,
):
    """Else its positions, where it starts at the end, would be forgotten with those of the one
    before.
    """
    database = Database(database_url)
    await database.open()
    groups = ConsumerGroups(database, ManualClock(), Vault(()), LimitOptions())
    await groups.create("billing")
    happened: list[str] = []
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        is_ending.set()
        await may_end.wait()
        happened.append("ended")

    async def begin(_: GroupRules) -> None:
        happened.append("begun")

    deleting = asyncio.create_task(groups.delete("billing", check=lambda _: None, end=end))
    await is_ending.wait()
    making = asyncio.create_task(
        groups.put("billing", lambda _: GroupRules(start=Start.LATEST), begin=begin)
    )
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(deleting, making)

    assert happened == ["ended", "begun"]
    await database.aclose()


async def test_a_group_that_is_found_deleted_is_ended_even_if_that_fails_at_first(database_url):
    database = Database(database_url)
    await database.open()
    groups = ConsumerGroups(database, ManualClock(), Vault(()), LimitOptions())
    for name in ("billing", "kept"):
        await groups.create(name)
    gone = delete(consumer_groups).where(consumer_groups.c.consumer_group == "billing")
    await database.run(lambda connection: connection.execute(gone).close())
    ended: list[str] = []

    async def end(name: str) -> None:
        assert groups.find(name) is None
        ended.append(name)

    async def refuse(_: str) -> None:
        raise StorageFull

    with pytest.raises(StorageFull):
        await groups.reload(refuse)
    await groups.reload(end)
    await groups.reload(end)

    assert ended == ["billing"]
    await database.aclose()
