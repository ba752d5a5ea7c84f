"""State of the store and of the service."""

from datetime import datetime

from escrowmq_client.models.base import Output
from escrowmq_client.models.tasks import StoreFinding


class Descriptors(Output, frozen=True, kw_only=True):
    """Descriptors in use, and their limit."""

    open: int
    limit: int


class Disk(Output, frozen=True, kw_only=True):
    """Disk usage of the store, its thresholds, and the segments deleted since the start.

    `segments_dropped_unexpired`: segments whose messages had not expired, deleted because `on_full`
    is `delete_oldest`.
    """

    used_ratio: float
    clean_above: float
    force_above: float
    refuse_above: float
    writable: bool
    segments_dropped: int
    segments_dropped_unexpired: int
    projected_full_at: datetime | None = None


class SetAsideItem(Output, frozen=True, kw_only=True):
    """An item that a loop could not process and skipped."""

    id: str
    """Id of the transaction, the schedule or the producer group."""
    reason: str


class Loop(Output, frozen=True, kw_only=True):
    """A background loop of the service."""

    loop: str
    last_run_at: datetime | None = None
    """Start of the last run."""
    lag_ms: int
    """How long a successful run has been overdue. It grows while a run hangs or fails."""
    failures: int
    """Number of failed runs since the service started."""
    last_error: str | None = None
    """Error of the last run, if it failed."""
    waits_for: str | None = None
    """Reason why due items are waiting while the store rejects writes. This is a delay, not a
    failure.
    """
    set_aside: int
    """Number of items that it could not process and skipped."""
    set_aside_items: list[SetAsideItem]
    """Some of the skipped items. List schedules with state=set_aside."""


class LoopList(Output, frozen=True, kw_only=True):
    """All background loops of the service."""

    items: list[Loop]


class Log(Output, frozen=True, kw_only=True):
    """The commit log; offsets are bytes."""

    min_offset: int
    max_offset: int
    synced_offset: int
    visible_offset: int
    """Consumers can read up to this offset."""
    segments: int
    """Number of files."""


class Scrub(Output, frozen=True, kw_only=True):
    """The background scrub, which verifies every byte of the log below the newest snapshot."""

    bytes_per_second: int
    """Rate limit; 0 if the scrub is off."""
    position: int
    """Everything before this offset was verified in the current pass."""
    end: int | None = None
    """End of the current pass; absent between two passes."""
    begun_at: datetime | None = None
    """Start of the newest pass."""
    last_ended_at: datetime | None = None
    """End of the last complete pass."""
    findings: list[StoreFinding]
    """Damage found, by log offset; the first 100."""
    findings_omitted: int


class Store(Output, frozen=True, kw_only=True):
    """Metrics of the store."""

    log: Log
    mapped_bytes: int
    """Number of bytes of log that are mapped into memory."""
    files: Descriptors
    """Open files and sockets of the process."""
    connections: Descriptors
    """Client connections."""
    scrub: Scrub | None = None
    dispatch_lag_bytes: int
    """Bytes of log that are on disk but not yet in a consume queue."""
    replay_bytes: int
    """Bytes of log that a start would replay."""
    queued_bytes: int
    """Bytes waiting to be written or synced."""
    pending_transactions: int
    """Number of undecided transactions, including held ones."""
    held_transactions: int
    schedules_due_late: int
    """Number of delayed messages that are long overdue."""
    read_at: datetime


class Flushed(Output, frozen=True, kw_only=True):
    """The result of a flush: everything before `synced_offset` is on disk."""

    synced_offset: int
    took_ms: int


class RetentionPreview(Output, frozen=True, kw_only=True):
    """Segments that a retention run would delete."""

    dry_run: bool
    segments: list[str]
    """File names, oldest first; the first 1,000."""
    total: int
    """Number of segments."""
    bytes: int
    """Bytes of log in these segments."""


class StartView(Output, frozen=True, kw_only=True):
    """Report of the recovery at a start."""

    started_at: datetime
    was_clean: bool
    """True if the last stop was clean or the store was new."""
    walked_bytes: int
    """Bytes at the end of the log that were verified."""
    replayed_records: int
    """Number of records whose queue and index entries were rebuilt."""
    cut_at: int | None = None
    """Offset at which the log was cut: the bytes behind it were torn, and never acknowledged as
    synced.
    """
    wiped_bytes: int
    """Bytes behind the end that were set to zero."""
    took_ms: int
    first_offset: int
    """Beginning of the log."""
    end_offset: int
    """End of the log."""
    synced_offset: int
    """End of the log that was known to be on disk."""


class RecoveryView(StartView, frozen=True, kw_only=True):
    """Report of the recovery at the last start."""

    earlier: list[StartView]
    """Reports of earlier starts, newest first."""


class Config(Output, frozen=True, kw_only=True):
    """Effective settings of the service."""

    settings: dict[str, str]
    """By environment variable. A secret is shown as (set)."""


class SyncedState(Output, frozen=True, kw_only=True):
    """How far the log is synced to disk."""

    synced_offset: int
    """Every message before it is on disk."""
    synced: bool
    """True if the message at the given offset is on disk."""


class Whoami(Output, frozen=True, kw_only=True):
    """The caller and its permissions."""

    authenticated: bool
    """False if the service has no API keys and accepts all clients."""
    namespace: str
    scopes: list[str]
    """send, receive, transact, operate, audit, admin. In this release a key has all of them."""


class Version(Output, frozen=True, kw_only=True):
    """Release and API version of the service."""

    name: str
    version: str
    api_version: str
    """The prefix of every path."""
