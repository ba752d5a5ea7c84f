"""A replica whose log becomes another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.replicas import folder
from app.replicas.follower import Follower
from app.replicas.options import ReplicaOptions
from storage.clock import SystemClock
from storage.identifiers import Identifiers, SystemRandom
from storage.local.options import LocalStoreOptions

OPTIONS = LocalStoreOptions(segment_bytes=1 << 16)


@asynccontextmanager
async def following(data_dir: Path) -> AsyncIterator[Follower]:
    """A follower of a primary that does not answer, with a log without any unit."""
    clock = SystemClock()
    folder.begin_log(data_dir, 0, OPTIONS.segment_bytes)
    follower = Follower(
        data_dir,
        ReplicaOptions(primary="127.0.0.1:1"),
        OPTIONS,
        clock,
        Identifiers(clock, SystemRandom()),
        find_primary=lambda: None,
    )
    follows = asyncio.ensure_future(follower.run())
    await asyncio.wait_for(follower.wait_begun(), 60)
    yield follower
    follower.stop()
    await follows


async def test_a_log_that_cannot_be_begun_again_is_not_known_and_what_is_there_is_opened(tmp_path):
    async with following(tmp_path) as follower:
        assert await follower.place() is not None

        with pytest.raises(OSError, match="File name too long"):
            await follower._begin_log(10**300)

        assert (follower._store, follower._has_begun.is_set()) == (None, False)
        folder.begin_log(tmp_path, 1 << 16, OPTIONS.segment_bytes)
        await asyncio.wait_for(follower.wait_begun(), 60)
        place = await follower.place()
        assert place is not None
        assert place.end == 1 << 16


async def test_files_of_another_program_stay_when_a_log_is_begun_again(tmp_path):
    async with following(tmp_path) as follower:
        foreign = [
            tmp_path / "store" / name
            for name in ("goods", "config/goods", "index/goods", "timers/goods")
        ]
        for file in foreign:
            file.write_text("of another program")

        await follower._begin_log(1 << 16)

        place = await follower.place()
        assert place is not None
        assert place.end == 1 << 16
        assert [file.name for file in foreign if not file.exists()] == []
