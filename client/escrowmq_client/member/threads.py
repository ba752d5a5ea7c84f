"""The worker that owns queues, for programs with threads.

The thread of `run()` waits for the stop. Beside it one thread joins, sends heartbeats and locks,
and each owned queue has a thread that reads and handles it. One condition guards the share; no
request is sent while it is held. A stop ends the calls that wait, so that none is under way over
the connections of a client that its program closes behind `run()`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from secrets import token_hex

from escrowmq_client.client import Client
from escrowmq_client.errors import EscrowMQError, NotFound, ProblemError
from escrowmq_client.member.share import (
    COMMIT_MS,
    MOST_PULLS,
    MemberOptions,
    OwnedPart,
    QueueWorkerStats,
    Share,
    Start,
    Strategy,
)
from escrowmq_client.member.words import (
    is_of_deleted_topic,
    log_away,
    log_failed,
    log_joins_again,
    log_unread,
    offset_behind,
)
from escrowmq_client.models.groups import SubscriptionInput
from escrowmq_client.models.members import QueueName
from escrowmq_client.models.messages import Message
from escrowmq_client.worker.calling import called
from escrowmq_client.worker.ending import GIVING_BACK_MS
from escrowmq_client.worker.outcomes import check_blocking, check_returned
from escrowmq_client.worker.poller import Poller
from escrowmq_client.worker.signals import stop_at_signals
from escrowmq_client.worker.words import is_passing, worker_name

_PAUSE_MS = 1_000  # before a service that failed is asked again


class QueueWorker:
    """Handle messages of the queues that this member of a group owns, each queue in its order.

        def handle(message: Message) -> None:
            book_invoice(message.json())

        QueueWorker(Client(), "billing", handle, topics=["orders"]).run()

    The members of a group share its queues, and each queue is handled by one of them: one message
    after another, in a thread of its own. A handler that raises is called again with the same
    message after `retry_ms`; its queue waits. A member that owns many queues pulls 32 at a time.
    Offsets are committed every 5 seconds and at the end, so that a message can be handled twice
    when its queue changes its owner.

    `lock`: no handler begins on a queue without its lock, which one member has at a time, also if
    another was paused meanwhile and does not know yet that it has lost the queue. `broadcast`: each
    member gets all messages, from the offsets of its `client_id`, which must be the same after a
    restart then.

    SIGTERM and SIGINT, or `stop()`, end it: handlers have `shutdown_ms` to finish, then the offsets
    are committed and the queues go to the other members at once.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        handler: Callable[[Message], object],
        *,
        topics: Sequence[SubscriptionInput | str],
        start: Start | None = None,
        start_at: datetime | None = None,
        strategy: Strategy | None = None,
        queues: Sequence[QueueName] | None = None,
        room: str | None = None,
        session_timeout_ms: int | None = None,
        broadcast: bool = False,
        lock: bool = False,
        client_id: str | None = None,
        max_messages: int = 100,
        wait_ms: int = 5_000,
        retry_ms: int = 1_000,
        shutdown_ms: int = 25_000,
        handle_signals: bool = True,
    ) -> None:
        check_blocking(handler)
        self._client = client
        self._group = group
        self._handler = handler
        self._options = MemberOptions(
            client_id=client_id or f"{worker_name()}-{token_hex(4)}",
            is_id_given=client_id is not None,
            topics=topics,
            start=start,
            start_at=start_at,
            strategy=strategy,
            queues=queues,
            room=room,
            session_timeout_ms=session_timeout_ms,
            broadcast=broadcast,
            lock=lock,
            max_messages=max_messages,
            wait_ms=wait_ms,
            retry_ms=retry_ms,
            shutdown_ms=shutdown_ms,
        )
        self._handle_signals = handle_signals
        self._share = Share(group, self._options)
        self._changed = threading.Condition()
        self._pulls = threading.Semaphore(MOST_PULLS)
        self._handling: set[QueueName] = set()  # queues whose handler runs
        self._is_stopping = False
        self._may_have_joined = False  # by a join whose answer was lost
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self.stats = QueueWorkerStats()

    @property
    def owned(self) -> list[QueueName]:
        """The queues that the member owns now."""
        with self._changed:
            return list(self._share.parts)

    def run(self) -> None:
        """Work until `stop()` or a signal. Raises what the service refuses for good.

        A service that cannot be reached is asked again until it answers.
        """
        poller = Poller(self._client)
        signals = stop_at_signals(self.stop, once=True)
        with signals if self._handle_signals else nullcontext(), poller:
            self._start(lambda: self._belong(poller))
            with self._changed:
                while not self._is_stopping:
                    self._changed.wait()
            poller.finish()
            leave_ms = _now_ms() + GIVING_BACK_MS
            self._finish()
            poller.cut()
            for one in self._threads:
                one.join(max(0, leave_ms - _now_ms()) / 1_000)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop, from any thread. Not in a signal handler."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def _finish(self) -> None:
        """Wait for handlers, commit what they have handled, and leave."""
        until_ms = _now_ms() + self._options.shutdown_ms
        with self._changed:
            while self._handling and (left_ms := until_ms - _now_ms()) > 0:
                self._changed.wait(left_ms / 1_000)
            offsets, share = self._share.to_commit(), self._share
            if not share.is_member:
                return
            beat = share.heartbeat_call(offsets, 0)
            member_id = share.member_id
            share.end()
        assert member_id is not None
        with suppress(EscrowMQError):  # the session ends by itself
            if offsets:
                self._client.call(beat)
            self._client.leave_group(self._group, member_id)

    # ----------------------------------------------------------------------------------------------
    # the member

    def _belong(self, poller: Poller) -> None:
        """Be a member until the stop."""
        while not self._is_stopping:
            again_ms, position = _now_ms() + _PAUSE_MS, self._share.position
            self._step(poller)
            if self._share.position == position or not self._share.is_member:
                with self._changed:
                    self._pause(again_ms - _now_ms())  # unless the service has waited for so long

    def _step(self, poller: Poller) -> None:
        try:
            if self._share.is_member:
                self._beat(poller)
            else:
                self._join(poller)
        except NotFound as error:
            if error.code != "member_not_found":
                raise
            with self._changed:
                self._share.end()
                self._changed.notify_all()
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            if self._is_stopping:
                return  # which has ended the call
            log_away(self._group, "a heartbeat", error)
            with self._changed:
                if self._share.has_expired(_now_ms()):
                    self._share.end()
                    self._changed.notify_all()
                self._pause(_PAUSE_MS)

    def _join(self, poller: Poller) -> None:
        if self._may_have_joined and not self._options.is_id_given:
            self._leave_lost()
        self._may_have_joined = True
        sent_ms = _now_ms()
        answer = self._client.call(self._options.join_call(self._group))
        self._may_have_joined = False
        self.stats.joins += 1
        with self._changed:
            is_late = self._is_stopping
            begun = [] if is_late else self._share.joined(answer, sent_ms)
        if is_late:
            self._client.leave_group(self._group, answer.member_id)
        self._begin(begun, poller)

    def _leave_lost(self) -> None:
        """End members of an earlier join whose answer was lost: they would own queues."""
        token = None
        while True:
            try:
                page = self._client.list_members(self._group, page_token=token)
            except NotFound:
                return
            for member in page.items:
                if member.client_id == self._options.client_id:
                    with suppress(NotFound):
                        self._client.leave_group(self._group, member.member_id)
            token = page.next_page_token
            if token is None:
                return

    def _beat(self, poller: Poller) -> None:
        with self._changed:
            offsets = self._share.to_commit()
            beat = self._share.heartbeat_call(offsets, poller.longest_wait_ms(COMMIT_MS))
            names, member_id = self._share.to_lock(), self._share.member_id
            generation = self._share.generation
        if names and member_id is not None:
            self._lock(member_id, names, generation)
        sent_ms = _now_ms()
        try:
            answer = poller.call(beat)
        except NotFound as error:
            if not offsets or not is_of_deleted_topic(error):
                raise
            # nothing was committed; the answer without them says what is owned now
            with self._changed:
                offsets, sent_ms = [], _now_ms()
                beat = self._share.heartbeat_call(offsets, poller.longest_wait_ms(COMMIT_MS))
            answer = poller.call(beat)
        with self._changed:
            if self._is_stopping:
                return
            begun = self._share.beaten(answer, offsets, sent_ms)
            has_lost_topic = self._share.has_lost_topic
            self._changed.notify_all()
        self._begin(begun, poller)
        if has_lost_topic:
            self._look_for_topics(poller)

    def _look_for_topics(self, poller: Poller) -> None:
        """Warn of topics that the group has stopped to read; join again if it reads none.

        A forced deletion of a topic takes it from the group, also if it is created again.
        """
        rules = poller.get_group(self._group)
        with self._changed:
            unread, member_id = self._share.newly_unread(rules), self._share.member_id
        for topic in unread:
            log_unread(self._group, topic)
        if rules.topics or member_id is None or not self._topics_exist(poller):
            return
        log_joins_again(self._group)
        with suppress(NotFound):
            poller.leave_group(self._group, member_id)
        with self._changed:
            self._share.end()
            self._changed.notify_all()

    def _topics_exist(self, poller: Poller) -> bool:
        """Tell whether each topic exists, or the join would be refused."""
        try:
            for topic in self._options.topic_names:
                poller.get_topic(topic)
        except NotFound:
            return False
        return True

    def _lock(self, member_id: str, names: Sequence[QueueName], generation: int) -> None:
        sent_ms = _now_ms()
        try:
            locks = self._client.lock_queues(self._group, member_id, names, generation=generation)
        except ProblemError as error:
            if error.code != "fenced" and not is_of_deleted_topic(error):
                raise
            return  # the heartbeat that follows says what is owned now
        with self._changed:
            self._share.locked(locks, sent_ms)
            self._changed.notify_all()

    def _begin(self, parts: Sequence[OwnedPart], poller: Poller) -> None:
        for part in parts:
            self._start(partial(self._consume, part, poller))

    # ----------------------------------------------------------------------------------------------
    # a queue

    def _consume(self, part: OwnedPart, poller: Poller) -> None:
        """Handle the messages of a queue, as long as the member owns it."""
        while self._await_turn(part):
            try:
                with self._pulls:
                    wait_ms = poller.longest_wait_ms(self._share.pull_wait_ms)
                    again_ms = _now_ms() + min(_PAUSE_MS, wait_ms)
                    page = poller.pull_messages(
                        part.queue.topic,
                        part.queue.queue_id,
                        offset=part.offset,
                        max_messages=self._options.max_messages,
                        wait_ms=wait_ms,
                        group=self._group,
                        out_of_range="earliest",
                    )
            except NotFound:
                # its topic was deleted: the next assignment says so, or it was created again
                with self._changed:
                    self._pause(_PAUSE_MS)
                continue
            except EscrowMQError as error:
                self._pull_failed(part, error)
                continue
            for message in page.messages:
                if not self._handled(part, message):
                    break
            else:
                with self._changed:
                    if page.next_offset == part.offset:
                        self._pause(again_ms - _now_ms())  # unless the service has waited so long
                    part.offset = page.next_offset

    def _pull_failed(self, part: OwnedPart, error: EscrowMQError) -> None:
        behind = offset_behind(part, error) if isinstance(error, ProblemError) else None
        if behind is not None:
            part.offset = behind
            return
        if not is_passing(error):
            raise error
        if self._is_stopping:
            return  # which has ended the call
        log_away(self._group, "a pull", error)
        with self._changed:
            self._pause(_PAUSE_MS)

    def _handled(self, part: OwnedPart, message: Message) -> bool:
        """Handle the message, again until its handler succeeds; False if its queue was lost."""
        while self._await_turn(part):
            error: Exception | None = None
            with self._changed:
                if part.queue in self._handling:
                    continue
                self._handling.add(part.queue)
            try:
                check_returned(called(self._handler, message))
            except Exception as raised:  # noqa: BLE001  it is the outcome of the handler
                error = raised
            except BaseException:
                with self._changed:
                    self._handling.discard(part.queue)  # the stop, which follows, waits for it
                raise
            with self._changed:
                self._handling.discard(part.queue)
                if error is None:
                    part.offset = message.queue_offset + 1
                    self.stats.handled += 1
                else:
                    self.stats.failed += 1
                self._changed.notify_all()
                if error is None:
                    return True
                log_failed(self._group, message, error, self._options.retry_ms)
                self._pause(self._options.retry_ms)
        return False

    def _await_turn(self, part: OwnedPart) -> bool:
        """Wait for the lock of the queue, and for the end of a handler from before the queue was
        lost and won again; False if it was lost, or the worker stops.
        """
        with self._changed:
            while not self._is_stopping and not part.is_lost:
                if part.may_handle(_now_ms()) and part.queue not in self._handling:
                    return True
                self._changed.wait()
            return False

    # ----------------------------------------------------------------------------------------------

    def _pause(self, wait_ms: float) -> None:
        """Wait so long; a stop ends it."""
        until_ms = _now_ms() + wait_ms
        while not self._is_stopping and (left_ms := until_ms - _now_ms()) > 0:
            self._changed.wait(left_ms / 1_000)

    def _start(self, work: Callable[[], None]) -> None:
        """Begin a thread whose error is the worker's."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  `run()` raises it
                with self._changed:
                    if not self._is_stopping:
                        self._error = self._error or error
                    self._is_stopping = True
                    self._changed.notify_all()

        # a daemon: a handler that never returns must not keep the process
        thread = threading.Thread(target=run, daemon=True)
        thread.start()  # first: what the worker waits for at its end has begun
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]


def _now_ms() -> float:
    return time.monotonic() * 1_000
