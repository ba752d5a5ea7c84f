"""The seam: what the floors above ask of a storage engine, and the extras that some engines offer
as well.

Whatever passes `tests/conformance` may stand behind it. No address of an engine crosses it but
`log_offset`, an opaque number that receipts show and that a final record gives as its half
message's place; no package above computes with it.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

from storage.errors import CorruptRecord, OffsetBeyondEnd, RejectedError
from storage.formats import stored_record
from storage.formats.queue_entry import tag_hash
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
)

LAST_MS = (1 << 63) - 1  # of wall milliseconds: no end


class MessageStore(Protocol):
    """A storage engine: queues of messages over one log."""

    async def create_topic(self, topic: str, *, queue_count: int) -> None:
        """Make the topic known.

        Idempotent; growing the count is allowed, shrinking raises InvalidRequest.

        The store remembers topics that hold messages; the others are the caller's to make known
        again after a start.
        """

    async def queues(self, topic: str) -> tuple[QueueId, ...]:
        """The queues of a topic, by number. Raises UnknownTopic."""

    async def append(
        self,
        messages: Sequence[Message],
        *,
        durability: Durability | None = None,
        from_reserve: bool = False,
    ) -> list[Appended]:
        """Store messages in the given order; say where each one is and whether it is already
        durable.

        One call is one unit: after a crash all of it is there or nothing. Order holds within a
        queue. Without `durability` the engine's flush policy decides when to answer; a sync that
        takes longer than the engine's limit is answered with `durable` false. What is answered can
        be read at once, except where it was asked for as BUFFERED while the policy is to sync: then
        it can be read as soon as it is durable.

        Raises UnknownTopic, UnknownQueue, MessageTooLarge, Backpressure, StorageFull, StoreClosed:
        nothing was stored then. Raises FlushFailed: whether anything was stored is unknown.
        """

    async def read(
        self, queue: QueueId, queue_offset: int, *, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        """Visible messages from queue_offset on, oldest first; empty exactly at the end.

        Always at least one message when there is one, even if its body is larger than max_bytes.
        Raises UnknownTopic, UnknownQueue, OffsetExpired, OffsetBeyondEnd, CorruptRecord,
        StoreClosed.
        """

    async def offsets(self, queue: QueueId) -> OffsetRange:
        """The first readable offset and the one after the last visible.

        Raises UnknownTopic, UnknownQueue.
        """

    async def wait_for_arrival(self, queue: QueueId, queue_offset: int, *, timeout_ms: int) -> bool:
        """True as soon as queue_offset can be read; False when the time is up or the store
        closes.
        """

    def call_on_arrival(self, queue: QueueId, queue_offset: int, call: Callable[[], None]) -> None:
        """As `wait_for_arrival`, for many readers that wait at once: call `call` once, in a turn of
        the loop or before this returns, when it may be worth looking whether queue_offset can be
        read. It carries no data, and may come early.

        Raises UnknownTopic, UnknownQueue.
        """

    def forget_call(self, queue: QueueId, call: Callable[[], None]) -> None:
        """Do not call it any more. Nothing happens where it was called already, or never to be."""

    async def committed_offset(self, group: str, queue: QueueId) -> int | None:
        """Where the group continues in this queue; None where it has not said."""

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        """Remember where the group continues; durable on return. May go back as well as forward."""

    async def forget_offsets(self, group: str) -> None:
        """Remove all committed offsets of the group; durable on return."""

    def committed_queues(self, group: str) -> Collection[QueueId]:
        """The queues in which the group has committed an offset."""

    def committed_count(self) -> int:
        """Number of committed offsets of all groups."""

    async def aclose(self) -> None:
        """Finish what was accepted, flush, release. Safe to call twice."""


@runtime_checkable
class RowAppends(Protocol):
    """Engines that append messages whose bytes are finished."""

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
        """As `append` of at least one message, without a coroutine: `done` or `failed` is called
        later, in a turn of the loop.

        `written` may be called before `done`, while the disk works: with the places that `done`
        gets where the rows are durable by then.

        What `append` raises before anything is taken is raised at once, and neither is called then:
        StorageFull, UnknownTopic, UnknownQueue, InvalidRequest, Backpressure, StoreClosed,
        FlushFailed.
        """

    def before_write(self, call: Callable[[], None]) -> None:
        """Have `call` called later in this turn of the loop: the rows that it appends are written
        together with all others of the turn.
        """

    def bounds(self, queue: QueueId) -> OffsetRange:
        """As `offsets`, without a coroutine."""


@runtime_checkable
class TopicListing(Protocol):
    """Engines that can tell which topics hold messages."""

    async def topics(self) -> Mapping[str, int]:
        """Topic to number of queues."""


@runtime_checkable
class TopicDeletion(Protocol):
    """Engines that can delete a topic."""

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its messages, and the offsets that groups committed in it.

        Durable on return.

        What was appended before can no longer be read or looked up. A topic that is created under
        the name again goes on at the queue offsets where it ended: none is used twice. Nothing
        happens where the topic does not exist.

        Raises what `append` raises; the topic exists then as before.
        """

    def deleted_queues(self) -> int:
        """The number of queues of deleted topics whose ends are remembered."""


