"""The worker for programs with an event loop of asyncio.

As `threads.py`, with tasks in place of threads. They run on one thread, so that nothing guards the
book; a task that waits is woken by every change.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from typing import TypeVar

from escrowmq_client.async_client import AsyncClient
from escrowmq_client.call import Call
from escrowmq_client.errors import EscrowMQError, ProblemError, Refused
from escrowmq_client.models.consume import ReceivedMessages, SettleResult, SettleResults
from escrowmq_client.reasons import error_text
from escrowmq_client.worker.book import (
    MOST_ENTRIES,
    Book,
    Lease,
    LeasedMessage,
    WorkerOptions,
    WorkerStats,
    message_of,
    settle_calls,
)
from escrowmq_client.worker.calling import run_handler
from escrowmq_client.worker.ending import GIVING_BACK_MS, Ending
from escrowmq_client.worker.failures import log_raised
from escrowmq_client.worker.outage import Outage
from escrowmq_client.worker.outcomes import (
    Nack,
    Outcome,
    check_awaitable,
    outcome_of,
)
from escrowmq_client.worker.poller import AsyncPoller
from escrowmq_client.worker.words import (
    is_passing,
    log,
    log_given_up,
    log_lost,
    log_not_extended,
    log_refused,
    log_refused_together,
    refusal_of,
    worker_name,
)

T = TypeVar("T")

_PAUSE_MS = 1_000  # before a service that failed is asked again
_LAST_MOMENT_MS = 100  # for handlers that end as they are cancelled, behind a second stop
_HEALTHY_MS = 60_000
_CANCELLED = Nack(0, "its handler was cancelled")


class AsyncWorker:
    """Handle messages of a consumer group in tasks of an event loop.

        async def handle(message: LeasedMessage) -> None:
            await book_invoice(message.json())

        async with AsyncClient() as client:
            await AsyncWorker(client, "billing", handle, concurrency=100).run()

    Parameters and promises are those of `Worker`. In addition, a handler whose message has lost its
    lease is cancelled, and so is one that has not finished `shutdown_ms` after the stop.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        handler: Callable[[LeasedMessage], Awaitable[object]],
        *,
        concurrency: int = 16,
        extend: bool = True,
        lease_ms: int | None = None,
        max_lease_ms: int = 12 * 3_600_000,
        wait_ms: int = 5_000,
        shutdown_ms: int = 25_000,
        ack_batch_ms: int = 20,
        name: str | None = None,
        handle_signals: bool = True,
    ) -> None:
        options = WorkerOptions(
            concurrency=concurrency,
            extend=extend,
            lease_ms=lease_ms,
            max_lease_ms=max_lease_ms,
            wait_ms=wait_ms,
            shutdown_ms=shutdown_ms,
            ack_batch_ms=ack_batch_ms,
        )
        check_awaitable(handler)
        self._client = client
        self._group = group
        self._handler = handler
        self._options = options
        self._name = name or worker_name()
        self._handle_signals = handle_signals
        self._book = Book(options, is_ordered=False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._running: dict[Lease, asyncio.Task[None]] = {}
        self._stops = 0
        self._is_receiving = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._last_answer_ms = -inf

    @property
    def stats(self) -> WorkerStats:
        """Numbers of messages since the worker was made."""
        return self._book.stats

    async def run(self) -> None:
        """Work until `stop()` or a signal. Raises what the service refuses for good.

        For example NotFound (group_not_found), or 401 of a wrong key. A service that cannot be
        reached is asked again until it answers.
        """
        self._loop = asyncio.get_running_loop()
        poller = AsyncPoller(self._client, Outage(self._group))
        work = (self._receive(poller), self._extend(), self._settle())
        services = [asyncio.create_task(one) for one in work]
        supervising = asyncio.create_task(self._supervise(poller))
        with self._signals() if self._handle_signals else nullcontext():
            try:
                ended = {supervising}
                while not supervising.done():
                    working = {supervising, *(one for one in services if not one.done())}
                    ended, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                    for one in ended:
                        if not one.cancelled():
                            one.result()
            finally:
                self._is_closed = True
                await self._cancel([supervising, *services, *self._running.values()])

    async def _cancel(self, tasks: "Iterable[asyncio.Task[None]]") -> None:
        """Cancel tasks and wait for their end; not for long, as a handler may ignore it."""
        left = set(tasks)
        leave_ms = _now_ms() + GIVING_BACK_MS
        for one in left:
            one.cancel()
        while left := {one for one in left if not _is_over(one)}:
            if self._stops > 1:
                leave_ms = min(leave_ms, _now_ms() + _LAST_MOMENT_MS)
            if _now_ms() >= leave_ms:
                log.error("%d handlers have not ended: each ignores its cancellation", len(left))
                return
            await self._wait(leave_ms, *left)

    async def run_until_idle(self) -> int:
        """Handle the messages that are available now, one by one; return their number.

        For tests and scheduled jobs: it receives and settles one message after another, and returns
        when a receive without a wait finds none. A message that is rejected counts each time that
        it comes. Leases are not extended. Not while `run` runs. Raises EscrowMQError.
        """
        handled = 0
        if self._book.rules is None:
            self._book.learn(await self._client.get_group(self._group))
        while not self._stops:
            answer = await self._client.receive_messages(
                self._group, max_messages=1, lease_ms=self._options.lease_ms, worker=self._name
            )
            self._book.receive(answer, _now_ms())
            for lease in self._book.start():
                handled += 1
                self._book.finish(lease, await self._handled(lease), _now_ms())
            for call, leases in settle_calls(self._group, self._book.to_settle(inf)):
                try:
                    results: list[SettleResult] = (await self._client.call(call)).results
                except Refused as refused:
                    results = refused.answer.results
                except EscrowMQError:
                    self._book.not_settled(leases, _now_ms())
                    raise
                for lease, problem in self._book.settled(leases, results):
                    log_refused(self._group, lease, problem)
            if not answer.messages:
                break
        return handled

    def stop(self) -> None:
        """Stop, from any thread; a second call gives back at once what still runs."""
        self._stops += 1
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: the worker has ended
                self._loop.call_soon_threadsafe(self._notify)

    def healthy(self, *, within_ms: int = _HEALTHY_MS) -> bool:
        """Tell whether the worker runs, and the service has answered it lately.

        A worker whose handlers are all busy does not receive; it is healthy.
        """
        if self._is_closed or self._last_answer_ms == -inf:
            return False
        is_busy = not self._book.is_stopping and self._book.free == 0
        return is_busy or _now_ms() - self._last_answer_ms <= within_ms

    async def _supervise(self, poller: AsyncPoller) -> None:
        """Start handlers, cancel those of lost leases, and stop in time."""
        ending = Ending(self._book)
        while self._error is None:
            now_ms = _now_ms()
            for lease in self._book.lose_overdue(now_ms):
                self._lost(lease, "it has ended")
            if self._stops and not ending.has_begun:
                ending.begin(now_ms)
                poller.finish()
            at_once = self._stops > 1
            for lease in ending.start(now_ms, at_once=at_once):
                self._running[lease] = asyncio.create_task(self._handle(lease))
            for lease in ending.give_back(now_ms, is_receiving=self._is_receiving, at_once=at_once):
                log_given_up(self._group, lease)
                self._running[lease].cancel()
            if ending.is_over(now_ms):
                return
            self._notify()
            await self._wait(min(self._book.next_loss_ms(), ending.next_ms()))
        raise self._error

    async def _receive(self, poller: AsyncPoller) -> None:
        async with poller:
            await self._learn(poller)
            while not self._stops:
                if not self._book.free:
                    await self._wait(inf)
                    continue
                self._is_receiving = True
                wait_ms = poller.longest_wait_ms(self._options.wait_ms)
                again_ms = _now_ms() + min(_PAUSE_MS, wait_ms)
                answer = await self._received(poller, self._book.free, wait_ms)
                self._is_receiving = False
                taken = 0 if answer is None else self._book.receive(answer, _now_ms())
                self._notify()
                if answer is None:
                    await self._pause(_now_ms() + _PAUSE_MS)
                elif not taken:
                    await self._pause(again_ms)  # unless the service has waited for so long

    async def _learn(self, poller: AsyncPoller) -> None:
        """Learn the settings of the group, unless the worker is stopped before."""
        while not self._stops:
            rules = await self._asked(poller.get_group(self._group))
            if rules is not None:
                self._book.learn(rules)
                return
            await self._pause(_now_ms() + _PAUSE_MS)

    async def _received(
        self, poller: AsyncPoller, most: int, wait_ms: int
    ) -> ReceivedMessages | None:
        """Receive up to so many messages; None if the service failed."""
        return await self._asked(
            poller.receive_messages(
                self._group,
                max_messages=min(most, MOST_ENTRIES),
                wait_ms=wait_ms,
                lease_ms=self._options.lease_ms,
                worker=self._name,
            )
        )

    async def _asked(self, call: Awaitable[T]) -> T | None:
        """Return the answer to a call of the poller; None if the service failed."""
        try:
            answer = await call
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            if not self._stops:
                log.warning("cannot receive messages of group %s: %s", self._group, error)
            return None
        self._last_answer_ms = _now_ms()
        return answer

    async def _extend(self) -> None:
        while True:
            while not (leases := self._book.to_extend(_now_ms())):
                await self._wait(self._book.next_extension_ms())
            await self._extend_all(leases)

    async def _extend_all(self, leases: list[Lease]) -> None:
        """Extend them together; one by one if the service refuses that as a whole."""
        sent_ms = _now_ms()
        call = self._book.extend_call(self._group, leases)
        try:
            results = await self._results(call)
        except ProblemError as error:
            if len(leases) > 1:
                log_refused_together(call.operation, self._group, len(leases), error)
                for lease in leases:
                    await self._extend_all([lease])
                return
            log_not_extended(self._group, leases[0], error)
            self._book.extend_no_more(leases[0])
            return
        if results is None:
            self._book.not_extended(leases, _now_ms())
        else:
            for lease in self._book.extended(leases, results, sent_ms):
                self._lost(lease, "an extension was refused")
        self._notify()

    async def _settle(self) -> None:
        while True:
            while not (batch := self._book.to_settle(_now_ms())):
                await self._wait(self._book.next_settlement_ms())
            for call, leases in settle_calls(self._group, batch):
                await self._settle_by(call, leases)

    async def _settle_by(self, call: Call[SettleResults], leases: list[Lease]) -> None:
        """Settle them together; one by one if the service refuses that as a whole."""
        try:
            results = await self._results(call)
        except ProblemError as error:
            if len(leases) > 1:
                log_refused_together(call.operation, self._group, len(leases), error)
                for lease in leases:
                    for one, of_it in settle_calls(self._group, [lease]):
                        await self._settle_by(one, of_it)
                return
            results = [refusal_of(lease, error) for lease in leases]
        if results is None:
            self._book.not_settled(leases, _now_ms())
        else:
            for lease, problem in self._book.settled(leases, results):
                log_refused(self._group, lease, problem)
        self._notify()

    async def _results(self, call: Call[SettleResults]) -> list[SettleResult] | None:
        """Return the result of each entry; None if the service failed."""
        try:
            results: list[SettleResult] = (await self._client.call(call)).results
        except Refused as refused:
            results = refused.answer.results
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            log.warning("%s of group %s failed: %s", call.operation, self._group, error)
            return None
        self._last_answer_ms = _now_ms()
        return results

    async def _handle(self, lease: Lease) -> None:
        outcome: Outcome = _CANCELLED
        try:
            outcome = await self._handled(lease)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  `run()` raises it
            outcome = Nack(None, error_text(error))
            self._error = self._error or error
        finally:
            del self._running[lease]
            self._book.finish(lease, outcome, _now_ms())
            self._notify()

    async def _handled(self, lease: Lease) -> Outcome:
        """Run the handler; return what becomes of its message."""
        if lease.is_lost:
            return _CANCELLED
        message, hooks = message_of(lease), self._client.hooks
        try:
            with hooks.on_message(self._group, message) if hooks else nullcontext():
                await run_handler(self._handler, message)
        except Exception as error:  # noqa: BLE001  it is the outcome of the handler
            assert self._book.rules is not None  # what runs a handler has learned them
            log_raised(self._book.rules, lease, error)
            return outcome_of(error)
        return outcome_of(None)

    def _lost(self, lease: Lease, why: str) -> None:
        log_lost(self._group, lease, why)
        if (task := self._running.get(lease)) is not None:
            task.cancel()

    async def _pause(self, until_ms: float) -> None:
        """Wait before the service is asked again; a stop ends it."""
        while not self._stops and _now_ms() < until_ms:
            await self._wait(until_ms)

    async def _wait(self, until_ms: float, *others: "asyncio.Future[None]") -> None:
        """Wait for a change, or the end of one of the others, until then at most."""
        wait_ms = until_ms - _now_ms()
        change = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            await asyncio.wait(
                {change, *others},
                timeout=None if wait_ms == inf else max(0, wait_ms) / 1_000,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._waiting.discard(change)

    def _notify(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    @contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Stop at SIGTERM and SIGINT, if the loop runs in the main thread."""
        loop = asyncio.get_running_loop()
        added: list[signal.Signals] = []
        for one in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(one, self.stop)
                added.append(one)
        try:
            yield
        finally:
            for one in added:
                loop.remove_signal_handler(one)


def _is_over(task: "asyncio.Task[None]") -> bool:
    """Tell whether it has ended; its error, if any, was raised before or is of no use now."""
    if not task.done():
        return False
    if not task.cancelled():
        task.exception()  # or asyncio reports that nothing took it
    return True


def _now_ms() -> float:
    return time.monotonic() * 1_000
