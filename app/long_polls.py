"""Waiting requests: each is a small object without a task or a timer, until its handler may
succeed.

One timer serves all of them. Requests that are woken together continue a few in each turn of the
loop, so that the turns stay short.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from app.bodies.budget import BodyShare
from storage.clock import Clock
from storage.errors import MessagingError, TooManyWaiting
from storage.message import QueueId
from storage.store import MessageStore

_AT_ONCE = 16  # requests that go on in one turn: 1 to 5 ms
_MOST_ENDED = 64  # waits that have ended and are in the order of time still, beyond as many as last

Again = Callable[[], Any]
"""Asks again.

A handler's returns an awaitable of a `Reply` or of another wait, that of a hot read what such a
read returns.
"""


class Waiting:
    """The wait of a request, returned by a handler that found nothing. Event loop only.

    Its handler has `wake` called when it may be worth asking again, and sets `undo`, which is
    called with `wake` to end that. Called after `wake`, it passes the occasion on to another
    request, where it was for one alone.
    """

    __slots__ = ("_again", "_context", "_is_woken", "_long_polls", "resume", "undo", "until_ms")

    def __init__(self, long_polls: "LongPolls", until_ms: int, again: Again) -> None:
        """`until_ms`: the end of the wait, on the monotonic clock.

        `again`: asks again, and may return another wait.
        """
        self._long_polls = long_polls
        self.until_ms = until_ms
        self._again = again
        self._context: Callable[[], AbstractContextManager[None]] = nullcontext
        self.undo: Callable[[Callable[[], None]], None] | None = None
        self.resume: Callable[[Waiting], None] | None = None  # None unless the request is suspended
        self._is_woken = False

    def __lt__(self, other: "Waiting") -> bool:
        return self.until_ms < other.until_ms

    def then(self, change: Callable[[Any], Any]) -> None:
        """Apply `change` to what `again` returns in the end; of one that returns an awaitable."""
        again = self._again

        async def changed() -> Any:
            return change(await again())

        self._again = changed

    def within(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Suspend and ask again within such a context, this wait and those that follow it; of one
        whose `again` returns an awaitable.
        """
        again, self._context = self._again, context

        async def inside() -> Any:
            with context():
                found = await again()
            if isinstance(found, Waiting):
                found.within(context)
            return found

        self._again = inside

    def suspend(self, resume: Callable[["Waiting"], None]) -> None:
        """Have `resume` called once, later, when `again` is to be called. Raises TooManyWaiting."""
        try:
            with self._context():
                self._long_polls.enter()
        except MessagingError:
            self.forget()
            raise
        self.resume = resume
        if self._is_woken:
            self._long_polls.make_ready(self, at_once=False)
        else:
            self._long_polls.set_end(self)

    def wake(self) -> None:
        """Run the handler of the request again. Only the first call counts."""
        if not self._is_woken:
            self._is_woken = True
            if self.resume is not None:
                self._long_polls.make_ready(self)

    def again(self) -> Any:
        """Ask again, once.

        What the request was is let go of: the wait may be in the order of time for long.
        """
        again, self._again = self._again, _nothing
        return again()

    def forget(self) -> None:
        """`wake` need not be called any more."""
        if self.undo is not None:
            self.undo(self.wake)

    def end(self) -> None:
        """End the wait of a request whose time is up."""
        if not self._is_woken:
            self.forget()
            self.wake()

    def leave(self) -> None:
        """The client has left: nothing is to be called any more."""
        self._long_polls.drop(self)
        self.forget()
        self._again = _nothing


class LongPolls:
    """Counts the requests that wait, and resumes those that are suspended. Event loop only."""

    def __init__(self, clock: Clock, *, most: int, on_changed: Callable[[int], None]) -> None:
        """`most`: requests that may wait at once. `on_changed`: gets how many do."""
        self._clock = clock
        self._most = most
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._ends: list[Waiting] = []  # a heap; those that have ended leave it later
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ready: deque[Waiting] = deque()
        self._left = _AT_ONCE  # to be resumed in this turn
        self._has_turn = False  # is the next one scheduled?

    def enter(self) -> None:
        """One more request waits. Raises TooManyWaiting."""
        self.check()
        self._count += 1
        self._on_changed(self._count)

    def check(self) -> None:
        """Raise TooManyWaiting where no further request may wait."""
        if self.is_full:
            raise TooManyWaiting(f"{self._count} requests are waiting, the limit is {self._most}")

    @property
    def is_full(self) -> bool:
        return self._count >= self._most

    def exit(self) -> None:
        """A request waits no longer."""
        self._count -= 1
        self._on_changed(self._count)

    def wait(self, until_ms: int, again: Again) -> Waiting:
        """The wait of a request, which is to be suspended."""
        return Waiting(self, until_ms, again)

    def wait_for_arrival(
        self, store: MessageStore, queue: QueueId, offset: int, until_ms: int, again: Again
    ) -> Waiting:
        """The wait of a request for a message at this offset of a queue: to be suspended."""
        waiting = Waiting(self, until_ms, again)
        store.call_on_arrival(queue, offset, waiting.wake)
        waiting.undo = partial(store.forget_call, queue)
        return waiting

    def wait_for_room(
        self, share: BodyShare, byte_count: int, until_ms: int, again: Again
    ) -> Waiting:
        """The wait of a request whose answer has no room now: to be suspended."""
        waiting = Waiting(self, until_ms, again)
        share.call_when_room(byte_count, waiting.wake)
        waiting.undo = share.forget_call
        return waiting

    def end_all(self) -> None:
        """The service stops: no wait goes on."""
        for waiting in list(self._ends):
            if waiting.resume is not None:
                waiting.end()

    # ----------------------------------------------------------------------------------------- what
    # becomes of a `Waiting`

    def set_end(self, waiting: Waiting) -> None:
        """Set the time at which the request is woken at the latest."""
        if len(self._ends) > 2 * self._count + _MOST_ENDED:
            self._ends = [one for one in self._ends if one.resume is not None]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, waiting)
        self._run_timer()

    def make_ready(self, waiting: Waiting, *, at_once: bool = True) -> None:
        """Resume it when it has its turn, which may be now, unless it is not to be `at_once`."""
        if self._left and at_once:
            self._resume(waiting)
        else:
            self._ready.append(waiting)
        self._schedule_turn()

    def drop(self, waiting: Waiting) -> None:
        """Never resume it."""
        if waiting.resume is not None:
            waiting.resume = None
            self.exit()

    def _resume(self, waiting: Waiting) -> None:
        resume = waiting.resume
        if resume is not None:
            self._left -= 1
            self.drop(waiting)
            resume(waiting)

    def _schedule_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._left = _AT_ONCE
        while self._ready and self._left:
            self._resume(self._ready.popleft())
        if self._left < _AT_ONCE:
            self._schedule_turn()

    def _run_timer(self) -> None:
        """Have the timer end with the first wait."""
        until_ms = self._ends[0].until_ms
        if self._timer is None or until_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = until_ms
            left_ms = max(0, until_ms - self._clock.monotonic_ms())
            self._timer = self._loop.call_later(left_ms / 1000, self._end_waits)

    def _end_waits(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        while self._ends and (self._ends[0].resume is None or self._ends[0].until_ms <= now_ms):
            ended = heapq.heappop(self._ends)
            if ended.resume is not None:
                ended.end()
        if self._ends:
            self._run_timer()


def _nothing() -> None:
    pass
