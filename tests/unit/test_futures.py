"""Waits of callers for the log to come so far."""

import asyncio
import gc
import weakref

import pytest

from storage.local.lanes.futures import EndWaits


def test_a_wait_that_its_caller_gives_up_takes_no_memory_any_more():
    """Some wait for a replica that is away, a second each, for as long as it is."""

    async def main() -> None:
        waits = EndWaits(asyncio.get_running_loop())
        kept, given_up = waits.wait(1), waits.wait(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(given_up, 0)
        left = weakref.ref(given_up)
        del given_up
        gc.collect()
        assert left() is None
        waits.reach(1)
        await kept

    asyncio.run(main())
