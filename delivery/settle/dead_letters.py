"""Dead letters of a group: lists, redrives and purges them.

They are stored in the group's dead-letter topic; the table of leases has those that were removed
from the list. A redrive is one append of messages to the retry topic and the event that takes them
from the list: a message is in one of the two, always. A stub, the dead letter of a damaged message,
has no body to redrive: it stays in the list until it is purged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import structlog

from delivery.leases import retry_message
from delivery.leases.events import Purged, Redriven, TaskBegun, TaskEnded
from delivery.leases.journal import LeaseJournal
from delivery.leases.tasks import Task, TaskState, Wanted
from storage.errors import (
    CorruptRecord,
    LimitReached,
    StorageFull,
    UnavailableError,
    UnknownTask,
    UnknownTopic,
    reason_of,
)
from storage.idempotency import check_fingerprint
from storage.message import Durability, OffsetRange, StoredMessage
from storage.offset_set import OffsetSet
from storage.queue_scan import Piece, scan
from storage.store import KeyQuery

_READ_MESSAGES = 1_000
_READ_BYTES = 1 << 20
_MOST_IN_A_TURN = 4_096  # messages of one task that are redriven, so that others get their turn
_MOST_LOOKED_AT = 16_000  # messages of one task in a turn, wanted or not
_STUBS_NAMED = 1_000  # of one task
_BURST_MS = 1_000  # what a task with a rate may catch up

log = structlog.get_logger()


class Redrive(NamedTuple):
    """The dead letters to redrive, and how."""

    wanted: Wanted
    reset_attempts: bool = True
    max_per_second: int | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None


class _Progress:
    """Progress of a running task, since the start of the process. `at`: everything before this
    offset has been processed.

    `stubs`: ids of the matching dead letters that cannot be redriven.
    """

    def __init__(self, begin: int, now_ms: int) -> None:
        self.at = begin
        self.stubs: list[str] = []
        self.allowance = 0.0
        self.counted_ms = now_ms


class DeadLetters:
    """Lists, redrives and purges the dead letters of groups. Event loop only."""

    def __init__(
        self, journal: LeaseJournal, new_task_id: Callable[[], str], *, max_tasks: int
    ) -> None:
        """`max_tasks`: maximum number of running tasks."""
        self._max_tasks = max_tasks
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._new_task_id = new_task_id
        self._progress: dict[str, _Progress] = {}
        self._failing: dict[str, str] = {}
        self._changing = asyncio.Lock()

    # ----------------------------------------------------------------------------------------------
    # reading

    async def slice(
        self, group: str, begin: int, count: int, *, max_bytes: int | None = None
    ) -> list[StoredMessage]:
        """Up to so many dead letters from this place on, oldest first; fewer if two or more of them
        exceed `max_bytes`.
        """
        found: list[StoredMessage] = []
        byte_count = 0
        async for message in self._messages(group, begin):
            found.append(message)
            byte_count += len(message.body)
            is_enough = max_bytes is not None and byte_count > max_bytes and len(found) > 1
            if len(found) == count or is_enough:
                break
        return found

    async def of_topic(self, group: str, topic: str) -> list[int]:
        """The offsets of the dead letters that were first delivered from this topic."""
        return [
            one.queue_offset
            async for one in self._messages(group, 0)
            if retry_message.origin_of(one).queue.topic == topic
        ]

    async def find(self, group: str, message_id: str) -> StoredMessage | None:
        queue, gone = retry_message.dead_letter_queue(group), self._gone(group)
        copies = await self._store.find_messages(
            KeyQuery(message_id, topics=[queue.topic], by_id=True, max_messages=1_000)
        )
        found = next((copy for copy in copies if copy.queue_offset not in gone), None)
        if found is not None or not retry_message.may_be_stub_id(message_id, queue):
            return found
        async for message in self._messages(group, 0):
            if message.message_id == message_id:
                return message
        return None

    async def count(self, group: str, wanted: Wanted) -> int:
        """Number of dead letters that match; if ids are named, number of these ids that exist."""
        return await self._count(group, wanted, await self._bounds(group))

    def count_kept(self, group: str) -> int:
        """Number of dead letters in the list, from memory."""
        gone = self._gone(group)
        try:
            bounds = self._store.bounds(retry_message.dead_letter_queue(group))
        except UnknownTopic:
            return 0
        gone.add_below(bounds.first)  # else what has expired would be subtracted once more
        return max(0, bounds.end - gone.prefix - len(gone.ahead))

    async def _count(self, group: str, wanted: Wanted, bounds: OffsetRange) -> int:
        if wanted.is_everything:
            gone = self._gone(group)
            gone.add_below(bounds.first)  # else what has expired would be taken off once more
            return max(
                0, bounds.end - gone.prefix - sum(offset < bounds.end for offset in gone.ahead)
            )
        found: set[str] = set()
        count = 0
        async for message in self._messages(group, 0, bounds.end):
            if _is_wanted(wanted, message):
                count += 1
                if wanted.message_ids is not None:
                    found.add(message.message_id)
        return count if wanted.message_ids is None else len(found)

    # ----------------------------------------------------------------------------------------------
    # changes

    async def purge(self, group: str) -> int:
        """Purge all dead letters of the group; their number. Durable on return.

        They stay in the log until retention deletes it.
        """
        async with self._changing:
            bounds = await self._bounds(group)
            count = await self._count(group, Wanted(), bounds)
            await self._journal.append(
                [], [Purged(group=group, before=bounds.end)], Durability.SYNCED
            )
        return count

    async def redrive(self, group: str, given: Redrive) -> tuple[Task, bool]:
        """Begin a redrive: (its task, whether the same request had begun it before). Raises
        IdempotencyKeyReused.
        """
        known = self._begun_before(group, given)
        if known is not None:
            return known, True
        bounds, ids = await self._bounds(group), given.wanted.message_ids
        # Before the lock is taken: there may be many to look at, and no receive is to wait for it.
        total = await self._count(group, given.wanted, bounds) if ids is None else len(ids)
        async with self._changing:
            known = self._begun_before(group, given)
            if known is not None:
                return known, True
            if len(self._journal.table.tasks.running) >= self._max_tasks:
                raise LimitReached(
                    f"at most {self._max_tasks} redrives may run at once", pointer="/select"
                )
            event = TaskBegun(
                group=group,
                task_id=self._new_task_id(),
                wanted=given.wanted,
                end=bounds.end,
                total=total,
                begun_at_ms=self._clock.wall_ms(),
                reset_attempts=given.reset_attempts,
                max_per_second=given.max_per_second,
                idempotency_key=given.idempotency_key,
                fingerprint=given.fingerprint,
            )
            await self._journal.append([], [event], Durability.SYNCED)
        return self.task(event.task_id), False

    def _begun_before(self, group: str, given: Redrive) -> Task | None:
        """The task that the same request began before. Raises IdempotencyKeyReused."""
        if given.idempotency_key is None:
            return None
        known = self._journal.table.tasks.by_key(group, given.idempotency_key)
        check_fingerprint(known, given.fingerprint, key=given.idempotency_key)
        return known

    def task(self, task_id: str) -> Task:
        """The task with this id. Raises UnknownTask."""
        task = self._journal.table.tasks.get(task_id)
        if task is None:
            raise UnknownTask(f"task {task_id[:200]} does not exist")
        return task

    async def cancel(self, task_id: str) -> Task:
        """Cancel the task; messages already redriven stay so, and a task that has ended does not
        change. Raises UnknownTask.
        """
        async with self._changing:
            task = self.task(task_id)
            if task.state is TaskState.RUNNING:
                await self._end(task, TaskState.CANCELLED)
        return task

    def parked(self) -> dict[str, str]:
        """The tasks whose last turn failed, with the error; they are tried again."""
        return self._failing

    async def run_once(self) -> int:
        """Continue the tasks; the number of messages redriven.

        Raises UnavailableError or StorageFull after every task had its turn; refused tasks continue
        later where they are.
        """
        running = self._journal.table.tasks.running
        self._progress = {task.task_id: self._progress_of(task) for task in running}
        failing: dict[str, str] = {}
        refused: UnavailableError | StorageFull | None = None
        count = 0
        for task in running:
            try:
                count += await self._journal.changes.shielded(self._go_on(task))
            except (UnavailableError, StorageFull) as error:
                refused = error
            # Whatever it is, it must not keep later tasks from their turn.
            except Exception as error:
                log.exception("redrive_failed", task_id=task.task_id)
                failing[task.task_id] = reason_of(error)
        self._failing = failing
        if refused is not None:
            raise refused
        return count

    async def _go_on(self, task: Task) -> int:
        """One turn of the task, in pieces; between two pieces other work may run."""
        progress = self._progress_of(task)
        left, looked_at, count = _allowed(task, progress, self._clock.monotonic_ms()), 0, 0
        while count < left and looked_at < _MOST_LOOKED_AT and task.state is TaskState.RUNNING:
            async with self._changing:
                size, done = await self._piece(task, progress, min(_READ_MESSAGES, left - count))
            looked_at += size
            count += done
            await asyncio.sleep(0)
        return count

    async def _piece(self, task: Task, progress: _Progress, most: int) -> tuple[int, int]:
        """Redrive one piece: (messages examined, messages redriven). If it raises, nothing was
        changed.
        """
        queue = retry_message.dead_letter_queue(task.group)
        progress.at = max(progress.at, (await self._store.offsets(queue)).first)
        if task.state is TaskState.RUNNING and progress.at >= task.end:
            await self._end(task, TaskState.DONE, progress.stubs)
            return 0, 0
        found, at = await self._read(task, progress.at, most)
        if task.state is not TaskState.RUNNING:
            return 0, 0  # It was cancelled, or its group deleted, while this was read.
        wanted = [message for message in found if not retry_message.is_stub(message)]
        if wanted:
            await self._append(task, wanted)
        progress.stubs += [
            message.message_id for message in found if retry_message.is_stub(message)
        ]
        size, progress.at = at - progress.at, at
        progress.allowance -= len(wanted)
        return size, len(wanted)

    async def _read(self, task: Task, begin: int, most: int) -> tuple[list[StoredMessage], int]:
        """(matching dead letters in the next piece of the topic, end of the piece)."""
        queue, gone = retry_message.dead_letter_queue(task.group), self._gone(task.group)
        count = most if task.wanted.is_everything else _READ_MESSAGES
        try:
            messages = await self._store.read(
                queue, begin, max_messages=count, max_bytes=_READ_BYTES
            )
        except CorruptRecord as damage:
            messages = [self._unreadable(task.group, begin, damage)]
        found: list[StoredMessage] = []
        at = begin
        for message in messages:
            if message.queue_offset >= task.end or len(found) == most:
                break
            at = message.queue_offset + 1
            if message.queue_offset not in gone and _is_wanted(task.wanted, message):
                found.append(message)
        return found, at

    async def _append(self, task: Task, messages: list[StoredMessage]) -> None:
        generation = self._journal.table.group(task.group).retries.generation
        waiting: dict[str, int] = {}
        copies = []
        for message in messages:
            attempts = 0 if task.reset_attempts else retry_message.attempts_of(message)
            copies.append(
                retry_message.retry_copy(
                    message, task.group, attempts=attempts, generation=generation
                )
            )
            origin = str(retry_message.origin_of(message).queue)
            waiting[origin] = waiting.get(origin, 0) + 1
        event = Redriven(
            group=task.group,
            task_id=task.task_id,
            offsets=[message.queue_offset for message in messages],
            message_ids=[message.message_id for message in messages],
            waiting=waiting,
        )
        await self._journal.append(copies, [event], Durability.SYNCED)

    async def _end(self, task: Task, state: TaskState, stubs: Sequence[str] = ()) -> None:
        event = TaskEnded(
            group=task.group,
            task_id=task.task_id,
            state=state,
            ended_at_ms=self._clock.wall_ms(),
            stubs=list(dict.fromkeys(stubs))[:_STUBS_NAMED],
        )
        await self._journal.append([], [event], Durability.SYNCED)

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _progress_of(self, task: Task) -> _Progress:
        known = self._progress.get(task.task_id)
        return (
            _Progress(self._gone(task.group).prefix, self._clock.monotonic_ms())
            if known is None
            else known
        )

    async def _bounds(self, group: str) -> OffsetRange:
        return await self._store.offsets(retry_message.dead_letter_queue(group))

    def _gone(self, group: str) -> OffsetSet:
        return self._journal.table.group(group).dead_letters_gone

    async def _messages(
        self, group: str, begin: int, end: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """The dead letters in the list, or in its part before `end`."""
        queue, gone = retry_message.dead_letter_queue(group), self._gone(group)
        try:
            bounds = await self._store.offsets(queue)
        except UnknownTopic:
            return
        begin = max(begin, gone.prefix, bounds.first)
        end = bounds.end if end is None else min(end, bounds.end)
        async for piece in scan(
            self._store, queue, begin, end, max_messages=_READ_MESSAGES, max_bytes=_READ_BYTES
        ):
            for message in self._letters(group, piece):
                if message.queue_offset not in gone:
                    yield message

    def _letters(self, group: str, piece: Piece) -> list[StoredMessage]:
        if piece.damage is not None:
            return [self._unreadable(group, piece.begin, piece.damage)]
        return piece.messages

    def _unreadable(self, group: str, queue_offset: int, damage: CorruptRecord) -> StoredMessage:
        """The entry listed for a dead letter whose own record is damaged; it cannot be redriven
        either.
        """
        queue, reason = (
            retry_message.dead_letter_queue(group),
            f"the record of the dead letter is damaged: {damage.reason}",
        )
        log.error(
            "dead_letter_damaged", queue=str(queue), queue_offset=queue_offset, reason=str(damage)
        )
        now_ms = self._clock.wall_ms()
        return retry_message.unreadable_dead_letter(
            group, queue_offset, reason=reason, log_offset=damage.physical_offset, now_ms=now_ms
        )


def _allowed(task: Task, progress: _Progress, now_ms: int) -> int:
    """How many messages the task may redrive now."""
    if task.max_per_second is None:
        progress.allowance = _MOST_IN_A_TURN
    else:
        # However long it could not go on, it catches up with one burst.
        earned = task.max_per_second * (now_ms - progress.counted_ms) / 1_000
        progress.allowance = min(
            progress.allowance + earned, task.max_per_second * _BURST_MS / 1_000
        )
    progress.counted_ms = now_ms
    return min(_MOST_IN_A_TURN, int(progress.allowance))


def _is_wanted(wanted: Wanted, message: StoredMessage) -> bool:
    stored_ms, reason = message.stored_at_ms, retry_message.reason_of(message) or ""
    return (
        (wanted.message_ids is None or message.message_id in wanted.message_ids)
        and (wanted.topic is None or retry_message.origin_of(message).queue.topic == wanted.topic)
        and (wanted.key is None or wanted.key in message.keys)
        and (wanted.tag is None or message.tag == wanted.tag)
        and (wanted.reason_contains is None or wanted.reason_contains in reason)
        and (wanted.from_ms is None or stored_ms >= wanted.from_ms)
        and (wanted.to_ms is None or stored_ms <= wanted.to_ms)
    )
