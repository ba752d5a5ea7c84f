"""Push: messages of a group are sent to an endpoint, which takes or refuses each of them.

What is sent is leased as by a stream, so that after a restart it is sent again at once, in the same
leases. The rules of the group say how often and when a message that was refused comes again. An
endpoint that fails again and again, or asks for time, is left alone meanwhile: the messages wait,
and their attempts do not count.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import structlog

from delivery.groups import GroupRules
from delivery.push_memory import GroupMemory, NoMemory, PushMemory
from delivery.receive.receive import LeasedMessage
from delivery.service import Delivery
from delivery.settle.reject import Rejection
from delivery.settle.retry_policy import backoff_ms
from delivery.streams import Stream, StreamOptions
from storage.circuit import Circuit
from storage.clock import Clock
from storage.errors import MessagingError

MOST_CONCURRENT = 1_000  # messages of one group
_LONGEST_RETRY_AFTER_MS = 3_600_000
_BUSY_MS = 1_000  # for an endpoint that is busy or gone, at least
_IDLE_MS = 15_000
_STORE_WAIT_MS = 1_000  # where the store takes nothing for now
_SETTLE_MS = 10_000  # a lease lasts for so long after the last moment of a try
_AT_ONCE = 16  # messages that are leased together
_MAX_BYTES = 1 << 20  # of their bodies
_MOST_BYTES = 64 << 20  # of the bodies of all that are under way
_MEMORY_WAIT_MS = 200

log = structlog.get_logger()


class PushRoute(NamedTuple):
    """The endpoint of a group's messages, how many are sent at once, and the timeout of a try."""

    host: str
    concurrency: int
    timeout_ms: int


class PushFailure(NamedTuple):
    """Why an endpoint did not accept a message.

    `retry_after_ms`: how long the endpoint asked for a pause. `is_busy`: it has not processed the
    message. `is_gone`: it asked never to be sent anything again. `blames_host`: other messages
    would fail there, too.
    """

    detail: str
    retry_after_ms: int | None = None
    is_busy: bool = False
    is_gone: bool = False
    blames_host: bool = False


class PushClient(Protocol):
    def groups(self) -> Iterable[str]:
        """The groups that have a route."""

    def route(self, group: str) -> PushRoute | None:
        """The route of the group; None if nothing is sent."""

    async def push(self, group: str, message: LeasedMessage) -> PushFailure | None:
        """Try once to send a message, within a timeout; None if it was accepted."""

    async def disable(self, group: str, host: str) -> None:
        """Stop sending to an endpoint that is gone."""


class _Pushing:
    """The state of the push of one group."""

    def __init__(self, group: str, memory: GroupMemory) -> None:
        self.group = group
        self.changed = asyncio.Event()  # a try has ended, or the settings may be others
        self.under_way: set[asyncio.Task[Any]] = set()
        self.host = ""
        self.circuit = Circuit()
        self.paused_until_ms = 0  # as the endpoint asked for, on the monotonic clock
        self.is_paused = False  # it waits for the end of a pause
        self.memory = memory

    def at(self, host: str) -> None:
        """The messages go there; what another host did does not count."""
        if host != self.host:
            self.host, self.circuit, self.paused_until_ms = host, Circuit(), 0

    def room(self, now_ms: int, concurrency: int) -> int:
        if now_ms < self.paused_until_ms:
            return 0
        return self.circuit.room(now_ms, concurrency=concurrency, under_way=len(self.under_way))

    def pause_ms(self, now_ms: int) -> int:
        """Length of the pause in which nothing is sent."""
        return max(0, max(self.paused_until_ms, self.circuit.closed_again_ms) - now_ms)


