"""An event loop that stands still is noticed while it does, and what held it is in the log."""

import asyncio
import threading
from queue import SimpleQueue

import structlog

from app.observability.loop_watch import LoopWatch

_PATIENCE_SECONDS = 60


class Watched:
    """A watch, and what it has reported."""

    def __init__(self, *, limit_seconds: float) -> None:
        self.begun = threading.Event()
        self.ended: SimpleQueue[float] = SimpleQueue()
        self.count = 0
        self.watch = LoopWatch(
            limit_seconds=limit_seconds, on_standstill=self._note, on_end=self.ended.put
        )

    def _note(self) -> None:
        self.count += 1
        self.begun.set()

    async def hold_until_noticed(self) -> float:
        """Keep the loop from turning until the watch has noticed; how long it then says that it
        was.
        """
        self.begun.clear()
        assert hold(self.begun)
        return await asyncio.to_thread(self.ended.get, timeout=_PATIENCE_SECONDS)


def hold(noticed: threading.Event) -> bool:
    return noticed.wait(_PATIENCE_SECONDS)


async def test_a_loop_that_stands_still_is_reported_while_it_does_with_the_stack_of_what_holds_it():
    watched = Watched(limit_seconds=0.2)
    with structlog.testing.capture_logs() as lines:
        watched.watch.start()
        seconds = await watched.hold_until_noticed()
        watched.watch.stop()

    still = next(line for line in lines if line["event"] == "event_loop_stands_still")
    goes_on = next(line for line in lines if line["event"] == "event_loop_goes_on")
    assert any(call.endswith(" hold") for call in still["stacks"]["MainThread"])
    assert seconds >= still["seconds"] >= 0.2
    assert goes_on["seconds"] == round(seconds, 3)


async def test_each_standstill_is_counted_once():
    watched = Watched(limit_seconds=0.2)
    watched.watch.start()

    for _ in range(2):
        await watched.hold_until_noticed()

    watched.watch.stop()
    assert watched.count == 2 + watched.ended.qsize(), (
        "one more only where the machine itself stood still"
    )


async def test_a_loop_that_turns_is_not_reported():
    watched = Watched(limit_seconds=_PATIENCE_SECONDS)
    watched.watch.start()
    await asyncio.to_thread(lambda: None)
    watched.watch.stop()

    assert watched.count == 0
