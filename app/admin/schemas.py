"""Requests and responses of the administration: loops, store, settings, the key of the request."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding import codec
from app.http.access import SCOPES
from app.messages.schemas import Offset, Timestamp, WaitMs
from app.named_schemas import Int32, Texts, open_set
from app.tasks.schemas import StoreFinding
from storage.store_status import RecoveryReport

SCOPE = open_set("Scope", SCOPES, "Permission of an API key.")


class SetAsideItem(msgspec.Struct, kw_only=True):
    """An item that a loop could not process and skipped."""

    id: Annotated[
        str, Meta(description="Id of the transaction, the schedule or the producer group.")
    ]
    reason: str


class Loop(msgspec.Struct, kw_only=True):
    """A background loop of the service."""

    loop: str
    last_run_at: (
        Annotated[
            str,
            Meta(description="Start of the last run.", extra_json_schema={"format": "date-time"}),
        ]
        | UnsetType
    ) = UNSET
    lag_ms: Annotated[
        int,
        Meta(
            description="How long a successful run has been overdue. It grows while a run hangs "
            "or fails."
        ),
    ]
    failures: Annotated[Int32, Meta(description="Number of failed runs since the service started.")]
    last_error: (
        Annotated[str, Meta(description="Error of the last run, if it failed.")] | UnsetType
    ) = UNSET
    waits_for: (
        Annotated[
            str,
            Meta(
                description="Reason why due items are waiting: the store rejects writes, or the "
                "clock has jumped ahead. This is a delay, not a failure."
            ),
        ]
        | UnsetType
    ) = UNSET
    set_aside: Annotated[
        Int32, Meta(description="Number of items that it could not process and skipped.")
    ]
    set_aside_items: Annotated[
        list[SetAsideItem],
        Meta(description="Some of the skipped items. List schedules with state=set_aside."),
    ] = []


class LoopList(msgspec.Struct, kw_only=True):
    """All background loops of the service."""

    items: list[Loop]


class Log(msgspec.Struct, kw_only=True):
    """The commit log; offsets are bytes."""

    min_offset: Offset
    max_offset: Offset
    synced_offset: Offset
    visible_offset: Annotated[
        int,
        Meta(
            ge=0,
            description="Consumers can read up to this offset.",
            extra_json_schema={"format": "int64"},
        ),
    ]
    segments: Annotated[Int32, Meta(description="Number of files.")]


class Descriptors(msgspec.Struct, kw_only=True):
    """Descriptors in use, and their limit."""

    open: int
    limit: int


class Scrub(msgspec.Struct, kw_only=True):
    """The background scrub of the log below the newest snapshot, its queues and its key index."""

    bytes_per_second: Annotated[int, Meta(description="Rate limit; 0 if the scrub is off.")]
    position: Annotated[
        Offset, Meta(description="Everything before this offset was verified in the current pass.")
    ]
    end: (
        Annotated[Offset, Meta(description="End of the current pass; absent between two passes.")]
        | UnsetType
    ) = UNSET
    begun_at: Annotated[Timestamp, Meta(description="Start of the newest pass.")] | UnsetType = (
        UNSET
    )
    last_ended_at: (
        Annotated[Timestamp, Meta(description="End of the last complete pass.")] | UnsetType
    ) = UNSET
    findings: Annotated[
        list[StoreFinding], Meta(description="Damage found, by log offset; the first 100.")
    ]
    findings_omitted: Int32


class WritePool(msgspec.Struct, kw_only=True):
    """Memory that appends go into before they are written to the log's files."""

    buffers: Int32
    free_buffers: Int32
    locked_bytes: Annotated[int, Meta(description="Bytes of memory that are never swapped out.")]
    committed_offset: Annotated[
        Offset, Meta(description="Everything before this offset is in the log's files.")
    ]
    refused: Annotated[
        int, Meta(description="Appends refused since the start for lack of a free buffer.")
    ]


