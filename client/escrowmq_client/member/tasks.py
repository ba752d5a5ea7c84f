"""The worker that owns queues, for programs with an event loop of asyncio.

As `threads.py`, with tasks in place of threads. They run on one thread, so that nothing guards the
share; a task that waits is woken by every change.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import Any

from escrowmq_client.async_client import AsyncClient
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
from escrowmq_client.worker.calling import run_handler
from escrowmq_client.worker.outcomes import check_awaitable
from escrowmq_client.worker.words import is_passing, worker_name

_PAUSE_MS = 1_000  # before a service that failed is asked again


class AsyncQueueWorker:
    """Handle messages of the queues that this member of a group owns, in tasks of an event loop.

        async def handle(message: Message) -> None:
            await book_invoice(message.json())

        async with AsyncClient() as client:
            await AsyncQueueWorker(client, "billing", handle, topics=["orders"]).run()

    Parameters and promises are those of `QueueWorker`. In addition, the handler of a queue that was
    lost is cancelled, and so is one that has not finished `shutdown_ms` after the stop.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        handler: Callable[[Message], Awaitable[object]],
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
        check_awaitable(handler)
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
        self._handling: set[QueueName] = set()  # queues whose handler runs
        self._is_stopping = False
        self._may_have_joined = False  # by a join whose answer was lost
        self._stopped = asyncio.Event()
        self._pulls = asyncio.Semaphore(MOST_PULLS)
        self._waiting: set[asyncio.Future[None]] = set()
        self._tasks: dict[OwnedPart, asyncio.Task[None]] = {}
        self._error: BaseException | None = None
        self.stats = QueueWorkerStats()

    @property
    def owned(self) -> list[QueueName]:
        """The queues that the member owns now."""
        return list(self._share.parts)

    async def run(self) -> None:
        """Work until `stop()` or a signal. Raises what the service refuses for good.

        A service that cannot be reached is asked again until it answers.
        """
        belonging = self._spawn(self._belong())
        with self._signals() if self._handle_signals else nullcontext():
            try:
                await self._stopped.wait()
            finally:
                self.stop()
                belonging.cancel()
                await asyncio.wait({belonging})
                await self._finish()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop, on the loop's thread."""
        self._is_stopping = True
        self._stopped.set()
        self._notify()

    async def _finish(self) -> None:
        """Wait for handlers, commit what they have handled, and leave."""
        until_ms = _now_ms() + self._options.shutdown_ms
        while self._handling and _now_ms() < until_ms:
            await self._wait(until_ms - _now_ms())
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        offsets, share = self._share.to_commit(), self._share
        if share.member_id is None:
            return
        beat, member_id = share.heartbeat_call(offsets, 0), share.member_id
        share.end()
        with suppress(EscrowMQError):  # the session ends by itself
            if offsets:
                await self._client.call(beat)
            await self._client.leave_group(self._group, member_id)

    # ----------------------------------------------------------------------------------------------
    # the member

    async def _belong(self) -> None:
        """Be a member until the stop."""
        while not self._is_stopping:
            again_ms, position = _now_ms() + _PAUSE_MS, self._share.position
            await self._step()
            if self._share.position == position or not self._share.is_member:
                await self._pause(again_ms - _now_ms())  # unless the service has waited for so long

    async def _step(self) -> None:
        try:
            if self._share.is_member:
                await self._beat()
            else:
                await self._join()
        except NotFound as error:
            if error.code != "member_not_found":
                raise
            self._share.end()
            self._cancel_lost()
        except EscrowMQError as error:
            if not is_passing(error):
                raise
            log_away(self._group, "a heartbeat", error)
            if self._share.has_expired(_now_ms()):
                self._share.end()
                self._cancel_lost()
            await self._pause(_PAUSE_MS)

    async def _join(self) -> None:
        if self._may_have_joined and not self._options.is_id_given:
            await self._leave_lost()
        self._may_have_joined = True
        sent_ms = _now_ms()
        answer = await self._client.call(self._options.join_call(self._group))
        self._may_have_joined = False
        self.stats.joins += 1
        self._begin(self._share.joined(answer, sent_ms))

    async def _leave_lost(self) -> None:
        """End members of an earlier join whose answer was lost: they would own queues."""
        token = None
        while True:
            try:
                page = await self._client.list_members(self._group, page_token=token)
            except NotFound:
                return
            for member in page.items:
                if member.client_id == self._options.client_id:
                    with suppress(NotFound):
                        await self._client.leave_group(self._group, member.member_id)
            token = page.next_page_token
            if token is None:
                return

    async def _beat(self) -> None:
        share = self._share
        offsets, names, member_id = share.to_commit(), share.to_lock(), share.member_id
        beat = share.heartbeat_call(offsets, COMMIT_MS)
        if names and member_id is not None:
            await self._lock(member_id, names)
        sent_ms = _now_ms()
        try:
            answer = await self._client.call(beat)
        except NotFound as error:
            if not offsets or not is_of_deleted_topic(error):
                raise
            # nothing was committed; the answer without them says what is owned now
            offsets, sent_ms = [], _now_ms()
            answer = await self._client.call(share.heartbeat_call(offsets, COMMIT_MS))
        self._begin(share.beaten(answer, offsets, sent_ms))
        self._cancel_lost()
        if share.has_lost_topic:
            await self._look_for_topics()

    async def _look_for_topics(self) -> None:
        """Warn of topics that the group has stopped to read; join again if it reads none.

        A forced deletion of a topic takes it from the group, also if it is created again.
        """
        rules = await self._client.get_group(self._group)
        for topic in self._share.newly_unread(rules):
            log_unread(self._group, topic)
        member_id = self._share.member_id
        if rules.topics or member_id is None or not await self._topics_exist():
            return
        log_joins_again(self._group)
        with suppress(NotFound):
            await self._client.leave_group(self._group, member_id)
        self._share.end()

    async def _topics_exist(self) -> bool:
        """Tell whether each topic exists, or the join would be refused."""
        try:
            for topic in self._options.topic_names:
                await self._client.get_topic(topic)
        except NotFound:
            return False
        return True

    async def _lock(self, member_id: str, names: Sequence[QueueName]) -> None:
        sent_ms = _now_ms()
        try:
            locks = await self._client.lock_queues(
                self._group, member_id, names, generation=self._share.generation
            )
        except ProblemError as error:
            if error.code != "fenced" and not is_of_deleted_topic(error):
                raise
            return  # the heartbeat that follows says what is owned now
        self._share.locked(locks, sent_ms)
        self._notify()

    def _begin(self, parts: Sequence[OwnedPart]) -> None:
        for part in parts:
            task = self._tasks[part] = self._spawn(self._consume(part))
            task.add_done_callback(partial(self._forget, part))

    def _forget(self, part: OwnedPart, _: asyncio.Task[None]) -> None:
        self._tasks.pop(part, None)

    def _cancel_lost(self) -> None:
        for part, task in self._tasks.items():
            if part.is_lost:
                task.cancel()

    # ----------------------------------------------------------------------------------------------
    # a queue

    async def _consume(self, part: OwnedPart) -> None:
        """Handle the messages of a queue, as long as the member owns it."""
        while await self._await_turn(part):
            try:
                async with self._pulls:
                    wait_ms = self._share.pull_wait_ms
                    again_ms = _now_ms() + min(_PAUSE_MS, wait_ms)
                    page = await self._client.pull_messages(
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
                await self._pause(_PAUSE_MS)
                continue
            except EscrowMQError as error:
                await self._pull_failed(part, error)
                continue
            for message in page.messages:
                if not await self._handled(part, message):
                    break
            else:
                if page.next_offset == part.offset:
                    await self._pause(again_ms - _now_ms())  # unless the service has waited so long
                part.offset = page.next_offset

    async def _pull_failed(self, part: OwnedPart, error: EscrowMQError) -> None:
        behind = offset_behind(part, error) if isinstance(error, ProblemError) else None
        if behind is not None:
            part.offset = behind
            return
        if not is_passing(error):
            raise error
        log_away(self._group, "a pull", error)
        await self._pause(_PAUSE_MS)

    async def _handled(self, part: OwnedPart, message: Message) -> bool:
        """Handle the message, again until its handler succeeds; False if its queue was lost."""
        while await self._await_turn(part):
            self._handling.add(part.queue)
            try:
                await run_handler(self._handler, message)
            except Exception as error:  # noqa: BLE001  it is the outcome of the handler
                self.stats.failed += 1
                log_failed(self._group, message, error, self._options.retry_ms)
            else:
                part.offset = message.queue_offset + 1
                self.stats.handled += 1
                return True
            finally:
                self._handling.discard(part.queue)
                self._notify()
            await self._pause(self._options.retry_ms)
        return False

    async def _await_turn(self, part: OwnedPart) -> bool:
        """Wait for the lock of the queue, and for the end of a handler from before the queue was
        lost and won again; False if it was lost, or the worker stops.
        """
        while not self._is_stopping and not part.is_lost:
            if part.may_handle(_now_ms()) and part.queue not in self._handling:
                return True
            await self._wait(None)
        return False

    # ----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose error is the worker's."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._error = self._error or error
                self.stop()

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def _notify(self) -> None:
        """Wake every task that waits for a change."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def _wait(self, wait_ms: float | None) -> None:
        """Wait for a change, so long at most."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=None if wait_ms is None else wait_ms / 1_000)
        finally:
            self._waiting.discard(future)
            future.cancel()

    async def _pause(self, wait_ms: float) -> None:
        """Wait so long; a stop ends it."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), wait_ms / 1_000)

    @contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Stop at the first SIGTERM or SIGINT, where the loop can have handlers of signals."""
        loop = asyncio.get_running_loop()
        taken: list[signal.Signals] = []
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.stop)
                taken.append(one)
        try:
            yield
        finally:
            for one in taken:
                loop.remove_signal_handler(one)


def _now_ms() -> float:
    return time.monotonic() * 1_000
