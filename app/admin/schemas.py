"""What goes in and out: the loops, the store, the disk, the settings, who is asking."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Offset, Timestamp, WaitMs
from app.tasks.schemas import StoreFinding


class SetAsideItem(msgspec.Struct, kw_only=True):
    """Something that a loop could not deal with and went past."""

    id: Annotated[str, Meta(description="Of the transaction, the schedule or the producer group.")]
    reason: str


class Loop(msgspec.Struct, kw_only=True):
    """Something that the service does again and again."""

    loop: str
    last_run_at: Annotated[str, Meta(description="When it began.", extra_json_schema={"format": "date-time"})] | UnsetType = (
        UNSET
    )
    lag_ms: Annotated[
        int, Meta(description="For how long a run that ends well has been overdue; grows while one hangs or fails.")
    ]
    failures: Annotated[int, Meta(description="Runs that failed since the service was started.")]
    last_error: Annotated[str, Meta(description="Of the last run, if that failed.")] | UnsetType = UNSET
    waits_for: (
        Annotated[str, Meta(description="Why what is due waits where the store takes nothing for now. No failure: it is late.")]
        | UnsetType
    ) = UNSET
    set_aside: Annotated[int, Meta(description="Items that it could not deal with and went past.")]
    set_aside_items: Annotated[
        list[SetAsideItem], Meta(description="Some of them. Schedules are listed by state=set_aside.")
    ] = []


class LoopList(msgspec.Struct, kw_only=True):
    """Every loop of the service."""

    items: list[Loop]


class Log(msgspec.Struct, kw_only=True):
    """The commit log; offsets are bytes."""

    min_offset: Offset
    max_offset: Offset
    synced_offset: Offset
    visible_offset: Annotated[
        int, Meta(ge=0, description="Consumers see it up to here.", extra_json_schema={"format": "int64"})
    ]
    segments: Annotated[int, Meta(description="Files.")]


class Descriptors(msgspec.Struct, kw_only=True):
    """Descriptors in use, and how many there may be."""

    open: int
    limit: int


class Scrub(msgspec.Struct, kw_only=True):
    """The background walk over the old log that verifies every byte below the newest snapshot."""

    bytes_per_second: Annotated[int, Meta(description="Its limit; 0: it never runs.")]
    position: Annotated[Offset, Meta(description="Everything before it was verified in the newest pass.")]
    end: Annotated[Offset, Meta(description="Where the pass under way ends; absent between two passes.")] | UnsetType = UNSET
    begun_at: Annotated[Timestamp, Meta(description="When the newest pass began.")] | UnsetType = UNSET
    last_ended_at: Annotated[Timestamp, Meta(description="When the last whole pass ended.")] | UnsetType = UNSET
    findings: Annotated[list[StoreFinding], Meta(description="Damage, by its place in the log; the first 100.")]
    findings_omitted: int


class Store(msgspec.Struct, kw_only=True):
    """How the store is, in numbers."""

    log: Log
    mapped_bytes: Annotated[int, Meta(description="Number of bytes of log that are mapped into memory.")]
    files: Annotated[Descriptors, Meta(description="Files and sockets of the process.")]
    connections: Annotated[Descriptors, Meta(description="Connections of clients.")]
    scrub: Scrub | UnsetType = UNSET
    dispatch_lag_bytes: Annotated[int, Meta(description="Of log that is on disk, and in no consume queue yet.")]
    replay_bytes: Annotated[int, Meta(description="Of log that a start would have to replay.")]
    queued_bytes: Annotated[int, Meta(description="That wait to be written or synced.")]
    pending_transactions: Annotated[int, Meta(description="Undecided, held ones among them.")]
    held_transactions: int
    schedules_due_late: Annotated[int, Meta(description="Delayed messages that wait although they are long overdue.")]
    read_at: Timestamp


class Disk(msgspec.Struct, kw_only=True):
    """Use of the store's disk, the shares above which something happens, and the segments dropped since the start.

    `segments_dropped_unexpired`: those whose messages had not expired, because `on_full` is `delete_oldest`.
    """

    used_ratio: float
    clean_above: float
    force_above: float
    refuse_above: float
    writable: bool
    segments_dropped: int
    segments_dropped_unexpired: int
    projected_full_at: Timestamp | UnsetType = UNSET


class RetentionInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A run of retention at the operator's wish."""

    dry_run: Annotated[bool, Meta(description="Change nothing, and answer what would be dropped.")] = False


class RetentionPreview(msgspec.Struct, kw_only=True):
    """Segments that a run of retention would drop."""

    dry_run: bool
    segments: Annotated[list[str], Meta(description="Names of their files, the oldest first; the first 1,000.")]
    total: Annotated[int, Meta(description="Number of segments.")]
    bytes: Annotated[int, Meta(description="Bytes of log in them.")]


class Flushed(msgspec.Struct, kw_only=True):
    """Everything before `synced_offset` is on disk."""

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
                description="The `log_offset` of a receipt; all that is stored by now if left out.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | UnsetType
    ) = UNSET
    wait_ms: WaitMs = 0


class SyncedState(msgspec.Struct, kw_only=True):
    """How far the log is on disk."""

    synced_offset: Annotated[Offset, Meta(description="Every message before it is on disk.")]
    synced: Annotated[bool, Meta(description="Is the message that was asked about on disk?")]


class StartView(msgspec.Struct, kw_only=True):
    """The findings of a start, and what it did about them."""

    started_at: Timestamp
    was_clean: Annotated[bool, Meta(description="The stop before was in order, or the store was new: nothing to recover.")]
    walked_bytes: Annotated[int, Meta(description="Of the log's end, each byte of which was verified.")]
    replayed_records: Annotated[int, Meta(description="Queued and indexed once more.")]
    cut_at: (
        Annotated[
            Offset,
            Meta(description="Where the end of the log was cut: what lay behind was torn, and never acknowledged as synced."),
        ]
        | UnsetType
    ) = UNSET
    wiped_bytes: Annotated[int, Meta(description="Zeroed behind the end.")]
    took_ms: int
    first_offset: Annotated[Offset, Meta(description="Beginning of the log.")]
    end_offset: Annotated[Offset, Meta(description="End of the log.")]
    synced_offset: Annotated[Offset, Meta(description="End of what was known to be on disk.")]


class RecoveryView(StartView, kw_only=True):
    """The findings of the last start, and what it did about them."""

    earlier: Annotated[list[StartView], Meta(description="Reports of the starts before, newest first.")]


class Config(msgspec.Struct, kw_only=True):
    """What is in force."""

    settings: Annotated[
        dict[str, str], Meta(description="By the variable's name. Of one that holds a secret only whether it is (set).")
    ]


class Whoami(msgspec.Struct, kw_only=True):
    """Who is asking, and what that one may do."""

    authenticated: Annotated[bool, Meta(description="False where the service has no API keys, and takes everybody.")]
    namespace: str
    scopes: Annotated[
        list[str], Meta(description="send, receive, transact, operate, audit, admin. A key has them all in this release.")
    ]


class Version(msgspec.Struct, kw_only=True):
    """What is running."""

    name: str
    version: str
    api_version: Annotated[str, Meta(description="The prefix of every path.")]