class Pusher:
    """Sends the messages of groups that have a route. Event loop only."""

    def __init__(
        self,
        delivery: Delivery,
        client: PushClient,
        clock: Clock,
        *,
        rules_of: Callable[[str], GroupRules | None],
        most: int,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        """`most`, `most_bytes`: maximum number of messages of all groups at once, and of bytes of
        their bodies.
        """
        self._delivery = delivery
        self._client = client
        self._clock = clock
        self._rules_of = rules_of
        self._places = asyncio.Semaphore(most)
        self._free = most
        self._memory = PushMemory(most_bytes)
        self._groups: dict[str, _Pushing] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopping = False

    @property
    def under_way(self) -> int:
        return sum(len(pushing.under_way) for pushing in self._groups.values())

    async def run_once(self) -> int:
        """Continue with groups whose pause is over, and begin with groups that have a route and are
        not being sent; the number of those begun.
        """
        now_ms = self._clock.monotonic_ms()
        for pushing in self._groups.values():
            if pushing.is_paused and not pushing.pause_ms(now_ms):
                pushing.changed.set()
        return self._begin_missing()

    def refresh(self, group: str) -> None:
        """Read the route and the rules of a group again."""
        pushing = self._groups.get(group)
        if pushing is not None:
            pushing.changed.set()
        self._begin_missing()

    def _begin_missing(self) -> int:
        begun = 0
        for group in () if self._is_stopping else self._client.groups():
            if group not in self._tasks:
                self._begin(group)
                begun += 1
        return begun

    def begin_stop(self) -> None:
        """Send no new message."""
        self._is_stopping = True
        for pushing in self._groups.values():
            pushing.changed.set()

    async def stop(self) -> None:
        """Abandon messages in progress; they are sent again after the next start."""
        self.begin_stop()
        tasks = [task for pushing in self._groups.values() for task in pushing.under_way]
        tasks += self._tasks.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, group: str) -> None:
        pushing = self._groups[group] = _Pushing(group, GroupMemory(self._memory))
        task = self._tasks[group] = asyncio.create_task(self._run(pushing), name=f"push-{group}")

        def ended(_: asyncio.Task[None]) -> None:
            del self._groups[group], self._tasks[group]

        task.add_done_callback(ended)

    async def _run(self, pushing: _Pushing) -> None:
        """Send the messages of a group, as long as it has a route."""
        group = pushing.group
        stream: Stream | None = None
        try:
            while not self._is_stopping:
                pushing.changed.clear()
                route, rules = self._client.route(group), self._rules_of(group)
                if route is None or rules is None:
                    break
                options = StreamOptions(
                    credit=MOST_CONCURRENT,
                    lease_ms=max(rules.lease_ms, route.timeout_ms + _SETTLE_MS),
                )
                if stream is None:
                    stream = self._delivery.streams.open(group, options)
                stream.options = options
                pushing.at(route.host)
                try:
                    await self._turn(pushing, stream, route, rules)
                except MessagingError as error:
                    log.warning("push_waits", group=group, error=str(error))
                    await _wait(pushing.changed, _STORE_WAIT_MS)
            # the leases of what is under way are no other stream's before that has ended
            if pushing.under_way:
                await asyncio.wait(pushing.under_way)
        except Exception:
            log.exception("push_failed_unexpectedly", group=group)
        finally:
            if stream is not None:
                self._delivery.streams.close(stream)

    async def _turn(
        self, pushing: _Pushing, stream: Stream, route: PushRoute, rules: GroupRules
    ) -> None:
        """Begin to send the messages that are there and have a place; wait if there are none."""
        now_ms = self._clock.monotonic_ms()
        room = min(pushing.room(now_ms, route.concurrency), self._share(pushing))
        if not room or not rules.subscriptions:
            pause_ms = pushing.pause_ms(now_ms)
            pushing.is_paused = pause_ms > 0
            await _wait(pushing.changed, min(pause_ms or _IDLE_MS, _IDLE_MS))
            pushing.is_paused = False
            return
        # an ordering key waits for the message before: one answer would have several of it
        places = await self._take_places(1 if rules.ordered else min(room, _AT_ONCE))
        found: list[LeasedMessage] = []
        has_memory = True
        try:
            found = await stream.take(
                rules, max_bytes=_MAX_BYTES, at_most=places, memory=pushing.memory
            )
        except NoMemory:
            has_memory = False
        finally:
            pushing.memory.end_take([one.found for one in found])
            for _ in range(places - len(found)):
                self._give_place()
        for one in found:
            self._start(pushing, route, one)
        if not has_memory:  # messages of others may be what ends next
            await _wait(pushing.changed, _MEMORY_WAIT_MS)
        elif not found:
            await stream.wait(rules, timeout_ms=_IDLE_MS, ended=pushing.changed)

    async def _take_places(self, wanted: int) -> int:
        """Wait for a place, and take up to so many free ones with it."""
        await self._places.acquire()
        self._free -= 1
        taken = 1
        while taken < wanted and not self._places.locked():
            await self._places.acquire()
            self._free -= 1
            taken += 1
        return taken

    def _share(self, pushing: _Pushing) -> int:
        """How many more places the group may take: at most as many as it leaves free, but at least
        one. So endpoints that hang never hold all places.
        """
        held = len(pushing.under_way)
        return max(0 if held else 1, (self._free - held) // 2)

    def _give_place(self) -> None:
        self._free += 1
        self._places.release()

    def _start(self, pushing: _Pushing, route: PushRoute, one: LeasedMessage) -> None:
        task = asyncio.create_task(self._push(pushing, route, one))
        pushing.under_way.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._give_place()
            pushing.memory.release(one.found)
            pushing.under_way.discard(task)
            pushing.changed.set()

        task.add_done_callback(ended)

    async def _push(self, pushing: _Pushing, route: PushRoute, one: LeasedMessage) -> None:
        group = pushing.group
        try:
            failure = await self._client.push(group, one)
            if pushing.host == route.host:
                self._note(pushing, failure)
            if failure is None:
                await self._delivery.ack(group, [one.handle])
            else:
                await self._refused(group, route, one, failure)
        except MessagingError as error:
            # the store takes nothing now: the message comes again at the end of its lease
            log.warning("push_not_recorded", group=group, error=str(error))
        except Exception:
            log.exception("push_failed_unexpectedly", group=group)

    def _note(self, pushing: _Pushing, failure: PushFailure | None) -> None:
        now_ms = self._clock.monotonic_ms()
        pushing.circuit.note(now_ms, has_failed=failure is not None and failure.blames_host)
        if failure is not None and (pause_ms := _pause_ms(failure)) is not None:
            pushing.paused_until_ms = max(pushing.paused_until_ms, now_ms + pause_ms)

    async def _refused(
        self, group: str, route: PushRoute, one: LeasedMessage, failure: PushFailure
    ) -> None:
        log.info(
            "push_refused",
            group=group,
            host=route.host,
            message_id=one.message.message_id,
            attempt=one.attempt,
            detail=failure.detail,
        )
        rules = self._rules_of(group)
        try:
            if rules is not None:
                is_unprocessed = failure.is_busy or failure.is_gone
                own_ms = 0 if is_unprocessed else backoff_ms(rules, one.attempt)
                delay_ms = max(own_ms, _pause_ms(failure) or 0)
                await self._delivery.nack(
                    group,
                    rules,
                    [Rejection(one.handle, delay_ms, failure.detail, unprocessed=is_unprocessed)],
                )
        finally:
            # Last: the registry may take its time, or nothing, and a lease that ended would count.
            if failure.is_gone:
                log.warning("push_endpoint_gone", group=group, host=route.host)
                await self._client.disable(group, route.host)


def _pause_ms(failure: PushFailure) -> int | None:
    """The length of the pause that the endpoint asked for; None if it did not. At least a second
    for one that is busy or gone: its refusals count no attempt, so nothing else would end them.
    """
    asked_ms = min(failure.retry_after_ms or 0, _LONGEST_RETRY_AFTER_MS)
    if failure.is_busy or failure.is_gone:
        return max(asked_ms, _BUSY_MS)
    return asked_ms or None


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_ms / 1_000)