@runtime_checkable
class SyncedPosition(Protocol):
    """Engines that can tell how far everything is durable."""

    def stored_offset(self) -> int:
        """Every message that is stored by now lies before this log offset."""

    def synced_offset(self) -> int:
        """Every message before this log offset is on disk."""

    async def flush(self) -> int:
        """Return once all that was stored by now is durable; the synced offset then.

        Raises FlushFailed, StoreClosed.
        """

    def is_durable(self, log_offset: int | None) -> bool:
        """Is the message at this log offset on disk?"""

    async def wait_durable(self, appended: Appended) -> None:
        """Return once this message is durable. Raises FlushFailed."""


@runtime_checkable
class Reserve(Protocol):
    """Engines that keep space for what settles something."""

    def set_reserve(self, owed_bytes: int) -> None:
        """About so many bytes are to be appended from the reserve some day; it is to hold them."""


class RecoveryReport(NamedTuple):
    """The findings and actions of a start.

    `was_clean`: the stop before was in order, or the store is new.
    """

    was_clean: bool
    walked_bytes: int
    replayed_records: int
    cut_at: int | None
    wiped_bytes: int
    took_ms: int
    started_at_ms: int
    first_offset: int  # of the log
    end_offset: int
    synced_offset: int  # up to which the log was known to be on disk


@runtime_checkable
class Recovery(Protocol):
    """Engines that say what their start found."""

    @property
    def recovery(self) -> RecoveryReport: ...

    @property
    def earlier_recoveries(self) -> Sequence[RecoveryReport]:
        """Of the starts before, the newest first."""


PutBack = Callable[[Mapping[QueueId, int]], Awaitable[None]]
"""Told the first offset of each queue that stays; writes again, durably, what must not go with
those before it.
"""


class DiskUsage(NamedTuple):
    """Ratios of the space that there is, 0 to 1, and what happens above which."""

    used_ratio: float
    clean_above: float  # what has expired is dropped at any hour
    force_above: float
    refuse_above: float  # new messages are refused
    is_writable: bool  # new messages are taken
    projected_full_at_ms: int | None  # when they will be refused, if it goes on like this
    segments_dropped: int  # since the start
    # of these, segments whose messages had not expired (on_full=delete_oldest)
    segments_dropped_unexpired: int


@runtime_checkable
class Retention(Protocol):
    """Engines that drop old messages by themselves."""

    async def expire(
        self, now_ms: int, put_back: PutBack, *, keep_ms: int = 0, at_any_hour: bool = False
    ) -> int:
        """Drop some of what has expired, if it is time or `at_any_hour`; return how many segments.

        Calls wait for each other.

        What is younger than `keep_ms` has not expired, however short the engine's own retention is.

        Before anything goes `put_back` is called. What it raises is raised, and nothing was dropped
        then.
        """

    async def expired_segments(self, now_ms: int, *, keep_ms: int = 0) -> "list[SegmentInfo]":
        """Segments that `expire` may drop at any hour, the oldest first; one call of it may take
        several to drop them all.
        """

    async def oldest_stored_at_ms(self) -> int | None:
        """When the oldest message was stored of those that are left; None where none has been
        dropped, or it cannot be read.
        """

    def disk_usage(self) -> DiskUsage:
        """As it was when `expire` was last called."""