class RequestClass(msgspec.Struct, kw_only=True):
    """Requests that took about as long."""

    up_to_ms: (
        Annotated[
            float,
            Meta(description="Longest duration in the class; absent for the last class."),
        ]
        | UnsetType
    ) = UNSET
    requests: Annotated[int, Meta(description="Number of requests in the window.")]


class SendTimes(msgspec.Struct, kw_only=True):
    """Durations of requests that send messages, refused ones included."""

    requests_per_second: float
    mean_ms: Annotated[float, Meta(description="Mean duration.")]
    max_ms: (
        Annotated[
            float,
            Meta(description="Upper bound of all durations; absent if one was beyond all classes."),
        ]
        | UnsetType
    ) = UNSET
    classes: Annotated[
        list[RequestClass], Meta(description="Requests by duration, without empty classes.")
    ]


class Rates(msgspec.Struct, kw_only=True):
    """Rates of the last minute, or of the time since the start if that is shorter."""

    window_ms: Annotated[int, Meta(description="Time over which the rates were measured.")]
    messages_in_per_second: Annotated[
        float, Meta(description="Messages sent, or committed in a transaction.")
    ]
    messages_out_per_second: Annotated[float, Meta(description="Messages delivered.")]
    transactions_begun_per_second: float
    transactions_committed_per_second: float
    transactions_rolled_back_per_second: float
    ack_requests_per_second: Annotated[
        float, Meta(description="Requests that acknowledge messages.")
    ]
    log_bytes_per_second: Annotated[float, Meta(description="Bytes written to the log.")]
    sends: (
        Annotated[SendTimes, Meta(description="Absent without requests in the window.")] | UnsetType
    ) = UNSET


class Store(msgspec.Struct, kw_only=True):
    """Metrics of the store."""

    log: Log
    mapped_bytes: Annotated[
        int, Meta(description="Number of bytes of log that are mapped into memory.")
    ]
    files: Annotated[Descriptors, Meta(description="Open files and sockets of the process.")]
    connections: Annotated[Descriptors, Meta(description="Client connections.")]
    scrub: Scrub | UnsetType = UNSET
    dispatch_lag_bytes: Annotated[
        int, Meta(description="Bytes of log that are on disk but not yet in a consume queue.")
    ]
    replay_bytes: Annotated[int, Meta(description="Bytes of log that a start would replay.")]
    queued_bytes: Annotated[int, Meta(description="Bytes waiting to be written or synced.")]
    write_pool: (
        Annotated[WritePool, Meta(description="Absent unless appends go into a write pool.")]
        | UnsetType
    ) = UNSET
    pending_transactions: Annotated[
        Int32, Meta(description="Number of undecided transactions, including held ones.")
    ]
    held_transactions: Int32
    schedules_due_late: Annotated[
        Int32, Meta(description="Number of delayed messages that are long overdue.")
    ]
    rates: Rates | UnsetType = UNSET
    read_at: Timestamp


class RetentionInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A retention run requested by an operator."""

    dry_run: Annotated[
        bool, Meta(description="Return the segments that would be deleted, and change nothing.")
    ] = False


class RetentionPreview(msgspec.Struct, kw_only=True):
    """Segments that a retention run would delete."""

    dry_run: bool
    segments: Annotated[list[str], Meta(description="File names, oldest first; the first 1,000.")]
    total: Annotated[Int32, Meta(description="Number of segments.")]
    bytes: Annotated[int, Meta(description="Bytes of log in these segments.")]


class Flushed(msgspec.Struct, kw_only=True):
    """The result of a flush: everything before `synced_offset` is on disk."""

    synced_offset: Offset
    took_ms: int


class DurabilityQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which message is asked about."""

    offset: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=(1 << 63) - 1,
                description="The `log_offset` of a receipt. Default: everything stored so far.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | UnsetType
    ) = UNSET
    wait_ms: WaitMs = 0


class SyncedState(msgspec.Struct, kw_only=True):
    """How far the log is synced to disk."""

    synced_offset: Annotated[Offset, Meta(description="Every message before it is on disk.")]
    synced: Annotated[bool, Meta(description="True if the message at the given offset is on disk.")]


