"""Reports of a storage engine for operators: values alone.

`storage/store_admin.py` has the calls that return them.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

SYNC_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_WallMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]  # to the end of the year 9999
_Name = Annotated[str, msgspec.Meta(max_length=100)]


class TableStart(msgspec.Struct, frozen=True):
    """How a start got a derived table back: from its snapshot and later events, or from all."""

    table: _Name
    has_snapshot: bool
    replayed_events: _Count | None  # later than the snapshot; None without one


class StartStep(msgspec.Struct, frozen=True):
    """Duration of a step of a start."""

    step: _Name
    took_ms: _Count


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and actions of a start. Offsets are bytes of the log.

    Every message from before `started_at_ms` that was stored at or behind `end_offset` is lost;
    none of them was answered as synced. Reports of earlier versions lack the fields with
    defaults.
    """

    was_clean: bool  # the stop before was in order, or the store is new
    walked_bytes: _Count  # verified, up to the end
    replayed_records: _Count  # of these bytes
    cut_at: _Count | None
    wiped_bytes: _Count
    took_ms: _Count  # of the store; of the whole start where it reached readiness
    started_at_ms: _WallMs
    first_offset: _Count  # of the log
    end_offset: _Count
    # up to which the log was known to be on disk, by the checkpoint or by a unit behind
    synced_offset: _Count
    checkpoint_offset: _Count | None = None  # the same by the checkpoint alone; None without one
    buffered_records: _Count = 0  # whole ones from synced_offset to end_offset: they survived
    cut_end: _Count | None = None  # behind the last byte that was found behind `cut_at`
    cut_records: _Count = 0  # whole ones of whole units of ours that were cut with the rest
    # the newest snapshot of the queues; None: queues and index were rebuilt from the beginning
    snapshot_offset: _Count | None = None
    queues: _Count = 0
    rebuilt_queues: _Count = 0  # those that got entries of the walked bytes
    indexed_keys: _Count = 0  # added to the key index by the walk
    tables: Annotated[tuple[TableStart, ...], msgspec.Meta(max_length=100)] = ()
    steps: Annotated[tuple[StartStep, ...], msgspec.Meta(max_length=100)] = ()
    reached_ready: bool = False  # False: the process ended before, or an earlier version wrote it

    @property
    def buffered_bytes(self) -> int:
        """Bytes behind `synced_offset` that survived."""
        return max(0, self.end_offset - self.synced_offset)


class DiskUsage(NamedTuple):
    """Ratios of the space on the disk, 0 to 1, and what happens above which."""

    used_ratio: float
    clean_above: float  # expired segments are dropped at any hour
    force_above: float
    refuse_above: float  # new messages are refused
    is_writable: bool  # new messages are taken
    projected_full_at_ms: int | None  # when they will be refused, at the present rate
    # of the used space, over the last hour at most; below 0 where it shrinks, 0 where the window is
    growth_bytes_per_second: float
    growth_window_ms: int  # the time over which it was measured; 0 in the first minute of a service
    segments_dropped: int  # since the start
    # of these, segments whose messages had not expired (on_full=delete_oldest)
    segments_dropped_unexpired: int


class SyncStatistics(NamedTuple):
    """Durations of the log's syncs since the start, in milliseconds."""

    # syncs by duration: one number for each of SYNC_BUCKETS_MS, and one for those beyond the last
    counts: tuple[int, ...]
    total_ms: int
    longest_ms: int  # the one in flight included
    in_flight_ms: int  # 0 when none is
    # appends answered as buffered because their sync took longer than the limit
    answered_before: int


class PoolStatus(NamedTuple):
    """The write pool in front of the log's files."""

    buffers: int
    free_buffers: int
    locked_bytes: int  # of memory; the rest may be swapped out
    committed_end: int  # of the log: all before it is in its files
    refusals: int  # appends, since the start, that found no room in it for too long


class ReadStatistics(NamedTuple):
    """Reads of messages from the log since the start; one read is of up to a page of messages."""

    total: int
    cold: int  # reads that waited for the disk: the page cache did not have all bytes


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
    reads: ReadStatistics | None  # None where the file system does not say what is cached
    segments: int
    mapped_bytes: int  # of log, in memory
    derived_at_ms: int | None  # when the last write of derived files began
    derive_lag_ms: int
    derive_error: str | None  # why the last time failed, if it did
    # of the key index, since the start: their content was not what had been written
    rebuilt_index_files: int = 0
    rebuilt_entries: int = 0  # of queue files, since the start: they contradicted the log
    pool: PoolStatus | None = None  # None where appends go into the log's files


class SegmentInfo(NamedTuple):
    """A piece of the log that is kept or dropped as a whole: log offsets [begin, end)."""

    name: str
    begin: int
    end: int
    is_sealed: bool  # all of it is written and on disk: it never changes again
    # None where nothing is in it yet, or its first message cannot be read
    first_stored_at_ms: int | None


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
    places: int = 1  # number of places that one finding covers


class VerifyStep(NamedTuple):
    """One step of a verification: a bounded piece of work, after which the caller may pause or
    stop.
    """

    read_bytes: int
    file: str  # that was read last
    findings: tuple[Finding, ...] = ()
    searched_bytes: int = 0  # read to find what is whole behind damage; no part of the total


class ScrubStatus(NamedTuple):
    """The progress of the background walk over the old log.

    Offsets are bytes of the log, times wall milliseconds.
    """

    bytes_per_second: int  # 0: it never runs
    position: int
    end: int | None  # of the pass under way; None between two passes
    begun_at_ms: int | None  # of the newest pass
    last_ended_at_ms: int | None  # of the last pass that was whole
    findings: Sequence[Finding]
