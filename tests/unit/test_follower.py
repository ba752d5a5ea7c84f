"""A replica whose log becomes another one."""

import asyncio

import pytest

from app.replicas import folder
from app.replicas.follower import Follower
from app.replicas.options import ReplicaOptions
from storage.clock import SystemClock
from storage.identifiers import Identifiers, SystemRandom
from storage.local.options import LocalStoreOptions


async def test_a_log_that_cannot_be_begun_again_is_not_known_and_what_is_there_is_opened(tmp_path):
    clock, options = SystemClock(), LocalStoreOptions(segment_bytes=1 << 16)
    folder.begin_log(tmp_path, 0, options.segment_bytes)
    follower = Follower(
        tmp_path,
        ReplicaOptions(primary="127.0.0.1:1"),
        options,
        clock,
        Identifiers(clock, SystemRandom()),
        find_primary=lambda: None,
    )
    follows = asyncio.ensure_future(follower.run())
    await asyncio.wait_for(follower.wait_begun(), 60)
    assert await follower.place() is not None

    with pytest.raises(OSError, match="File name too long"):
        await follower._begin_log(10**300)

    assert (follower._store, follower._has_begun.is_set()) == (None, False)
    folder.begin_log(tmp_path, 1 << 16, options.segment_bytes)
    await asyncio.wait_for(follower.wait_begun(), 60)
    place = await follower.place()
    assert place is not None
    assert place.end == 1 << 16
    follower.stop()
    await follows
