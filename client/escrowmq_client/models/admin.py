"""State of the store and of the service."""

from datetime import datetime

from escrowmq_client.models.base import Output
from escrowmq_client.models.tasks import StoreFinding


class Descriptors(Output, frozen=True, kw_only=True):
    """Descriptors in use, and their limit."""

    open: int
    limit: int


class DiskDevice(Output, frozen=True, kw_only=True):
    """Load of the block device of the data directory, by all processes."""

    name: str
    """Name of the whole device, as in /proc/diskstats."""
    partition: str | None = None
    """The partition of it, if the data directory is on one."""
    utilisation: float
    """Share of the time with at least one request in flight, 0 to 1. From 0.8 on the device is
    busy.
    """
    reads_per_second: float
    writes_per_second: float
    merged_reads_per_second: float
    merged_writes_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    request_bytes: float
    """Mean size of a request."""
    in_flight: int
    """Number of requests in flight now."""
    queue_depth: float
    """Mean number of requests in flight."""
    wait_ms: float
    """Mean time of a request, from when it was queued to its end."""
    read_wait_ms: float
    write_wait_ms: float
    service_ms: float
    """Busy time of the device for each request."""


class DiskProcess(Output, frozen=True, kw_only=True):
    """Bytes that the service reads from devices, and that it writes."""

    read_bytes_per_second: float
    write_bytes_per_second: float


class DiskReads(Output, frozen=True, kw_only=True):
    """Reads of messages from the log, and how many of them the page cache served."""

    reads_per_second: float
    cold_reads_per_second: float
    """Reads per second that waited for the disk."""
    hit_ratio: float | None = None
    """Share of the reads that the page cache served; None without reads."""
    reads: int
    """Number of reads since the service started."""
    cold_reads: int


class DiskCache(Output, frozen=True, kw_only=True):
    """The page cache of the machine."""

    dirty_bytes: int
    """Bytes that were changed and not yet written, now."""
    writeback_bytes: int
    """Bytes on their way to a device, now."""
    dirty_limit_bytes: int
    """Limit above which the kernel makes writers wait."""
    refault_bytes_per_second: float | None = None
    """Bytes per second that were read again soon after the page cache had evicted them."""


class DiskPressure(Output, frozen=True, kw_only=True):
    """Share of the time, 0 to 1, in which some process waited, or all processes with work."""

    io_some: float | None = None
    io_full: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None


class DiskLog(Output, frozen=True, kw_only=True):
    """Writes and syncs of the log."""

    write_bytes_per_second: float
    syncs_per_second: float
    sync_ms: float
    """Mean time of a sync."""
    sync_running_ms: int
    """Time of the sync in flight; 0 if there is none."""


class DiskDiagnosis(Output, frozen=True, kw_only=True):
    """A cause of trouble with the disk, in words."""

    code: str
    message: str
    """The cause, and the figures that show it."""
    action: str
    """Advice for an operator."""
    since: datetime


class DiskAbsence(Output, frozen=True, kw_only=True):
    """A field that is absent, and why."""

    field: str
    reason: str


class Disk(Output, frozen=True, kw_only=True):
    """Disk usage of the store and its thresholds, the load of its device, and a diagnosis.

    `segments_dropped_unexpired`: segments whose messages had not expired, deleted because `on_full`
    is `delete_oldest`. Rates and means are of the last `window_ms`.
    """

    used_ratio: float
    clean_above: float
    force_above: float
    refuse_above: float
    writable: bool
    segments_dropped: int
    segments_dropped_unexpired: int
    growth_bytes_per_second: float | None = None
    """Growth of the used space in the last hour; below 0 if it shrinks."""
    full_in_ms: int | None = None
    """Time until new messages are refused, at that growth."""
    projected_full_at: datetime | None = None
    window_ms: int
    """0 before the first measurement."""
    device: DiskDevice | None = None
    process: DiskProcess | None = None
    reads: DiskReads | None = None
    cache: DiskCache | None = None
    pressure: DiskPressure | None = None
    log: DiskLog | None = None
    diagnoses: list[DiskDiagnosis]
    """Findings of the last window; empty: all is well."""
    absent: list[DiskAbsence]
    """Fields above that the machine does not show, or not yet."""


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
    """The background scrub of the log below the newest snapshot, its queues and its key index."""

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


