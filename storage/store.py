"""The interface of a storage engine: the methods that every engine has, in one Protocol.

`tests/conformance` asks each of them of every engine. Abilities of an engine with files of its own
are optional (`storage/store_admin.py`). No address of an engine crosses the interface but
`log_offset`, an opaque number that receipts show and that a final record gives as its half
message's place; no package above computes with it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, Protocol

from storage.errors import CorruptRecord, RejectedError
from storage.formats.record_block import RecordBlock
from storage.formats.stored_record import StoredRecord
from storage.message import (
    Appended,
    DueEntry,
    Durability,
    Message,
    OffsetRange,
    Placed,
    QueueId,
    Row,
    StoredMessage,
    Sureness,
)
from storage.store_admin import StoreAdmin

LAST_MS = (1 << 63) - 1  # of wall milliseconds: no end
ANY_LABEL = range(1 << 32)


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Messages of these topics with this key, or `by_id` this id.

    Only those stored in [from_ms, to_ms], and before the message at the log offset `older_than`.
    With `with_deleted` also those of topics that were deleted since, for as long as they are
    stored. The last one is the second or a later one with which the bodies exceed `max_bytes`.
    """

    key: str
    _: KW_ONLY
    topics: Collection[str]
    max_messages: int
    by_id: bool = False
    from_ms: int = 0
    to_ms: int = LAST_MS
    older_than: int | None = None
    with_deleted: bool = False
    max_bytes: int | None = None


class Scanned(NamedTuple):
    """Some messages of a queue, and the offset behind all that was scanned."""

    messages: list[StoredMessage]
    next_offset: int


class ScannedRecords(NamedTuple):
    """Some messages of a queue as their records, and the offset behind all that was scanned."""

    records: list[StoredRecord]
    next_offset: int


class Snapshot(NamedTuple):
    """Bytes of a derived table, and up to where in each queue they reflect what was read.

    They may be given in pieces, so that a large table need not be joined, and are written so; they
    may come back in others.
    """

    pieces: Sequence[bytes]
    positions: Mapping[QueueId, int]

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))


class DuePage(NamedTuple):
    """Entries by their time, and the last entry that was scanned: None where no more follow."""

    entries: list[DueEntry]
    end: DueEntry | None


class DueCounts(NamedTuple):
    waiting: int
    never: int  # due at or behind NEVER_MS


class TimerWait(NamedTuple):
    """A message of the timer queue that waits, for another server."""

    queue_offset: int
    slot_ms: int  # the whole second at whose end it is taken up
    is_rolled: bool  # a broker then writes it again, with the time in its properties


class WaitingTimers(NamedTuple):
    """All messages before `end` in the timer queue that wait."""

    waiting: Sequence[TimerWait]
    end: int


