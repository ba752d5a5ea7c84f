"""The registry is read again by the loop that looks after its database."""

from pathlib import Path

from sqlalchemy import Connection
from structlog.testing import capture_logs

from app.components.registry import RegistryComponent
from app.registry.consumer_groups import ConsumerGroups
from app.registry.database import Database
from app.registry.options import LimitOptions
from app.registry.producer_groups import ProducerGroups
from app.registry.topics import Topics
from app.registry.vault import Vault
from storage.errors import ChangeInDoubt, StorageFull
from storage.memory import MemoryMessageStore
from tests.support.clock import ManualClock


async def test_a_disk_that_is_full_when_the_registry_is_read_again_is_logged_and_tried_again(
    tmp_path,
):
    database, clock, limits = (
        Database(f"sqlite:///{tmp_path}/registry.db"),
        ManualClock(),
        LimitOptions(),
    )
    await database.open()
    is_full, calls = True, []

    async def reload() -> None:
        calls.append("reload")
        if is_full:
            raise StorageFull

    async def then() -> None:
        calls.append("then")

    component = RegistryComponent(
        database,
        Topics(
            database,
            MemoryMessageStore(clock),
            clock,
            limits,
            creates_on_use=False,
            retention_ms=86_400_000,
        ),
        ProducerGroups(database, clock, Vault(), limits),
        ConsumerGroups(database, clock, Vault(), limits),
        dict,
        reload=reload,
        then=then,
    )
    (loop,) = component.loops()
    await leave_in_doubt(database, tmp_path / "registry.db")

    with capture_logs() as logs:
        await loop.run_once()
        await loop.run_once()
        assert database.in_doubt
        is_full = False
        await loop.run_once()

    assert [line["event"] for line in logs] == [
        "registry_away",
        "registry_read_again",
        "registry_back",
    ]
    assert calls == ["reload", "reload", "reload", "then"]
    await database.aclose()


async def leave_in_doubt(database: Database, file: Path) -> None:
    elsewhere = file.with_name("elsewhere.db")

    def move_away(_: Connection) -> None:
        file.rename(elsewhere)

    try:
        await database.run(move_away)
    except ChangeInDoubt:
        elsewhere.rename(file)
        await database.check()