@runtime_checkable
class KeyLookup(Protocol):
    """Engines that find messages by what they are called."""

    async def find_messages(
        self,
        key: str,
        *,
        topics: Collection[str],
        by_id: bool = False,
        from_ms: int = 0,
        to_ms: int = LAST_MS,
        older_than: int | None = None,
        with_deleted: bool = False,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """Visible messages of these topics with this key, or `by_id` this id, newest first.

        Only those stored in [from_ms, to_ms], and before the message at the log offset
        `older_than`. With `with_deleted` also those of topics that were deleted since, for as long
        as they are stored. The last one is the second or a later one with which the bodies exceed
        `max_bytes`. Raises CorruptRecord, StoreClosed.
        """


class Scanned(NamedTuple):
    """Some messages of a queue, and the offset behind all that was looked at."""

    messages: list[StoredMessage]
    next_offset: int


@runtime_checkable
class TagCodes(Protocol):
    """Engines that keep the hash of each message's tag beside its place, and need not read those
    with another.
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
        """As `read`, of the next `max_scanned` messages those whose tag has one of these hashes
        (`queue_entry.tag_hash`).

        Different tags may have one hash: the caller compares the tags.
        """


class ScannedRecords(NamedTuple):
    """Some messages of a queue as their records, and the offset behind all that was looked at."""

    records: list[StoredRecord]
    next_offset: int


@runtime_checkable
class RecordReads(Protocol):
    """Engines that store messages as RocketMQ's records, and give these as they are."""

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
        """As `read`, of the next `max_scanned` messages; with `tag_codes` as
        `TagCodes.read_tagged`. The same is checked.
        """


@runtime_checkable
class BlockReads(Protocol):
    """Engines that give the records of many messages at once, without waiting, where memory has
    them.
    """

    def bounds(self, queue: QueueId) -> OffsetRange:
        """As `offsets`. Raises UnknownTopic, UnknownQueue."""

    def block_now(
        self, queue: QueueId, queue_offset: int, *, count: int, max_bytes: int
    ) -> RecordBlock | None:
        """The records of so many messages, which the queue has, at least one.

        The same is checked as by `read_records`.

        None where memory does not have all of them, or they have more than `max_bytes` together, or
        one is damaged or of an unusual form: `read_records` finds out which. Raises UnknownTopic,
        UnknownQueue, StoreClosed.
        """


SYNC_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


class SyncStatistics(NamedTuple):
    """Durations of the log's syncs since the start, in milliseconds."""

    # syncs by duration: one number for each of SYNC_BUCKETS_MS, and one for those beyond the last
    counts: tuple[int, ...]
    total_ms: int
    longest_ms: int  # the one in flight included
    in_flight_ms: int  # 0 when none is
    # appends answered as buffered because their sync took longer than the limit
    answered_before: int


class StoreStatus(NamedTuple):
    """Numbers for operators; byte positions of the log."""

    first_offset: int
    written_end: int
    durable_end: int
    visible_end: int
    queued_bytes: int
    replay_backlog_bytes: int
    last_flush_ms: int
    syncs: SyncStatistics
    segments: int
    mapped_bytes: int  # of log, in memory
    derived_at_ms: int | None  # when what is derived was last begun to be written
    derive_lag_ms: int
    derive_error: str | None  # why the last time failed, if it did
    # of the key index, since the start: they were not what had been written
    rebuilt_index_files: int = 0
    rebuilt_entries: int = 0  # of queue files, since the start: the log did not bear them out


@runtime_checkable
class Status(Protocol):
    """Engines that say how they are."""

    def status(self) -> StoreStatus:
        """Now."""

    def pressure(self) -> float:
        """How full the queue of waiting writes is, 0 to 1. Asked with every send."""


class Finding(NamedTuple):
    """Something in the files of a store that is not as it must be."""

    code: str
    file: str  # its path below the store's folder
    position: int | None  # byte in the file; None where the file as a whole is meant
    # the same in the terms of the file: a log offset, a queue and an offset in it, an entry
    place: str
    found: str
    expected: str
    # the log has it all, and it can be rebuilt; else it is lost unless a copy has it
    is_derived: bool
    remedy: str
    places: int = 1  # that one finding stands for


class VerifyStep(NamedTuple):
    """One step of a verification: a bounded piece of work, after which the caller may pause or
    stop.
    """

    read_bytes: int
    file: str  # that was read last
    findings: tuple[Finding, ...] = ()
    searched_bytes: int = 0  # read to find what is whole behind damage; no part of the total


class Verification(Protocol):
    """One walk over all files of a store."""

    total_bytes: int  # to read, as far as known at the start

    def steps(self) -> Iterator[VerifyStep]:
        """Goes through everything once; may block. Raises OSError."""


class RunningVerification(Protocol):
    """A verification whose steps run beside the owner's thread."""

    @property
    def total_bytes(self) -> int:
        """To read, as far as known."""

    async def step(self) -> VerifyStep | None:
        """The next one; None at the end. Raises OSError, StoreClosed."""

    async def aclose(self) -> None:
        """Release its files."""


@runtime_checkable
class Verifiable(Protocol):
    """Engines whose files can be verified while they run."""

    async def begin_verification(self) -> RunningVerification:
        """Raises OSError, StoreClosed."""


class ScrubStatus(NamedTuple):
    """How far the background walk over the old log is.

    Offsets are bytes of the log, times wall milliseconds.
    """

    bytes_per_second: int  # 0: it never runs
    position: int
    end: int | None  # of the pass under way; None between two passes
    begun_at_ms: int | None  # of the newest pass
    last_ended_at_ms: int | None  # of the last pass that was whole
    findings: Sequence[Finding]


@runtime_checkable
class Scrubbing(Protocol):
    """Engines that verify their old log in the background."""

    async def scrub(self) -> int:
        """Read on as far as the rate allows; how many bytes. Raises OSError, StoreClosed."""

    def scrub_status(self) -> ScrubStatus: ...


class SegmentInfo(NamedTuple):
    """A piece of the log that is kept or dropped as a whole: log offsets [begin, end)."""

    name: str
    begin: int
    end: int
    is_sealed: bool  # all of it is written and on disk: it never changes again
    # None where nothing is in it yet, or its first message cannot be read
    first_stored_at_ms: int | None


@runtime_checkable
class SegmentListing(Protocol):
    """Engines whose log lies in pieces."""

    async def segments(self) -> list[SegmentInfo]:
        """In log order. Raises StoreClosed."""


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


@runtime_checkable
class Snapshots(Protocol):
    """Engines that keep derived tables, so that a start replays only what came after them."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Keep it in place of the last one of this name."""

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """The last one kept; None where there is none, or it is damaged, or it reflects more than
        the log now holds, or the log does not hold all that came after it any more.
        """


ANY_LABEL = range(1 << 32)


class DuePage(NamedTuple):
    """Entries by their time, and up to where all were looked at: None when that was all
    there is.
    """

    entries: list[DueEntry]
    end: DueEntry | None


class DueCounts(NamedTuple):
    waiting: int
    never: int  # due at or behind NEVER_MS


@runtime_checkable
class DueIndex(Protocol):
    """Engines that keep on disk what is due when, by its time, so that millions of entries do not
    live in memory.

    Derived: it reflects the queues that its owner reads, up to the positions he says, and a start
    gives both back as they were together at some moment. What came later is to be read and changed
    again.
    """

    def due_positions(self) -> Mapping[QueueId, int]:
        """Up to where the entries reflect each queue; empty where there are none yet, or they had
        to be forgotten.
        """

    def change_due(
        self, added: Sequence[DueEntry], taken: Sequence[DueEntry], positions: Mapping[QueueId, int]
    ) -> None:
        """All of it at once.

        `taken` are entries that were added, now or before, and are not due any more.
        """

    async def read_due(
        self, after: DueEntry | None, *, until_ms: int, max_entries: int, labels: range = ANY_LABEL
    ) -> DuePage:
        """The first ones behind this entry, which need not be there, that are due before `until_ms`
        and have such a label.

        Raises CorruptRecord: `forget_due` then, and everything is to be added again. Raises
        StoreClosed.
        """

    async def holds_due(self, entry: DueEntry) -> bool:
        """Was it added, and not taken away? Raises as `read_due`."""

    async def count_due(self, *, until_ms: int) -> int:
        """How many are due before then. Reads them all. Raises as `read_due`."""

    def due_counts(self) -> DueCounts: ...

    async def forget_due(self) -> None:
        """Take everything away; it reflects nothing then."""


@runtime_checkable
class DelayProgress(Protocol):
    """Engines whose files another server may go on with, which looks there how far the delay queues
    are done.
    """

    def keep_delay_progress(self, done_before: Mapping[QueueId, int]) -> None:
        """Nothing before these offsets is still to be delivered.

        Written behind the log; nothing waits for it.
        """

    def delay_progress_by_others(self) -> Mapping[QueueId, int]:
        """The same, of another server that had the files before they were opened; empty where it
        was us.
        """


@runtime_checkable
class ScatteredReads(Protocol):
    """Engines that read many messages that do not lie together better than one by one."""

    async def read_each(
        self, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
    ) -> list[StoredMessage | RejectedError | CorruptRecord]:
        """For each place the message there, or why there is none; of as many as these bytes of
        records allow, at least one.

        Raises StoreClosed.
        """


async def read_each(
    store: MessageStore, places: Sequence[tuple[QueueId, int]], *, max_bytes: int
) -> list[StoredMessage | RejectedError | CorruptRecord]:
    """`ScatteredReads` from any engine."""
    if isinstance(store, ScatteredReads):
        return await store.read_each(places, max_bytes=max_bytes)
    found: list[StoredMessage | RejectedError | CorruptRecord] = []
    for queue, queue_offset in places:
        try:
            messages = await store.read(queue, queue_offset, max_messages=1, max_bytes=1)
        except (RejectedError, CorruptRecord) as error:
            found.append(error)
            continue
        found += messages or [
            OffsetBeyondEnd(requested=queue_offset, available=await store.offsets(queue))
        ]
        max_bytes -= sum(len(message.body) for message in messages)
        if max_bytes <= 0:
            break
    return found


async def read_records(
    store: MessageStore,
    queue: QueueId,
    queue_offset: int,
    *,
    tag_codes: Collection[int] | None = None,
    max_scanned: int,
    max_messages: int,
    max_bytes: int,
) -> ScannedRecords:
    """`RecordReads` from any engine."""
    if _gives_records(type(store)):
        engine = cast("RecordReads", store)
        return await engine.read_records(
            queue,
            queue_offset,
            tag_codes=tag_codes,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
    count = min(max_scanned, max_messages)
    messages = await store.read(queue, queue_offset, max_messages=count, max_bytes=max_bytes)
    wanted = [one for one in messages if tag_codes is None or tag_hash(one.tag) in tag_codes]
    return ScannedRecords(
        [stored_record.of_message(one) for one in wanted], queue_offset + len(messages)
    )


@cache
def _gives_records(kind: type) -> bool:
    """Looked up once: to compare a class with a protocol takes longer than to read several
    messages.
    """
    return issubclass(kind, RecordReads)


async def find_message(
    store: MessageStore, queue: QueueId, from_offset: int, message_id: str
) -> StoredMessage | None:
    """The first message of this id at or behind an offset where it is expected soon; None where it
    is not there.

    Raises CorruptRecord where it is not found among the others and a damaged one may be it.
    """
    at = max(from_offset, (await store.offsets(queue)).first)
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