class MessageStore(Protocol):
    """A storage engine: queues of messages over one log, in 47 methods and `admin`.

    Event loop only. Methods without `async` never wait for a disk.
    """

    async def aclose(self) -> None:
        """Finish accepted appends, flush, release. Safe to call twice."""

    @property
    def admin(self) -> StoreAdmin | None:
        """The files of the engine, for operators; None if it has no files of its own."""

    # ----------------------------------------------------------------------------------------------
    # topics

    async def create_topic(self, topic: str, *, queue_count: int) -> None:
        """Register the topic.

        Idempotent; growing the count is allowed, shrinking raises InvalidRequest.

        The store remembers topics that hold messages; the caller registers the others again after a
        start.
        """

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        """The queues of a topic, by number. Raises UnknownTopic."""

    async def topics(self) -> Mapping[str, int]:
        """The number of queues of each topic that holds messages."""

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its messages, and the offsets that groups committed in it; nothing
        happens if it does not exist.

        Durable on return.

        Messages that were appended before can no longer be read or looked up. A topic that is
        created again under this name continues at the queue offsets where it ended: none is used
        twice.

        Raises what `append` raises; the topic is unchanged then.
        """

    def deleted_queues(self) -> int:
        """The number of queues of deleted topics whose ends are remembered."""

    # ----------------------------------------------------------------------------------------------
    # appends

    async def append(
        self,
        messages: Sequence[Message],
        *,
        durability: Durability | None = None,
        from_reserve: bool = False,
    ) -> list[Appended]:
        """Store messages in the given order; return where each one is and whether it is already
        durable.

        One call is one unit: after a crash all of it exists or nothing. Order holds within a queue.
        REPLICATED can be had where other machines copy the log; else it is an InvalidRequest.
        Without `durability` the engine's flush policy decides when to answer; a sync that takes
        longer than the engine's limit is answered with `durable` false. A stored message can be
        read at once, unless the append is BUFFERED while the policy is to sync: then it can be read
        as soon as it is durable.

        Raises UnknownTopic, UnknownQueue, MessageTooLarge, Backpressure, StorageFull, StoreClosed:
        nothing was stored then. Raises FlushFailed: whether anything was stored is unknown.
        """

    def append_rows(
        self,
        rows: Sequence[Row],
        *,
        durability: Durability | None,
        done: Callable[[Placed], None],
        failed: Callable[[Exception], None],
        written: Callable[[Placed], None] | None = None,
        from_reserve: bool = False,
    ) -> None:
        """Append at least one message, as `append` does, without a coroutine: `done` or `failed` is
        called later, in a turn of the loop. If `done` raises, `failed` gets its error; the rows are
        stored then.

        `written` may be called before `done`, while the disk works: with the places that `done`
        gets if the rows are durable by then.

        An error of `append` before anything is accepted is raised at once, and neither is called:
        StorageFull, UnknownTopic, UnknownQueue, InvalidRequest, Backpressure, StoreClosed,
        FlushFailed.
        """

    def before_write(self, call: Callable[[], None]) -> None:
        """Have `call` called later in this turn of the loop: the rows that it appends are written
        together with all others of the turn.
        """

    def set_reserve(self, owed_bytes: int) -> None:
        """Keep space for so many bytes of later appends `from_reserve`, where space can run out."""

    def append_limit_bytes(self) -> int:
        """The most bytes of log that one append may take."""

    def pressure(self) -> float:
        """The fill ratio of the queue of waiting writes, 0 to 1. Called with every send."""

    # ----------------------------------------------------------------------------------------------
    # durability

    def stored_offset(self) -> int:
        """The log offset behind every message stored so far."""

    def synced_offset(self) -> int:
        """The log offset below which every message is on disk."""

    async def flush(self) -> int:
        """Return the synced offset once everything stored so far is durable.

        Raises FlushFailed, StoreClosed.
        """

    def sureness_of(self, log_offset: int | None) -> Sureness:
        """How sure the message at this log offset is by now."""

    async def wait_durable(self, log_offset: int | None) -> None:
        """Return once the message at this log offset is durable. Raises FlushFailed."""

    # ----------------------------------------------------------------------------------------------
    # reads

    async def offsets(self, queue: QueueId) -> OffsetRange:
        """The first readable offset and the one after the last visible.

        Raises UnknownTopic, UnknownQueue.
        """

    def bounds(self, queue: QueueId) -> OffsetRange:
        """The offsets of the queue, as from `offsets`, without a coroutine."""

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        """Visible messages from queue_offset on, oldest first; empty exactly at the end.

        Always at least one message when there is one, even if its body is larger than max_bytes.
        Raises UnknownTopic, UnknownQueue, OffsetExpired, OffsetBeyondEnd, CorruptRecord,
        StoreClosed.
        """

    async def read_tagged(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int],
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> Scanned:
        """Read the next `max_scanned` messages, as `read` does, and return those whose tag has one
        of these hashes (`queue_entry.tag_hash`).

        Different tags may have one hash: the caller compares the tags.
        """

    async def read_records(
        self,
        queue: QueueId,
        queue_offset: int,
        *,
        tag_codes: Collection[int] | None = None,
        max_scanned: int,
        max_messages: int,
        max_bytes: int,
    ) -> ScannedRecords:
        """Read messages as `read_tagged` does, as RocketMQ's records; all of them without
        `tag_codes`.
        """

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """For each place its message, or the reason why it cannot be read; for as many places as
        these bytes of records allow, at least one.

        Raises StoreClosed.
        """

    def block_now(
        self, queue: QueueId, queue_offset: int, *, count: int, max_bytes: int
    ) -> RecordBlock | None:
        """The records of `count` messages, at least one, all below the queue's end, without
        waiting.

        The same is checked as by `read_records`.

        None where memory does not have all of them in this form, they have more than `max_bytes`
        together, or one is damaged or of an unusual form: `read_records` finds out which. Raises
        UnknownTopic, UnknownQueue, StoreClosed.
        """

    # ----------------------------------------------------------------------------------------------
    # arrivals

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        """True as soon as queue_offset can be read; False when the time is up or the store
        closes.
        """

    def call_on_arrival(self, queue: QueueId, queue_offset: int, call: Callable[[], None]) -> None:
        """As `wait_for_arrival`, for many readers that wait at once: call `call` once, in a turn of
        the loop or before this returns, when queue_offset may be readable.

        It carries no data, and may come early. Raises UnknownTopic, UnknownQueue.
        """

    def forget_call(self, queue: QueueId, call: Callable[[], None]) -> None:
        """Withdraw a `call_on_arrival`; nothing happens where there is none."""

    def stop_waiting(self) -> None:
        """Wake every reader that waits, now and from now on, because the service stops."""

    # ----------------------------------------------------------------------------------------------
    # committed offsets

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        """The committed offset of the group in this queue; None if it has committed none."""

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        """Remember where the group continues; durable on return. May go back as well as forward."""

    async def forget_offsets(self, group: str) -> None:
        """Remove all committed offsets of the group; durable on return."""

    def committed_queues(self, group: str) -> Collection[QueueId]:
        """The queues in which the group has committed an offset."""

    def committed_count(self) -> int:
        """Number of committed offsets of all groups."""

    # ----------------------------------------------------------------------------------------------
    # messages by their keys, and by the log offset of a receipt

    async def find_messages(self, query: KeyQuery) -> list[StoredMessage]:
        """The visible messages of the query, newest first. Raises CorruptRecord, StoreClosed."""

    async def read_at(
        self, log_offset: int, *, topics: Collection[str], store_host: bytes | None = None
    ) -> list[StoredMessage]:
        """The visible messages whose record begins at this log offset: one, or several of an inner
        batch of a broker; none if no record of a message of these topics begins there.

        With `store_host` (an address and a port, as a record has them) only if the record was
        stored there. Raises CorruptRecord, StoreClosed.
        """

    # ----------------------------------------------------------------------------------------------
    # snapshots of derived tables, so that a start replays only later messages

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Keep it in place of the last one of this name."""

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """The last snapshot of this name; None where there is none, it is damaged, it reflects more
        than the log now holds, or the log no longer holds all later messages. Raises StoreClosed.
        """

    # ----------------------------------------------------------------------------------------------
    # index of times: what is due when, by its time, without a table of it in memory
    #
    # Derived: it reflects the queues that its owner reads, up to the positions that the owner
    # gives, and a start gives both back as they were together at some time. Later messages are to
    # be read and changed again.

    def due_positions(self) -> Mapping[QueueId, int]:
        """Up to where the entries reflect each queue; empty where there are none yet, or the index
        was lost.
        """

    def change_due(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        """Add and take away entries, in one step.

        `taken` are entries that were added, now or before, and are no longer due.
        """

    async def read_due(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        """The first entries behind this one, which need not exist, that are due before `until_ms`
        and have such a label.

        Raises CorruptRecord: call `forget_due` then, and add everything again. Raises StoreClosed.
        """

    async def holds_due(self, entry: DueEntry) -> bool:
        """Was it added, and not taken away? Raises as `read_due`."""

    async def count_due(self, *, until_ms: int) -> int:
        """Number of entries due before then. Reads them all. Raises as `read_due`."""

    def due_counts(self) -> DueCounts:
        """Number of all entries."""

    async def forget_due(self) -> None:
        """Take every entry away; the index reflects no message then."""

    # ----------------------------------------------------------------------------------------------
    # progress of the delay queues, for another server (a broker) that goes on with the same store

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """Note that no message before these offsets is still to be delivered. Nothing waits for
        it.
        """

    def keep_waiting_timers(self, timers: WaitingTimers) -> None:
        """Register all waiting messages of the timer queue, as `keep_delay_progress` does, before
        the store is closed.
        """

    def delay_progress_by_others(self) -> Mapping[QueueId, int] | None:
        """The same, of another server that had the store before it was opened, as far as it says
        it; None where there was none.
        """


async def find_message(
    store: MessageStore, queue: QueueId, from_offset: int, message_id: str
) -> StoredMessage | None:
    """The first message of this id at or behind an offset where it is expected soon; None where
    there is none.

    Raises CorruptRecord where it is not found among the others and a damaged one may be it.
    """
    at = max(from_offset, store.bounds(queue).first)
    damaged: CorruptRecord | None = None
    while True:
        try:
            messages = await store.read(queue, at, max_messages=64, max_bytes=1 << 20)
        except CorruptRecord as damage:
            damaged, at = damaged or damage, at + 1
            continue
        for message in messages:
            if message.message_id == message_id:
                return message
        at += len(messages)
        if messages:
            continue
        if damaged is not None:
            raise damaged
        return None