class WritePool(Output, frozen=True, kw_only=True):
    """Memory that appends go into before they are written to the log's files."""

    buffers: int
    free_buffers: int
    locked_bytes: int
    """Bytes of memory that are never swapped out."""
    committed_offset: int
    """Everything before this offset is in the log's files."""
    refused: int
    """Appends refused since the start for lack of a free buffer."""


class RequestClass(Output, frozen=True, kw_only=True):
    """Requests that took about as long."""

    up_to_ms: float | None = None
    """Longest duration in the class; absent for the last class."""
    requests: int
    """Number of requests in the window."""


class SendTimes(Output, frozen=True, kw_only=True):
    """Durations of requests that send messages, refused ones included."""

    requests_per_second: float
    mean_ms: float
    """Mean duration."""
    max_ms: float | None = None
    """Upper bound of all durations; absent if one was beyond all classes."""
    classes: list[RequestClass]
    """Requests by duration, without empty classes."""


class Rates(Output, frozen=True, kw_only=True):
    """Rates of the last minute, or of the time since the start if that is shorter."""

    window_ms: int
    """Time over which the rates were measured."""
    messages_in_per_second: float
    """Messages sent, or committed in a transaction."""
    messages_out_per_second: float
    """Messages delivered."""
    transactions_begun_per_second: float
    transactions_committed_per_second: float
    transactions_rolled_back_per_second: float
    ack_requests_per_second: float
    """Requests that acknowledge messages."""
    log_bytes_per_second: float
    """Bytes written to the log."""
    sends: SendTimes | None = None
    """Absent without requests in the window."""


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
    write_pool: WritePool | None = None
    """Absent unless appends go into a write pool."""
    pending_transactions: int
    """Number of undecided transactions, including held ones."""
    held_transactions: int
    schedules_due_late: int
    """Number of delayed messages that are long overdue."""
    rates: Rates | None = None
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


class TableView(Output, frozen=True, kw_only=True):
    """How a start restored a table that is derived from the log."""

    table: str
    """Name of its snapshot."""
    has_snapshot: bool
    """False if there was none to use: every event was replayed."""
    replayed_events: int | None = None
    """Number of events that are later than the snapshot."""


class StepView(Output, frozen=True, kw_only=True):
    """Duration of a step of a start."""

    step: str
    """snapshot, sync, walk (verify and replay the log), end (examine and cut), offsets_and_timers,
    then one for each part of the service.
    """
    took_ms: int


class StartView(Output, frozen=True, kw_only=True):
    """Report of the recovery at a start. Offsets are bytes of the log."""

    started_at: datetime
    was_clean: bool
    """True if the last stop was clean or the store was new."""
    reached_ready: bool
    """False if the process ended before the service was ready, or an earlier version wrote the
    report.
    """
    walked_bytes: int
    """Bytes at the end of the log that were verified."""
    replayed_records: int
    """Number of records whose queue and index entries were rebuilt."""
    snapshot_offset: int | None = None
    """End of the newest usable snapshot of queues and index. If absent, they were rebuilt from the
    beginning of the log.
    """
    queues: int
    """Number of queues."""
    rebuilt_queues: int
    """Number of queues that got entries for the replayed records."""
    indexed_keys: int
    """Number of keys of the replayed records added to the key index."""
    tables: list[TableView]
    """Tables of offsets, transactions, leases and others."""
    first_offset: int
    """Beginning of the log."""
    end_offset: int
    """End of the log. A message from before `started_at` whose receipt has this `log_offset` or a
    later one is lost; no such receipt says `synced`.
    """
    synced_offset: int
    """End of the log that was known to be on disk, by the checkpoint or by a later record."""
    checkpoint_offset: int | None = None
    """The same by the checkpoint alone; absent if there was none."""
    buffered_bytes: int
    """Bytes from `synced_offset` to `end_offset`: known to be buffered only, and recovered."""
    buffered_records: int
    """Number of records in these bytes."""
    cut_at: int | None = None
    """Offset at which the log was cut: the bytes behind it were torn, and never acknowledged as
    synced.
    """
    cut_end: int | None = None
    """End of the bytes that were found behind the cut."""
    cut_records: int
    """Number of records behind the cut that were whole."""
    wiped_bytes: int
    """Bytes behind the end that were set to zero."""
    took_ms: int
    steps: list[StepView]


