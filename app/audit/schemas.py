"""What goes in and out: reports of audits, findings, the proof of one transaction, segments."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Offset, Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.registry.topics import NAME_PATTERN

Count = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
State = Annotated[str, Meta(description="queued, running, done or failed.")]


CheckName = Literal[
    "integrity", "queues", "index", "positions", "halves", "delays", "retries", "duplicates", "checkbacks", "latencies",
    "what_if",
]  # fmt: skip


class AuditReportInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a report is to be about: all transactions, unless these choose some by when and where they began.

    The checks are asked of the whole log in any case.
    """

    kind: Literal["transaction_outcomes"] = "transaction_outcomes"
    from_: Timestamp | UnsetType = msgspec.field(name="from", default=UNSET)
    to: Timestamp | UnsetType = UNSET
    producer_group: (
        Annotated[str, Meta(min_length=1, max_length=127, pattern=NAME_PATTERN, description="Transactions of this group only.")]
        | UnsetType
    ) = UNSET
    checks: (
        Annotated[list[CheckName], Meta(max_length=20, description="What else is asked of the log: all, unless it is said.")]
        | UnsetType
    ) = UNSET


class AuditProgress(msgspec.Struct, kw_only=True):
    """How far the steps that run now have come."""

    tasks_done: Count
    tasks_known: Count


class AuditRecord(msgspec.Struct, kw_only=True):
    """A record of the log that proves something."""

    kind: Annotated[str, Meta(description="half, op, final, check, held, delayed, delayed_again, message, ...")]
    log_offset: Offset
    bytes: Count | UnsetType = UNSET
    crc: Annotated[str, Meta(description="CRC-32 of its body, as eight hexadecimal digits.")]
    at: Annotated[str, Meta(description="When it was stored: RFC 3339, or milliseconds where what a broker stored is no date.")]
    topic: str | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET
    queue_offset: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    prepared_offset: Annotated[int, Meta(description="Where the half lies that it names.")] | UnsetType = UNSET
    decision: Annotated[str, Meta(description="commit or rollback, on an op.")] | UnsetType = UNSET
    half_offsets: Annotated[list[int], Meta(description="The queue offsets of the halves that an op decides.")] | UnsetType = (
        UNSET
    )
    event: Annotated[str, Meta(description="What happened, on a check.")] | UnsetType = UNSET


class AuditFinding(msgspec.Struct, kw_only=True):
    """A transaction, a stretch of the log, or what a check has found."""

    verdict: Annotated[str, Meta(description="Of a transaction; `damaged`; or the kind of what a check has found.")]
    transaction_id: str | UnsetType = UNSET
    producer_group: str | UnsetType = UNSET
    altered: bool | UnsetType = UNSET
    wrong_half: bool | UnsetType = UNSET
    undecided_but_published: bool | UnsetType = UNSET
    records: list[AuditRecord] | UnsetType = UNSET
    records_omitted: Count | UnsetType = UNSET
    segment: Annotated[str, Meta(description="Of damage: the file.")] | UnsetType = UNSET
    log_offset: Offset | UnsetType = UNSET
    bytes: Count | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    check: Annotated[str, Meta(description="The check that has found it.")] | UnsetType = UNSET
    evidence: (
        Annotated[dict[str, Any], Meta(description="Of a check: groups, places in queues, log offsets, times.")] | UnsetType
    ) = UNSET


class AuditFindings(msgspec.Struct, kw_only=True):
    """What was found, the first 1,000 of it one by one."""

    total: Count
    by_verdict: dict[str, int]
    items: list[AuditFinding]
    omitted: Count


class AuditedGroup(msgspec.Struct, kw_only=True):
    """The transactions of one producer group."""

    producer_group: str | UnsetType = UNSET
    verdicts: dict[str, int]


class AuditedLog(msgspec.Struct, kw_only=True):
    """Which bytes were read, and what they are."""

    begin: Offset
    end: Offset
    records: Count
    accounted_bytes: Count
    damaged_stretches: Count
    damaged_bytes: Count
    torn_bytes: Count


class AuditedSegments(msgspec.Struct, kw_only=True):
    """Which files were read; whoever has the same bytes gets the same digest."""

    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)
    to: str | UnsetType = UNSET
    digest: str


class AuditRun(msgspec.Struct, kw_only=True):
    """What differs from run to run over the same bytes."""

    report_id: str
    started_at: Timestamp
    finished_at: Timestamp
    seconds: float
    exit_status: Annotated[int, Meta(description="0 clean, 1 findings, 4 does not balance.")]
    log: str
    master: str | UnsetType = UNSET
    python: str | UnsetType = UNSET


