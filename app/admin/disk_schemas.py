"""Bodies of the disk's figures: units are in the names of the fields or in their descriptions."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.disk.diagnosis import CODES
from app.messages.schemas import Timestamp
from app.named_schemas import Int32, open_set

CODE = open_set("DiskDiagnosisCode", CODES, "Cause of trouble with the disk.")

Share = Annotated[float, Meta(ge=0, le=1, description="Share of the time, 0 to 1.")]
PerSecond = Annotated[float, Meta(ge=0, description="Mean number per second.")]
BytesPerSecond = Annotated[float, Meta(ge=0, description="Mean number of bytes per second.")]
MeanMs = Annotated[float, Meta(ge=0, description="Mean, in milliseconds; 0 without any.")]


class DiskDevice(msgspec.Struct, kw_only=True):
    """Load of the block device of the data directory, by all processes (/proc/diskstats)."""

    name: Annotated[str, Meta(description="Name of the whole device, as in /proc/diskstats.")]
    partition: (
        Annotated[str, Meta(description="The partition of it, if the data directory is on one.")]
        | UnsetType
    ) = UNSET
    utilisation: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the time with at least one request in flight, 0 to 1. From 0.8 "
            "on the device is busy; a device that handles many requests at once may take more.",
        ),
    ]
    reads_per_second: PerSecond
    writes_per_second: PerSecond
    merged_reads_per_second: Annotated[
        float,
        Meta(ge=0, description="Requests per second that were merged into a neighbouring one."),
    ]
    merged_writes_per_second: PerSecond
    read_bytes_per_second: BytesPerSecond
    write_bytes_per_second: BytesPerSecond
    request_bytes: Annotated[float, Meta(ge=0, description="Mean size of a request, in bytes.")]
    in_flight: Annotated[Int32, Meta(description="Number of requests in flight now.")]
    queue_depth: Annotated[float, Meta(ge=0, description="Mean number of requests in flight.")]
    wait_ms: Annotated[
        float,
        Meta(
            ge=0,
            description="Mean time of a request in milliseconds, from when it was queued to its "
            "end.",
        ),
    ]
    read_wait_ms: MeanMs
    write_wait_ms: MeanMs
    service_ms: Annotated[
        float,
        Meta(
            ge=0,
            description="Busy time of the device for each request, in milliseconds. Close to "
            "`wait_ms`: there is hardly a queue.",
        ),
    ]


class DiskProcess(msgspec.Struct, kw_only=True):
    """Bytes that this service reads from devices, and that it writes (/proc/self/io)."""

    read_bytes_per_second: BytesPerSecond
    write_bytes_per_second: Annotated[
        float,
        Meta(
            ge=0,
            description="Bytes per second that this service writes to files. A device writes whole "
            "pages: more, if there are many small writes.",
        ),
    ]


class DiskReads(msgspec.Struct, kw_only=True):
    """Reads of messages from the log, and how many of them the page cache served."""

    reads_per_second: PerSecond
    cold_reads_per_second: Annotated[
        float,
        Meta(ge=0, description="Reads per second that waited for the disk."),
    ]
    hit_ratio: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1,
                description="Share of the reads that the page cache served; absent without reads.",
            ),
        ]
        | UnsetType
    ) = UNSET
    reads: Annotated[int, Meta(ge=0, description="Number of reads since the service started.")]
    cold_reads: Annotated[int, Meta(ge=0, description="Cold reads among them.")]


class DiskCache(msgspec.Struct, kw_only=True):
    """The page cache of the machine (/proc/vmstat)."""

    dirty_bytes: Annotated[
        int, Meta(ge=0, description="Bytes that were changed and not yet written, now.")
    ]
    writeback_bytes: Annotated[int, Meta(ge=0, description="Bytes on their way to a device, now.")]
    dirty_limit_bytes: Annotated[
        int, Meta(ge=0, description="Limit above which the kernel makes writers wait.")
    ]
    refault_bytes_per_second: (
        Annotated[
            float,
            Meta(
                ge=0,
                description="Bytes per second that were read again soon after the page cache had "
                "evicted them.",
            ),
        ]
        | UnsetType
    ) = UNSET


class DiskPressure(msgspec.Struct, kw_only=True):
    """Share of the time in which processes of the machine waited (/proc/pressure)."""

    io_some: Share | UnsetType = UNSET
    io_full: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1,
                description="Share of the time in which all processes with work waited for a "
                "device, 0 to 1.",
            ),
        ]
        | UnsetType
    ) = UNSET
    memory_some: Share | UnsetType = UNSET
    memory_full: Share | UnsetType = UNSET


class DiskLog(msgspec.Struct, kw_only=True):
    """Writes and syncs of the log."""

    write_bytes_per_second: BytesPerSecond
    syncs_per_second: PerSecond
    sync_ms: Annotated[
        float, Meta(ge=0, description="Mean time of a sync in milliseconds; 0 without any.")
    ]
    sync_running_ms: Annotated[
        int,
        Meta(ge=0, description="Time of the sync in flight, in milliseconds; 0 if there is none."),
    ]


class DiskDiagnosis(msgspec.Struct, kw_only=True):
    """A cause of trouble with the disk, in words."""

    code: Annotated[str, CODE]
    message: Annotated[str, Meta(description="The cause, and the figures that show it.")]
    action: Annotated[str, Meta(description="Advice for an operator.")]
    since: Timestamp


class DiskAbsence(msgspec.Struct, kw_only=True):
    """A field that is absent, and why."""

    field: str
    reason: str


class Disk(msgspec.Struct, kw_only=True):
    """Disk usage of the store and its thresholds, the load of its device, and a diagnosis.

    Rates and means are of the last `window_ms`.
    """

    used_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Used share of the disk, rounded up to whole percents.")
    ]
    clean_above: float
    force_above: float
    refuse_above: float
    writable: bool
    segments_dropped: Annotated[
        Int32, Meta(description="Segments deleted since the service started.")
    ]
    segments_dropped_unexpired: Annotated[
        Int32,
        Meta(
            description="Deleted segments whose messages had not expired, because `on_full` is "
            "`delete_oldest`."
        ),
    ]
    growth_bytes_per_second: (
        Annotated[
            float,
            Meta(
                description="Growth of the used space in the last hour, in bytes per second; "
                "below 0 if it shrinks."
            ),
        ]
        | UnsetType
    ) = UNSET
    full_in_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="Milliseconds until new messages are refused, at that growth; absent "
                "if the used space does not grow.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | UnsetType
    ) = UNSET
    projected_full_at: Annotated[Timestamp, Meta(description="The same as a time.")] | UnsetType = (
        UNSET
    )
    window_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="Time over which rates and means were measured, in milliseconds: 30 s, "
            "less after a start; 0 before the first measurement.",
        ),
    ]
    device: DiskDevice | UnsetType = UNSET
    process: DiskProcess | UnsetType = UNSET
    reads: DiskReads | UnsetType = UNSET
    cache: DiskCache | UnsetType = UNSET
    pressure: DiskPressure | UnsetType = UNSET
    log: DiskLog | UnsetType = UNSET
    diagnoses: Annotated[
        list[DiskDiagnosis], Meta(description="Findings of the last window; empty: all is well.")
    ]
    absent: Annotated[
        list[DiskAbsence],
        Meta(description="Fields above that this machine does not show, or not yet."),
    ]
