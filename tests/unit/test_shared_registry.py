"""The registry that all machines share, as a promotion reads and changes it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from app.fencing.shared_registry import SharedRegistry
from app.registry import known_registry
from app.registry.database import Database
from app.replicas.leader import Leader
from app.replicas.leader_row import LeaderRow
from app.replicas.promise import CannotPromote, LogPlace, Promise
from app.replicas.promotion import claim_alone
from tests.conftest import ON_POSTGRESQL

pytestmark = ON_POSTGRESQL

PLACE = LogPlace(1, 900)


class Shared(NamedTuple):
    url: str
    row: LeaderRow

    def of_b(self, store_dir: Path) -> SharedRegistry:
        return SharedRegistry(self.url, store_dir, "b")


@pytest.fixture
async def shared(postgresql) -> AsyncIterator[Shared]:
    url = postgresql.new_database()
    database = Database(url)
    await database.open()
    yield Shared(url, LeaderRow(database))
    await database.aclose()


async def test_a_promotion_is_entered_in_a_later_epoch_than_the_registry_has(shared, tmp_path):
    await shared.row.change(lambda leader: leader.promoted(7_000, "c"))

    claimed = await shared.of_b(tmp_path).claim(claim_alone)(PLACE, Promise(1, "a"))

    assert claimed.epoch > 7_000
    assert await shared.row.read() == Leader(claimed.epoch, "b")


async def test_a_node_that_was_alone_stays_so_when_it_is_promoted(shared, tmp_path):
    await shared.row.change(lambda leader: leader.gone_alone(2, "b"))

    claimed = await shared.of_b(tmp_path).claim(claim_alone)(PLACE, Promise())

    assert await shared.row.read() == Leader(claimed.epoch, "b", is_alone=True)


@pytest.mark.parametrize("accept_loss", [False, True])
async def test_one_that_goes_alone_before_the_promotion_is_entered_is_found(
    shared, tmp_path, accept_loss
):
    async def claim(place: LogPlace, promised: Promise) -> Promise:
        await shared.row.change(lambda leader: leader.gone_alone(1, "a"))
        return await claim_alone(place, promised)

    registry = shared.of_b(tmp_path)
    if accept_loss:
        claimed = await registry.claim(claim, accept_loss=True)(PLACE, Promise())
        assert await shared.row.read() == Leader(claimed.epoch, "b")
        return
    with pytest.raises(CannotPromote, match="the registry says by now that a is alone"):
        await registry.claim(claim)(PLACE, Promise())
    assert await shared.row.read() == Leader(1, "a", is_alone=True)


async def test_of_two_promotions_the_later_one_is_entered(shared, tmp_path):
    async def claim(place: LogPlace, promised: Promise) -> Promise:
        claimed = await claim_alone(place, promised)
        await shared.row.change(lambda leader: leader.promoted(claimed.epoch, "c"))
        return claimed

    with pytest.raises(CannotPromote, match="the registry says by now that c leads in epoch"):
        await shared.of_b(tmp_path).claim(claim)(PLACE, Promise())


async def test_the_registry_of_another_log_says_nothing(shared, tmp_path):
    (tmp_path / "making").mkdir()
    known_registry.remember(tmp_path, "another one")

    with pytest.raises(CannotPromote, match="the registry is not the one of this log"):
        await shared.of_b(tmp_path).claim(claim_alone)(PLACE, Promise())

    assert await shared.row.read() == Leader()


async def test_a_registry_that_is_away_lets_none_be_promoted(shared, postgresql, tmp_path):
    registry = shared.of_b(tmp_path)
    with (
        postgresql.away(),
        pytest.raises(CannotPromote, match="which says whether another machine is alone"),
    ):
        await registry.check()
    assert await registry.check() == Leader()


async def test_a_registry_of_one_machine_is_asked_nothing(tmp_path):
    registry = SharedRegistry(f"sqlite:///{tmp_path / 'registry.db'}", tmp_path, "b")

    assert await registry.check() == Leader()
    assert await registry.claim(claim_alone)(PLACE, Promise()) == Promise(1_001)
    assert not list(tmp_path.iterdir())