class TableView(msgspec.Struct, kw_only=True):
    """How a start restored a table that is derived from the log."""

    table: Annotated[str, Meta(description="Name of its snapshot.")]
    has_snapshot: Annotated[
        bool, Meta(description="False if there was none to use: every event was replayed.")
    ]
    replayed_events: (
        Annotated[int, Meta(description="Number of events that are later than the snapshot.")]
        | UnsetType
    ) = UNSET


class StepView(msgspec.Struct, kw_only=True):
    """Duration of a step of a start."""

    step: Annotated[
        str,
        Meta(
            description="snapshot, sync, walk (verify and replay the log), end (examine and cut), "
            "offsets_and_timers, then one for each part of the service."
        ),
    ]
    took_ms: int


class StartView(msgspec.Struct, kw_only=True):
    """Report of the recovery at a start. Offsets are bytes of the log."""

    started_at: Timestamp
    was_clean: Annotated[
        bool, Meta(description="True if the last stop was clean or the store was new.")
    ]
    reached_ready: Annotated[
        bool,
        Meta(
            description="False if the process ended before the service was ready, or an earlier "
            "version wrote the report."
        ),
    ]
    walked_bytes: Annotated[
        int, Meta(description="Bytes at the end of the log that were verified.")
    ]
    replayed_records: Annotated[
        int, Meta(description="Number of records whose queue and index entries were rebuilt.")
    ]
    snapshot_offset: (
        Annotated[
            Offset,
            Meta(
                description="End of the newest usable snapshot of queues and index. If absent, "
                "they were rebuilt from the beginning of the log."
            ),
        ]
        | UnsetType
    ) = UNSET
    queues: Annotated[Int32, Meta(description="Number of queues.")]
    rebuilt_queues: Annotated[
        Int32, Meta(description="Number of queues that got entries for the replayed records.")
    ]
    indexed_keys: Annotated[
        int, Meta(description="Number of keys of the replayed records added to the key index.")
    ]
    tables: Annotated[
        list[TableView], Meta(description="Tables of offsets, transactions, leases and others.")
    ]
    first_offset: Annotated[Offset, Meta(description="Beginning of the log.")]
    end_offset: Annotated[
        Offset,
        Meta(
            description="End of the log. A message from before `started_at` whose receipt has this "
            "`log_offset` or a later one is lost; no such receipt says `synced`."
        ),
    ]
    synced_offset: Annotated[
        Offset,
        Meta(
            description="End of the log that was known to be on disk, by the checkpoint or by a "
            "later record."
        ),
    ]
    checkpoint_offset: (
        Annotated[
            Offset,
            Meta(description="The same by the checkpoint alone; absent if there was none."),
        ]
        | UnsetType
    ) = UNSET
    buffered_bytes: Annotated[
        int,
        Meta(
            description="Bytes from `synced_offset` to `end_offset`: known to be buffered only, "
            "and recovered."
        ),
    ]
    buffered_records: Annotated[int, Meta(description="Number of records in these bytes.")]
    cut_at: (
        Annotated[
            Offset,
            Meta(
                description="Offset at which the log was cut: the bytes behind it were torn, and "
                "never acknowledged as synced."
            ),
        ]
        | UnsetType
    ) = UNSET
    cut_end: (
        Annotated[Offset, Meta(description="End of the bytes that were found behind the cut.")]
        | UnsetType
    ) = UNSET
    cut_records: Annotated[
        int, Meta(description="Number of records behind the cut that were whole.")
    ]
    wiped_bytes: Annotated[int, Meta(description="Bytes behind the end that were set to zero.")]
    took_ms: int
    steps: list[StepView]

    @classmethod
    def of(cls, report: RecoveryReport) -> "StartView":
        """The view of a report."""
        fields = msgspec.structs.asdict(report)
        fields["started_at"] = codec.rfc3339(fields.pop("started_at_ms"))
        for name in ("snapshot_offset", "checkpoint_offset", "cut_at", "cut_end"):
            fields[name] = UNSET if fields[name] is None else fields[name]
        fields["buffered_bytes"] = report.buffered_bytes
        fields["tables"] = [
            TableView(
                table=one.table,
                has_snapshot=one.has_snapshot,
                replayed_events=UNSET if one.replayed_events is None else one.replayed_events,
            )
            for one in report.tables
        ]
        fields["steps"] = [StepView(step=one.step, took_ms=one.took_ms) for one in report.steps]
        return cls(**fields)


