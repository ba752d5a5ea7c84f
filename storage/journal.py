"""Replaying a journal: the events of one queue in their order, with one rule for events that are
damaged.

Where leaving out an event could publish, lose or double what the service promises not to, the
replay is refused with the place. Where the worst is what the guarantees allow, the event is logged,
counted and left out. docs/durability.md has the table.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import PurePath
from typing import Generic, TypeVar

import msgspec
import structlog

from storage.errors import CorruptRecord, StorageError, UnknownFormat
from storage.message import QueueId, StoredMessage
from storage.queue_scan import LAST_OFFSET, scan
from storage.store import MessageStore

T = TypeVar("T")
log = structlog.get_logger()


class Replay(Generic[T]):
    """Events of one queue from an offset on, each with its message; used once.

    `end`: the offset behind the last event that was applied or left out. `left_out`: how many were
    left out.
    """

    def __init__(
        self,
        store: MessageStore,
        queue: QueueId,
        begin: int,
        read: Callable[[StoredMessage], T],
        *,
        before: int = LAST_OFFSET,
        may_leave_out: bool = False,
    ) -> None:
        """`before`: the offset of the first event that is not replayed."""
        self.end = begin
        self.left_out = 0
        self._store = store
        self._queue = queue
        self._read = read
        self._before = before
        self._may_leave_out = may_leave_out

    async def __aiter__(self) -> AsyncIterator[tuple[StoredMessage, T]]:
        """Raises CorruptRecord and UnknownFormat where an event must not be left out."""
        async for piece in scan(self._store, self._queue, self.end, self._before):
            if piece.damage is not None:
                self._leave_out(piece.damage)
            for message in piece.messages:
                try:
                    event = read_event(message, self._read)
                except UnknownFormat as unknown:
                    self._leave_out(unknown)
                else:
                    yield message, event
                    self.end += 1

    def _leave_out(self, error: CorruptRecord | UnknownFormat) -> None:
        leave_out(self._queue, self.end, error, may_leave_out=self._may_leave_out)
        self.left_out += 1
        self.end += 1


def read_event(message: StoredMessage, read: Callable[[StoredMessage], T]) -> T:
    """The event that a message of a journal holds.

    Raises UnknownFormat where this version cannot read it.
    """
    try:
        return read(message)
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        where = (
            f"log offset {message.log_offset}"
            if message.log_offset is not None
            else "an unknown place"
        )
        found = f"an event at {where} that cannot be read ({error})"
        path = PurePath(f"{message.queue}/{message.queue_offset}")
        raise UnknownFormat(
            path, found=found, expected="an event that this version knows"
        ) from error


def leave_out(
    queue: QueueId, queue_offset: int, error: StorageError, *, may_leave_out: bool
) -> None:
    """Log that an event is left out of a replay.

    Raises CorruptRecord or UnknownFormat where it must not be.

    What a repair took out of the log is left out of every journal: an operator has accepted the
    loss.
    """
    is_accepted = isinstance(error, CorruptRecord) and error.was_taken_out
    if not (may_leave_out or is_accepted):
        if isinstance(error, CorruptRecord):
            reason = (
                f"{error.reason}; it is event {queue_offset} of {queue}, and without it something "
                "could be lost or done twice: "
                "nothing was changed. Restore the file from a copy, or leave the event out with "
                "`escrowmq store repair`"
            )
            raise CorruptRecord(
                error.path, error.physical_offset, reason, repair=error.repair
            ) from error
        raise error
    log.error(
        "journal_event_left_out",
        queue=str(queue),
        queue_offset=queue_offset,
        reason=str(error),
        accepted=is_accepted,
    )
