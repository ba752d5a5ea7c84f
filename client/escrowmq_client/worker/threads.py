"""The worker for programs with threads.

The thread of `run()` starts handlers and notices leases that end. Beside it one thread receives,
one extends leases, one settles, and `concurrency` threads handle messages. One condition guards the
book; no request is sent while it is held.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TypeVar

from escrowmq_client.call import Call
from escrowmq_client.client import Client
from escrowmq_client.errors import EscrowMQError, ProblemError, Refused
from escrowmq_client.models.consume import ReceivedMessages, SettleResult, SettleResults
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
from escrowmq_client.worker.calling import called
from escrowmq_client.worker.ending import GIVING_BACK_MS, Ending
from escrowmq_client.worker.failures import log_raised
from escrowmq_client.worker.outage import Outage
from escrowmq_client.worker.outcomes import (
    check_blocking,
    check_returned,
    outcome_of,
)
from escrowmq_client.worker.poller import Poller
from escrowmq_client.worker.signals import stop_at_signals
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
_HEALTHY_MS = 60_000


class Worker:
    """Handle messages of a consumer group, several at once.

        def handle(message: LeasedMessage) -> None:
            book_invoice(message.json())

        Worker(Client(), "billing", handle, concurrency=16).run()

    A handler that returns acknowledges its message. `raise RetryLater(after_ms)` and `raise
    DeadLetter(reason)` do what they say; any other exception rejects the message with its text as
    the reason. Leases are extended after a third of their time, until `max_lease_ms` (with
    `extend=False` never); a message whose lease has ended has `lost`. No more messages are received
    than can start at once. In an ordered group one message of each ordering key is handled at a
    time.

    SIGTERM and SIGINT, or `stop()`, end it: a receive that waits is ended, messages that no handler
    has begun are given back, which counts as no attempt, and handlers have `shutdown_ms` to finish
    while their leases are extended. What is unfinished then is rejected, which counts as an
    attempt. A second signal rejects it at once.

    `ack_batch_ms`: how long an acknowledgement waits for others. `wait_ms`: how long a receive
    waits for messages. `lease_ms`: lease time, unless the group's.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        handler: Callable[[LeasedMessage], object],
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
        check_blocking(handler)
        self._client = client
        self._group = group
        self._handler = handler
        self._options = options
        self._name = name or worker_name()
        self._handle_signals = handle_signals
        self._book = Book(options, is_ordered=False)
        self._changed = threading.Condition()
        self._work: SimpleQueue[Lease | None] = SimpleQueue()
        self._poller: Poller | None = None
        self._stops = 0
        self._is_receiving = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._last_answer_ms = -inf

    @property
    def stats(self) -> WorkerStats:
        """Numbers of messages since the worker was made."""
        return self._book.stats

    def run(self) -> None:
        """Work until `stop()` or a signal. Raises what the service refuses for good.

        For example NotFound (group_not_found), or 401 of a wrong key. A service that cannot be
        reached is asked again until it answers.
        """
        self._poller = poller = Poller(self._client, Outage(self._group))
        services = [lambda: self._receive(poller), self._extend, self._settle]
        signals = stop_at_signals(self.stop, once=False)
        # Daemons: a handler that never returns must not keep the process.
        threads = [
            threading.Thread(target=self._guarded(one), daemon=True)
            for one in (*services, *[self._handle] * self._options.concurrency)
        ]
        with signals if self._handle_signals else nullcontext():
            for one in threads:
                one.start()
            try:
                self._supervise(poller)
            finally:
                self._close(poller)
                leave_ms = _now_ms() + GIVING_BACK_MS
                # their calls: the program closes its client behind this
                for one in threads[: len(services)]:
                    one.join(max(0, leave_ms - _now_ms()) / 1_000)
        if self._error is not None:
            raise self._error

    def run_until_idle(self) -> int:
        """Handle the messages that are available now, in this thread; return their number.

        For tests and scheduled jobs: it receives and settles one message after another, and returns
        when a receive without a wait finds none. A message that is rejected counts each time that
        it comes. Leases are not extended. Not while `run` runs. Raises EscrowMQError.
        """
        handled = 0
        if self._book.rules is None:
            self._book.learn(self._client.get_group(self._group))
        while not self._stops:
            answer = self._client.receive_messages(
                self._group, max_messages=1, lease_ms=self._options.lease_ms, worker=self._name
            )
            self._book.receive(answer, _now_ms())
            for lease in self._book.start():
                handled += 1
                self._book.finish(lease, outcome_of(self._handled(lease)), _now_ms())
            for call, leases in settle_calls(self._group, self._book.to_settle(inf)):
                try:
                    results = self._client.call(call).results
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
        """Stop, from any thread; a second call gives back at once what still runs.

        Not in a signal handler, which may interrupt the worker where it holds a lock.
        """
        with self._changed:  # several threads may stop it
            self._stops += 1
            self._changed.notify_all()
        if self._poller is not None:
            self._poller.finish()

    def healthy(self, *, within_ms: int = _HEALTHY_MS) -> bool:
        """Tell whether the worker runs, and the service has answered it lately.

        A worker whose handlers are all busy does not receive; it is healthy.
        """
        with self._changed:
            if self._is_closed or self._last_answer_ms == -inf:
                return False
            is_busy = not self._book.is_stopping and self._book.free == 0
            return is_busy or _now_ms() - self._last_answer_ms <= within_ms

    def _supervise(self, poller: Poller) -> None:
        """Start handlers, notice lost leases, and stop in time."""
        ending = Ending(self._book)
        with self._changed:
            while self._error is None:
                now_ms = _now_ms()
                for lease in self._book.lose_overdue(now_ms):
                    log_lost(self._group, lease, "it has ended")
                if self._stops and not ending.has_begun:
                    ending.begin(now_ms)
                    poller.finish()
                at_once = self._stops > 1
                for lease in ending.start(now_ms, at_once=at_once):
                    self._work.put(lease)
                for lease in ending.give_back(
                    now_ms, is_receiving=self._is_receiving, at_once=at_once
                ):
                    log_given_up(self._group, lease)
                if ending.is_over(now_ms):
                    return
                self._changed.notify_all()
                self._wait(min(self._book.next_loss_ms(), ending.next_ms()))

    def _receive(self, poller: Poller) -> None:
        with poller:
            self._learn(poller)
            while True:
                with self._changed:
                    while not self._book.free and not self._is_ending:
                        self._changed.wait()
                    if self._is_ending:
                        return
                    most = self._book.free
                    self._is_receiving = True
                wait_ms = poller.longest_wait_ms(self._options.wait_ms)
                again_ms = _now_ms() + min(_PAUSE_MS, wait_ms)
                answer = self._received(poller, most, wait_ms)
                with self._changed:
                    self._is_receiving = False
                    self._changed.notify_all()
                    if answer is None:
                        self._pause(_now_ms() + _PAUSE_MS)
                    elif not self._book.receive(answer, _now_ms()):
                        self._pause(again_ms)  # unless the service has waited for so long

    def _learn(self, poller: Poller) -> None:
        """Learn the settings of the group, unless the worker is stopped before."""
        while not self._is_ending:
            rules = self._asked(partial(poller.get_group, self._group))
            with self._changed:
                if rules is not None:
                    self._book.learn(rules)
                    return
                self._pause(_now_ms() + _PAUSE_MS)

    def _received(self, poller: Poller, most: int, wait_ms: int) -> ReceivedMessages | None:
        """Receive up to so many messages; None if the service failed."""
        return self._asked(
            partial(
                poller.receive_messages,
                self._group,
                max_messages=min(most, MOST_ENTRIES),
                wait_ms=wait_ms,
                lease_ms=self._options.lease_ms,
                worker=self._name,
            )
        )

    def _asked(self, call: Callable[[], T]) -> T | None:
        """Return the answer to a call of the poller; None if the service failed."""
        try:
            answer = call()
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            if not self._stops:
                log.warning("cannot receive messages of group %s: %s", self._group, error)
            return None
        self._last_answer_ms = _now_ms()
        return answer

    def _extend(self) -> None:
        while True:
            with self._changed:
                while not (leases := self._book.to_extend(_now_ms())):
                    if self._is_closed:
                        return
                    self._wait(self._book.next_extension_ms())
            self._extend_all(leases)

    def _extend_all(self, leases: list[Lease]) -> None:
        """Extend them together; one by one if the service refuses that as a whole."""
        sent_ms = _now_ms()
        call = self._book.extend_call(self._group, leases)
        try:
            results = self._results(call)
        except ProblemError as error:
            if len(leases) > 1:
                log_refused_together(call.operation, self._group, len(leases), error)
                for lease in leases:
                    self._extend_all([lease])
                return
            log_not_extended(self._group, leases[0], error)
            with self._changed:
                self._book.extend_no_more(leases[0])
            return
        with self._changed:
            if results is None:
                self._book.not_extended(leases, _now_ms())
            else:
                for lease in self._book.extended(leases, results, sent_ms):
                    log_lost(self._group, lease, "an extension was refused")
            self._changed.notify_all()

    def _settle(self) -> None:
        while True:
            with self._changed:
                while not (batch := self._book.to_settle(_now_ms())):
                    if self._is_closed:
                        return
                    self._wait(self._book.next_settlement_ms())
            for call, leases in settle_calls(self._group, batch):
                self._settle_by(call, leases)

    def _settle_by(self, call: Call[SettleResults], leases: list[Lease]) -> None:
        """Settle them together; one by one if the service refuses that as a whole."""
        try:
            results = self._results(call)
        except ProblemError as error:
            if len(leases) > 1:
                log_refused_together(call.operation, self._group, len(leases), error)
                for lease in leases:
                    for one, of_it in settle_calls(self._group, [lease]):
                        self._settle_by(one, of_it)
                return
            results = [refusal_of(lease, error) for lease in leases]
        with self._changed:
            if results is None:
                self._book.not_settled(leases, _now_ms())
            else:
                for lease, problem in self._book.settled(leases, results):
                    log_refused(self._group, lease, problem)
            self._changed.notify_all()

    def _results(self, call: Call[SettleResults]) -> list[SettleResult] | None:
        """Return the result of each entry; None if the service failed."""
        try:
            results = self._client.call(call).results
        except Refused as refused:
            results = refused.answer.results
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            log.warning("%s of group %s failed: %s", call.operation, self._group, error)
            return None
        self._last_answer_ms = _now_ms()
        return results

    def _handle(self) -> None:
        while (lease := self._work.get()) is not None:
            error = self._handled(lease)
            with self._changed:
                self._book.finish(lease, outcome_of(error), _now_ms())
                self._changed.notify_all()

    def _handled(self, lease: Lease) -> Exception | None:
        """Run the handler; return what it raised."""
        if lease.is_lost:
            return None
        message, hooks = message_of(lease), self._client.hooks
        try:
            with hooks.on_message(self._group, message) if hooks else nullcontext():
                check_returned(called(self._handler, message))
        except Exception as error:  # noqa: BLE001  it is the outcome of the handler
            assert self._book.rules is not None  # what runs a handler has learned them
            log_raised(self._book.rules, lease, error)
            return error
        return None

    @property
    def _is_ending(self) -> bool:
        return self._is_closed or bool(self._stops)

    def _pause(self, until_ms: float) -> None:
        """Wait before the service is asked again; a stop ends it."""
        while not self._is_ending and _now_ms() < until_ms:
            self._wait(until_ms)

    def _wait(self, until_ms: float) -> None:
        """Wait for a change, until then at most."""
        wait_ms = until_ms - _now_ms()
        most_s = threading.TIMEOUT_MAX  # a lease may last for longer
        self._changed.wait(None if wait_ms == inf else min(max(0, wait_ms) / 1_000, most_s))

    def _close(self, poller: Poller) -> None:
        poller.cut()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for _ in range(self._options.concurrency):
            self._work.put(None)

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Make a thread's error the worker's."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  `run()` raises it
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()

        return run


def _now_ms() -> float:
    return time.monotonic() * 1_000