class RecoveryView(StartView, frozen=True, kw_only=True):
    """Report of the recovery at the last start."""

    earlier: list[StartView]
    """Reports of up to 19 earlier starts, newest first."""


class Replica(Output, frozen=True, kw_only=True):
    """A replica that is connected."""

    node: str
    """Its name."""
    address: str
    """The address and port that it connected from."""
    stored_offset: int
    synced_offset: int
    """It has every message before this log offset on its disk."""
    behind_bytes: int
    """Bytes of log that the service has on disk, and the replica does not."""
    silent_ms: int
    """Time since it was last heard of."""


class RocketmqSlave(Output, frozen=True, kw_only=True):
    """A slave of RocketMQ that is connected. It never counts as a copy."""

    address: str
    """The address and port that it connected from."""
    stored_offset: int
    """It has every message before this log offset, not all on disk."""
    behind_bytes: int
    """Bytes of log that are safe, and that the slave does not have."""
    silent_ms: int
    """Time since it was last heard of."""


class ReplicaList(Output, frozen=True, kw_only=True):
    """The replicas that are connected, and how many copies there must be."""

    copies: int
    """Machines that must have a message before it is acknowledged."""
    safe_offset: int
    """So many have every message before this log offset."""
    lacks_copies: bool
    """True: too few replicas are connected, and new messages are refused."""
    alone: bool
    """True: too few replicas are connected, and the service acknowledges what is on its own disk,
    with `durability` `synced`.
    """
    items: list[Replica]
    rocketmq_slaves: list[RocketmqSlave]
    """Slaves of RocketMQ that are connected."""


class NodePromise(Output, frozen=True, kw_only=True):
    """A node, what it has promised, and how far its log is."""

    node: str
    """Name of the node that answers."""
    role: str
    epoch: int
    """It follows no primary of an earlier epoch. 0: no promise."""
    promised_to: str | None = None
    """Name of the primary of that epoch."""
    last_epoch: int | None = None
    """Last epoch of its log; None while that opens."""
    end_offset: int | None = None
    connected: bool | None = None
    """Of a replica: does it have a connection to its service?"""
    granted: bool | None = None
    """Whether the requested promise was made."""
    reason: str | None = None
    """Why it was not."""


class Promotion(Output, frozen=True, kw_only=True):
    """A node that is the service, or is about to open its log as such."""

    node: str
    """Name of the node."""
    epoch: int
    """Epoch of the log in which it begins."""
    end_offset: int


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
    """send, receive, transact, operate, audit, admin. What the key may do. All of them without API
    keys.
    """
    topics: list[str]
    """Topics it may use; in a pattern * stands for any characters."""
    groups: list[str]
    """Groups of consumers and producers that it may use, likewise."""
    key: str | None = None
    """Name of the key, if it is one of ESCROWMQ_SCOPED_KEYS."""


class Version(Output, frozen=True, kw_only=True):
    """Release and API version of the service."""

    name: str
    version: str
    api_version: str
    """The prefix of every path."""
