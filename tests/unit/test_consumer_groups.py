"""The registry of consumer groups: what is changed at once is changed one after the other, and a
deletion that is interrupted is finished.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from sqlalchemy import Connection, make_url, update
from structlog.testing import capture_logs

from app.registry.consumer_groups import ConsumerGroups
from app.registry.database import Database
from app.registry.options import LimitOptions
from app.registry.tables import consumer_groups
from app.registry.vault import Vault
from delivery.groups import GroupRules, Start
from storage.errors import StorageFull, UnknownGroup
from tests.support.clock import ManualClock


def anything(_: int | None) -> None:
    """Refuse no revision."""


@asynccontextmanager
async def opened(
    url: str, end: Callable[[str], Awaitable[None]]
) -> AsyncIterator[tuple[Database, ConsumerGroups]]:
    """One life of a service, from its start to a kill."""
    database = Database(url)
    await database.open()
    groups = ConsumerGroups(database, ManualClock(), Vault(()), LimitOptions())
    groups.end = end
    await groups.open()
    yield database, groups
    await database.aclose()


async def test_a_group_that_is_made_while_one_of_its_name_is_deleted_begins_once_that_one_has_ended(
    database_url,
):
    """Else its positions, where it starts at the end, would be forgotten with those of the one
    before.
    """
    happened: list[str] = []
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def end(_: str) -> None:
        is_ending.set()
        await may_end.wait()
        happened.append("ended")

    async def begin(_: GroupRules) -> None:
        happened.append("begun")

    async with opened(database_url, end) as (_, groups):
        await groups.create("billing")
        deleting = asyncio.create_task(groups.delete("billing", check=anything))
        await is_ending.wait()
        making = asyncio.create_task(
            groups.put("billing", lambda _: GroupRules(start=Start.LATEST), begin=begin)
        )
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(deleting, making)

    assert happened == ["ended", "begun"]


class Killed(Exception):
    """The service is killed: nothing that it would do next is done."""


class Positions:
    """The positions of groups, which outlive the service; `kill`: the step in which it is killed."""

    def __init__(self, kill: str = "") -> None:
        self.of = {"billing", "kept"}
        self.kill = kill
        self.is_full = False

    def check(self, _: int | None) -> None:
        self.die_in("the check")

    async def end(self, name: str) -> None:
        if self.is_full:
            raise StorageFull
        self.die_in("the note")  # it was made, and nothing behind it
        self.of.discard(name)
        self.die_in("the end")

    def die_in(self, step: str) -> None:
        if self.kill == step:
            raise Killed


async def made_again(groups: ConsumerGroups) -> None:
    await groups.create("billing")


async def begun_again(groups: ConsumerGroups) -> None:
    async def begin(_: GroupRules) -> None:
        """Begin nowhere."""

    await groups.put("billing", lambda known: known.rules if known else GroupRules(), begin=begin)


async def finished(groups: ConsumerGroups) -> None:
    await groups.finish_deletions()


@pytest.mark.parametrize("then", [made_again, begun_again, finished])
@pytest.mark.parametrize("step", ["the check", "the note", "the end", ""])
async def test_a_group_whose_deletion_is_killed_in_any_step_has_all_of_its_positions_or_is_a_new_one(
    database_url, step, then
):
    positions = Positions(step)
    async with opened(database_url, positions.end) as (_, groups):
        await groups.create("billing")
        await groups.create("kept")
        try:
            await groups.delete("billing", check=positions.check)
        except Killed:
            assert step
    positions.kill = ""

    async with opened(database_url, positions.end) as (_, groups):
        is_deleted = step != "the check"
        assert (groups.find("billing") is None) == is_deleted
        await then(groups)

        assert ("billing" in positions.of) != is_deleted
        if then is finished and is_deleted:
            with pytest.raises(UnknownGroup):
                groups.get("billing")

    async with opened(database_url, positions.end) as (_, groups):
        assert (groups.find("billing") is None) == (then is finished and is_deleted)
        assert groups.find("kept") is not None
        assert "kept" in positions.of


async def test_a_group_whose_positions_cannot_be_ended_for_now_is_made_again_without_them_alone(
    database_url,
):
    positions = Positions()
    async with opened(database_url, positions.end) as (_, groups):
        await groups.create("billing")
        positions.is_full = True
        with pytest.raises(StorageFull):
            await groups.delete("billing", check=anything)
        with pytest.raises(UnknownGroup):
            groups.get("billing")
        with capture_logs() as logs:
            await groups.finish_deletions()
            await groups.finish_deletions()
        with pytest.raises(StorageFull):
            await groups.create("billing")
        positions.is_full = False

        await groups.delete("billing", check=anything)

        assert [line["event"] for line in logs] == ["group_not_deleted_yet"]
        assert "billing" not in positions.of
        await groups.create("billing")
        assert groups.find("billing") is not None


async def test_a_group_whose_row_cannot_go_for_now_holds_up_no_other(database_url):
    ended: list[str] = []

    async def end(name: str) -> None:
        ended.append(name)

    async with opened(database_url, end) as (database, groups):
        for name in ("billing", "kept", "warehouse"):
            await groups.create(name)
        for name in ("billing", "warehouse"):
            await database.run(noted(name))
        for statement in REFUSAL[make_url(database_url).get_backend_name()]:
            await database.run(partial(execute, statement))

        await groups.reload()
        with capture_logs() as logs:
            await groups.finish_deletions()
            await groups.finish_deletions()

        assert [line["group"] for line in logs] == ["billing"]
        assert "it has to stay" in logs[0]["reason"]
        assert ended == ["billing", "warehouse"]
        await database.run(
            partial(execute, END_OF_REFUSAL[make_url(database_url).get_backend_name()])
        )
        await groups.finish_deletions()
        await groups.reload()
        await groups.create("billing")
        await groups.finish_deletions()
        assert [group.name for group in groups.all()] == ["billing", "kept"]
        await groups.delete("billing", check=anything)
        assert ended == ["billing", "warehouse", "billing"]


def noted(name: str) -> Callable[[Connection], None]:
    note = update(consumer_groups).where(consumer_groups.c.consumer_group == name)
    return lambda connection: connection.execute(note.values(is_being_deleted=True)).close()


def execute(statement: str, connection: Connection) -> None:
    connection.exec_driver_sql(statement).close()


REFUSAL = {
    "sqlite": [
        "CREATE TRIGGER refusal BEFORE DELETE ON consumer_groups "
        "WHEN old.consumer_group = 'billing' "
        "BEGIN SELECT raise(ABORT, 'it has to stay'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN "
        "RAISE EXCEPTION 'it has to stay' USING errcode = '23514'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER refusal BEFORE DELETE ON consumer_groups FOR EACH ROW "
        "WHEN (old.consumer_group = 'billing') EXECUTE FUNCTION refuse()",
    ],
}
END_OF_REFUSAL = {
    "sqlite": "DROP TRIGGER refusal",
    "postgresql": "DROP TRIGGER refusal ON consumer_groups",
}


async def test_a_group_that_is_found_to_be_deleted_is_unknown_and_then_ended(database_url):
    positions = Positions()
    async with opened(database_url, positions.end) as (database, groups):
        for name in ("billing", "kept"):
            await groups.create(name)
        note = update(consumer_groups).where(consumer_groups.c.consumer_group == "billing")
        noted = note.values(is_being_deleted=True)
        await database.run(lambda connection: connection.execute(noted).close())

        await groups.reload()
        assert groups.find("billing") is None
        await groups.finish_deletions()

        assert positions.of == {"kept"}
        assert [group.name for group in groups.all()] == ["kept"]
        await groups.reload()
        assert [group.name for group in groups.all()] == ["kept"]