class OutcomesAt(msgspec.Struct, kw_only=True):
    """What became of the transactions that were begun in one interval."""

    at_ms: int
    verdicts: dict[str, int]


class UndecidedOfGroup(msgspec.Struct, kw_only=True):
    """How many transactions of a group nobody has decided, and how many of them are older than each of these."""

    producer_group: str
    n: Count
    older_than_ms: dict[str, int]


class AuditOverTime(msgspec.Struct, kw_only=True):
    """What the plots of the page show."""

    interval_ms: int
    outcomes: list[OutcomesAt]
    decision_ms: Annotated[list[list[int]], Meta(description="Pairs: up to so many milliseconds, transactions.")]
    undecided: list[UndecidedOfGroup]
    log_interval_ms: int
    growth: Annotated[list[list[int]], Meta(description="Triples: stored at, in wall milliseconds; records; bytes.")]


class AuditReportSummary(msgspec.Struct, kw_only=True):
    """A report without what it says."""

    report_id: str
    kind: str
    state: State
    from_: Timestamp | UnsetType = msgspec.field(name="from", default=UNSET)
    to: Timestamp | UnsetType = UNSET
    producer_group: str | UnsetType = UNSET
    checks_asked: Annotated[list[str], Meta(description="What else is asked of the log.")]
    created_at: Timestamp
    started_at: Timestamp | UnsetType = UNSET
    finished_at: Timestamp | UnsetType = UNSET
    exit_status: (
        Annotated[int, Meta(description="0 clean, 1 findings, 4 does not balance; others where it failed.")] | UnsetType
    ) = UNSET
    reason: Annotated[str, Meta(description="Why it failed.")] | UnsetType = UNSET
    progress: AuditProgress | UnsetType = UNSET


class AuditReport(AuditReportSummary, kw_only=True):
    """A report. Done, it holds all that `escrowmq audit run --json` writes."""

    begun: Annotated[int, Meta(ge=0, description="Transactions.")] | UnsetType = UNSET
    verdicts: dict[str, int] | UnsetType = UNSET
    balanced: Annotated[bool, Meta(description="Each transaction has one verdict, each byte is accounted for.")] | UnsetType = (
        UNSET
    )
    flags: dict[str, int] | UnsetType = UNSET
    findings: AuditFindings | UnsetType = UNSET
    producer_groups: list[AuditedGroup] | UnsetType = UNSET
    producer_groups_omitted: Count | UnsetType = UNSET
    log: AuditedLog | UnsetType = UNSET
    segments: AuditedSegments | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    checks: Annotated[dict[str, Any], Meta(description="What the checks have counted, by their names.")] | UnsetType = UNSET
    over_time: AuditOverTime | UnsetType = UNSET
    run: AuditRun | UnsetType = UNSET


class AuditReportPage(msgspec.Struct, kw_only=True):
    """Reports, in the order in which they were asked for."""

    items: list[AuditReportSummary]
    next_page_token: str | UnsetType = UNSET


class ListAuditReportsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which reports."""

    state: Annotated[str, Meta(min_length=1, max_length=100, description="States with commas between.")] | UnsetType = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class AuditFindingPage(msgspec.Struct, kw_only=True):
    """Findings of a report, in log order."""

    items: list[AuditFinding]
    next_page_token: str | UnsetType = UNSET


class ListAuditFindingsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which findings."""

    verdict: (
        Annotated[
            str,
            Meta(min_length=1, max_length=100, description="A verdict, `damaged`, a flag as `altered`, or a kind of a check."),
        ]
        | UnsetType
    ) = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class DownloadQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """In which form."""

    format: Annotated[
        Literal["json", "csv", "html", "parquet"],
        Meta(description="The report, its findings as a table, the report with plots, one row for each transaction."),
    ] = "json"


class TransactionProof(msgspec.Struct, kw_only=True):
    """The verdict on one transaction, and every record in the log that bears on it."""

    transaction_id: str
    verdict: str
    meaning: str
    is_finding: Annotated[bool, Meta(description="Would an audit end with findings because of it?")]
    producer_group: str | UnsetType = UNSET
    flags: Annotated[list[str], Meta(description="altered, wrong_half, undecided_but_published.")]
    records: list[AuditRecord]


class LogSegment(msgspec.Struct, kw_only=True):
    """A file of the log."""

    segment: Annotated[str, Meta(description="Its name.")]
    begin: Offset
    end: Offset
    sealed: Annotated[bool, Meta(description="All of it is written and on disk; it never changes again.")]
    first_stored_at: Timestamp | UnsetType = UNSET


class LogSegmentPage(msgspec.Struct, kw_only=True):
    """Segments, in log order."""

    items: list[LogSegment]
    next_page_token: str | UnsetType = UNSET


class ListAuditSegmentsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which segments."""

    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET
