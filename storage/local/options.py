"""How the embedded engine is set up."""

from dataclasses import dataclass
from enum import Enum

from storage.files.vfs import PAGE_BYTES
from storage.local.retention_plan import OnFull, RetentionPolicy
from storage.option_checks import require_at_least

MIB = 1 << 20
# Of small ones, tens of MiB would be thousands of files.
_MOST_SEGMENTS_AHEAD = 16
_MOST_SEGMENTS_UNSYNCED = 8


class FlushPolicy(Enum):
    """When an append counts as durable, and is answered."""

    BEFORE_ACK = "before_ack"  # group commit: one sync covers all who wait [SYNC_FLUSH]
    INTERVAL = "interval"  # answered from the page cache, synced a moment later [ASYNC_FLUSH]


class AppendMode(Enum):
    """The destination of the bytes of an append."""

    FILE = "file"  # into the log's file
    POOL = "pool"  # into memory that a lane writes to the file [transientStorePoolEnable]


@dataclass(frozen=True, kw_only=True)
class LocalStoreOptions:
    """Defaults are RocketMQ's where it has the setting. Source: RocketMQ MessageStoreConfig."""

    segment_bytes: int = 1 << 30
    queue_file_entries: int = 300_000
    append: AppendMode = AppendMode.FILE
    pool_buffers: int = 5  # this and the next four are read when append is POOL
    pool_buffer_bytes: int = 4 * MIB
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200
    flush: FlushPolicy = FlushPolicy.BEFORE_ACK
    flush_interval_ms: int = 500  # this and the next three are read when flush is INTERVAL
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    flush_max_bytes: int = 8 * MIB  # what a power loss may take at most, however fast it comes in
    sync_timeout_ms: int = 5_000  # a send that waits longer is answered as buffered
    slow_sync_ms: int = 2_000  # buffered sends wait for a sync that takes longer
    warn_sync_ms: int = 500  # a sync that takes longer leaves a warning in the log
    prepare_ahead_bytes: int = 32 * MIB  # allocated, zero-filled and synced ahead of the writer
    # of log, for what settles something on a full disk; 0: a 64th of a segment
    reserve_bytes: int = 0
    max_queued_bytes: int = 64 * MIB  # bodies that wait to be written or synced; more is refused
    reserved_queue_bytes: int = 16 * MIB  # beyond that, for what settles something
    max_unit_bytes: int = 4 * MIB  # sends of one tick are joined up to here
    queue_flush_interval_ms: int = 1_000
    snapshot_interval_ms: int = 10_000  # derived tables are kept this often,
    snapshot_log_bytes: int = 32 * MIB  # or after so much log: what a start has to replay
    max_open_queue_files: int = 0  # 0: 512, or a quarter of what the process may open
    max_open_index_files: int = 16
    # of those that are only read; what is being written is open and mapped beside them
    max_open_segments: int = 64
    retention_ms: int = 72 * 3_600_000  # a segment expires when its newest record is older
    delete_hours: str = "04"  # UTC, with ; between
    delete_batch: int = 10  # segments in one run
    delete_pause_ms: int = 100  # between two of them [deleteCommitLogFilesInterval]
    clean_above: float = 0.75  # of the disk: what has expired goes at any hour
    # a warning; with on_full = delete_oldest what has not expired goes, too
    force_above: float = 0.85
    refuse_above: float = 0.90  # new messages are refused
    on_full: OnFull = OnFull.KEEP
    # of the old log, read and verified in the background; 0: never
    scrub_bytes_per_second: int = 2 * MIB
    # from the beginning of one pass to that of the next
    scrub_interval_ms: int = 7 * 24 * 3_600_000
    verify_bytes_per_second: int = 16 * MIB  # of all files, read and compared for an operator
    # of a timer log that is handed over to a broker [mappedFileSizeTimerLog]
    timer_log_file_bytes: int = 100 * MIB
    index_slots: int = 5_000_000  # of the key index: 4 bytes each in memory
    index_file_entries: int = 20_000_000

    def __post_init__(self) -> None:
        if (
            self.segment_bytes < 4 * PAGE_BYTES
            or self.segment_bytes % PAGE_BYTES
            or self.segment_bytes >= 1 << 31
        ):
            limits = f"a multiple of {PAGE_BYTES} from {4 * PAGE_BYTES} to below 2 GiB"
            raise ValueError(f"segment_bytes must be {limits}, got {self.segment_bytes}")
        require_at_least(1, self, (
            "commit_interval_ms", "commit_thorough_interval_ms",
            "queue_file_entries", "flush_interval_ms", "flush_thorough_interval_ms",
            "flush_max_bytes", "sync_timeout_ms",
            "slow_sync_ms", "warn_sync_ms", "prepare_ahead_bytes", "max_queued_bytes",
            "reserved_queue_bytes", "max_unit_bytes",
            "queue_flush_interval_ms", "snapshot_interval_ms", "snapshot_log_bytes",
            "max_open_segments",
            "max_open_index_files", "index_slots", "retention_ms", "delete_batch",
            "scrub_interval_ms",
            "verify_bytes_per_second",
        ))  # fmt: skip
        if not 0 < self.clean_above <= self.force_above <= self.refuse_above <= 1:
            raise ValueError(
                "clean_above, force_above and refuse_above must rise, above 0 and up to 1"
            )
        if not all(
            hour.strip().isdigit() and int(hour) < 24 for hour in self.delete_hours.split(";")
        ):
            raise ValueError(
                f"delete_hours must be hours from 00 to 23 with ; between, got {self.delete_hours}"
            )
        if not 0 <= self.reserve_bytes <= self.segment_bytes:
            raise ValueError(
                f"reserve_bytes must be from 0 to segment_bytes, got {self.reserve_bytes}"
            )
        if self.index_file_entries < 2 or self.index_file_entries >= 1 << 31:
            raise ValueError(
                f"index_file_entries must be from 2 to below 2**31, got {self.index_file_entries}"
            )
        if not PAGE_BYTES <= self.timer_log_file_bytes < 1 << 31:
            raise ValueError(
                f"timer_log_file_bytes must be from {PAGE_BYTES} to below 2**31,"
                f" got {self.timer_log_file_bytes}"
            )
        require_at_least(2, self, ("pool_buffers",))
        if self.pool_buffer_bytes < PAGE_BYTES or self.pool_buffer_bytes % PAGE_BYTES:
            raise ValueError(
                f"pool_buffer_bytes must be a multiple of {PAGE_BYTES}, got "
                f"{self.pool_buffer_bytes}"
            )
        for name in (
            "commit_least_pages",
            "flush_least_pages",
            "delete_pause_ms",
            "max_open_queue_files",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def retention(self) -> RetentionPolicy:
        return RetentionPolicy(
            retention_ms=self.retention_ms,
            delete_hours=frozenset(map(int, self.delete_hours.split(";"))),
            batch=self.delete_batch,
            clean_above=self.clean_above,
            force_above=self.force_above,
            refuse_above=self.refuse_above,
            on_full=self.on_full,
        )

    @property
    def log_ahead_bytes(self) -> int:
        """The bytes that are zero-filled in front of the writer, in segments open and mapped."""
        return min(self.prepare_ahead_bytes, _MOST_SEGMENTS_AHEAD * self.segment_bytes)

    @property
    def log_flush_bytes(self) -> int:
        """The bytes that are not on disk at which a flush begins, whatever the policy."""
        return min(self.flush_max_bytes, _MOST_SEGMENTS_UNSYNCED * self.segment_bytes)

    @property
    def most_held_segments(self) -> int:
        """Open and mapped at once: those on their way to the disk, the one that is written, those
        ahead, and the reserve's. An append that needs a further one waits for a flush.
        """
        in_use_bytes = self.log_flush_bytes + self.log_ahead_bytes
        return -(-in_use_bytes // self.segment_bytes) + 3

    @property
    def log_reserve_bytes(self) -> int:
        """The reserve, where none of its own was asked for too."""
        return self.reserve_bytes or self.segment_bytes // 64