class RecoveryView(StartView, kw_only=True):
    """Report of the recovery at the last start."""

    earlier: Annotated[
        list[StartView], Meta(description="Reports of up to 19 earlier starts, newest first.")
    ]


class Replica(msgspec.Struct, kw_only=True):
    """A replica that is connected."""

    node: Annotated[str, Meta(description="Its name.")]
    address: Annotated[str, Meta(description="The address and port that it connected from.")]
    stored_offset: Offset
    synced_offset: Annotated[
        Offset, Meta(description="It has every message before this log offset on its disk.")
    ]
    behind_bytes: Annotated[
        int,
        Meta(
            description="Bytes of log that the service has on disk, and the replica does not.",
            extra_json_schema={"format": "int64"},
        ),
    ]
    silent_ms: Annotated[int, Meta(description="Time since it was last heard of.")]


class RocketmqSlave(msgspec.Struct, kw_only=True):
    """A slave of RocketMQ that is connected. It never counts as a copy."""

    address: Annotated[str, Meta(description="The address and port that it connected from.")]
    stored_offset: Annotated[
        Offset, Meta(description="It has every message before this log offset, not all on disk.")
    ]
    behind_bytes: Annotated[
        int,
        Meta(
            description="Bytes of log that are safe, and that the slave does not have.",
            extra_json_schema={"format": "int64"},
        ),
    ]
    silent_ms: Annotated[int, Meta(description="Time since it was last heard of.")]


class ReplicaList(msgspec.Struct, kw_only=True):
    """The replicas that are connected, and how many copies there must be."""

    copies: Annotated[
        Int32,
        Meta(description="Machines that must have a message before it is acknowledged."),
    ]
    safe_offset: Annotated[
        Offset, Meta(description="So many have every message before this log offset.")
    ]
    lacks_copies: Annotated[
        bool,
        Meta(description="True: too few replicas are connected, and new messages are refused."),
    ]
    alone: Annotated[
        bool,
        Meta(
            description="True: messages may be on the disk of this machine alone, and no other one "
            "can take its place. While too few replicas are connected, it acknowledges what is on "
            "its own disk, with `durability` `synced`."
        ),
    ]
    items: list[Replica]
    rocketmq_slaves: Annotated[
        list[RocketmqSlave], Meta(description="Slaves of RocketMQ that are connected.")
    ]


class Config(msgspec.Struct, kw_only=True):
    """Effective settings of the service."""

    settings: Annotated[
        Texts, Meta(description="By environment variable. A secret is shown as (set).")
    ]


class Whoami(msgspec.Struct, kw_only=True):
    """The caller and its permissions."""

    authenticated: Annotated[
        bool, Meta(description="False if the service has no API keys and accepts all clients.")
    ]
    namespace: str
    scopes: Annotated[
        list[Annotated[str, SCOPE]],
        Meta(description="What the key may do. All of them without API keys."),
    ]
    topics: Annotated[
        list[str],
        Meta(description="Topics it may use; in a pattern `*` stands for any characters."),
    ]
    groups: Annotated[
        list[str], Meta(description="Groups of consumers and producers that it may use, likewise.")
    ]
    key: (
        Annotated[str, Meta(description="Name of the key, if it is one of ESCROWMQ_SCOPED_KEYS.")]
        | UnsetType
    ) = UNSET


class Version(msgspec.Struct, kw_only=True):
    """Release and API version of the service."""

    name: str
    version: str
    api_version: Annotated[str, Meta(description="The prefix of every path.")]
