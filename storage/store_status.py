"""Reports of a storage engine for operators: values alone.

`storage/store_admin.py` has the calls that return them.
"""

from collections.abc import Sequence
from typing import NamedTuple

SYNC_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


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


class DiskUsage(NamedTuple):
    """Ratios of the space on the disk, 0 to 1, and what happens above which."""

    used_ratio: float
    clean_above: float  # expired segments are dropped at any hour
    force_above: float
    refuse_above: float  # new messages are refused
    is_writable: bool  # new messages are taken
    projected_full_at_ms: int | None  # when they will be refused, at the present rate
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
    derived_at_ms: int | None  # when the last write of derived files began
    derive_lag_ms: int
    derive_error: str | None  # why the last time failed, if it did
    # of the key index, since the start: their content was not what had been written
    rebuilt_index_files: int = 0
    rebuilt_entries: int = 0  # of queue files, since the start: they contradicted the log


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
