"""Requests and responses of audits: reports, findings, the proof of one transaction, segments."""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import Offset, Timestamp
from app.named_schemas import Counts, Int32, open_set
from app.registry.topics import NAME_PATTERN
from app.word_sets import REPORT_KIND, REPORT_STATE, ReportFormat, ReportKind
from audit.checks.kinds import KINDS
from audit.verdicts import DAMAGED, FLAGS, HELD, VERDICTS

Count = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]


CheckName = Literal[
    "integrity", "queues", "index", "positions", "halves", "delays", "retries", "duplicates",
    "checkbacks", "latencies",
    "what_if",
]  # fmt: skip
AUDIT_CHECK = open_set("AuditCheck", get_args(CheckName), "Check of the log.")
AUDIT_VERDICT = open_set(
    "AuditVerdict",
    (*VERDICTS, DAMAGED),
    "Verdict on a transaction; of a finding also `damaged`, or the kind of finding of a check.",
)
KINDS_OF_FINDINGS = (*VERDICTS, DAMAGED, *FLAGS, *KINDS)
HELD_VERDICT = HELD
AUDIT_FLAG = open_set("AuditFlag", FLAGS, "Defect that a transaction may have with any verdict.")
AUDIT_RECORD_KIND = open_set(
    "AuditRecordKind",
    ("half", "op", "final", "check", "held", "delayed", "delayed_again", "message"),
    "Role of a record in the log.",
)


class AuditReportInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Scope of a report: all transactions, or those that match these fields.

    The checks cover the whole log in any case.
    """

    kind: ReportKind = "transaction_outcomes"
    from_: Timestamp | UnsetType = msgspec.field(name="from", default=UNSET)
    to: Timestamp | UnsetType = UNSET
    producer_group: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=127,
                pattern=NAME_PATTERN,
                description="Only transactions of this producer group.",
            ),
        ]
        | UnsetType
    ) = UNSET
    checks: (
        Annotated[
            list[Annotated[CheckName, AUDIT_CHECK]],
            Meta(max_length=20, description="Further checks of the log. Default: all."),
        ]
        | UnsetType
    ) = UNSET


class AuditProgress(msgspec.Struct, kw_only=True):
    """Progress of the current steps."""

    tasks_done: Count
    tasks_known: Count


class AuditRecord(msgspec.Struct, kw_only=True):
    """A log record that a finding rests on."""

    kind: Annotated[str, AUDIT_RECORD_KIND]
    log_offset: Offset
    bytes: Count | UnsetType = UNSET
    crc: Annotated[str, Meta(description="CRC-32 of its body, as eight hexadecimal digits.")]
    at: Annotated[
        str,
        Meta(
            description="Store time: RFC 3339, or milliseconds if a broker stored a number that "
            "is not a valid date."
        ),
    ]
    topic: str | UnsetType = UNSET
    queue_id: Int32 | UnsetType = UNSET
    queue_offset: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    prepared_offset: (
        Annotated[int, Meta(description="Log offset of the half message that it refers to.")]
        | UnsetType
    ) = UNSET
    decision: Annotated[str, Meta(description="For an op: commit or rollback.")] | UnsetType = UNSET
    half_offsets: (
        Annotated[
            list[int],
            Meta(description="For an op: queue offsets of the half messages that it decides."),
        ]
        | UnsetType
    ) = UNSET
    event: Annotated[str, Meta(description="For a check: the event.")] | UnsetType = UNSET


class AuditFinding(msgspec.Struct, kw_only=True):
    """A finding: a transaction, a damaged range of the log, or the result of a check."""

    verdict: Annotated[str, AUDIT_VERDICT]
    transaction_id: str | UnsetType = UNSET
    producer_group: str | UnsetType = UNSET
    altered: bool | UnsetType = UNSET
    wrong_half: bool | UnsetType = UNSET
    undecided_but_published: bool | UnsetType = UNSET
    records: list[AuditRecord] | UnsetType = UNSET
    records_omitted: Count | UnsetType = UNSET
    segment: Annotated[str, Meta(description="For damage: the file name.")] | UnsetType = UNSET
    log_offset: Offset | UnsetType = UNSET
    bytes: Count | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    check: (
        Annotated[str, AUDIT_CHECK, Meta(description="The check that reported it.")] | UnsetType
    ) = UNSET
    evidence: (
        Annotated[
            dict[str, Any],
            Meta(description="For a check: groups, queue offsets, log offsets and times."),
        ]
        | UnsetType
    ) = UNSET


class AuditFindings(msgspec.Struct, kw_only=True):
    """Counts of all findings, and the first 1,000 findings."""

    total: Count
    by_verdict: Counts
    items: list[AuditFinding]
    omitted: Count


class HeldTransactions(msgspec.Struct, kw_only=True):
    """Transactions that wait for an operator: the first 1,000."""

    items: list[AuditFinding]
    omitted: Count


class AuditedGroup(msgspec.Struct, kw_only=True):
    """Transactions of one producer group."""

    producer_group: str | UnsetType = UNSET
    verdicts: Counts


class AuditedLog(msgspec.Struct, kw_only=True):
    """The range of the log that was read, and its content."""

    begin: Offset
    end: Offset
    records: Count
    accounted_bytes: Count
    damaged_stretches: Count
    damaged_bytes: Count
    torn_bytes: Count


class AuditedSegments(msgspec.Struct, kw_only=True):
    """The files that were read. Equal bytes give an equal digest."""

    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)
    to: str | UnsetType = UNSET
    digest: str


class AuditRun(msgspec.Struct, kw_only=True):
    """Facts that differ between runs over the same bytes."""

    report_id: str
    started_at: Timestamp
    finished_at: Timestamp
    seconds: float
    exit_status: Annotated[Int32, Meta(description="0 clean, 1 findings, 4 does not balance.")]
    log: str
    master: str | UnsetType = UNSET
    python: str | UnsetType = UNSET


class OutcomesAt(msgspec.Struct, kw_only=True):
    """Outcomes of the transactions that were begun in one interval."""

    at_ms: int
    verdicts: Counts


class UndecidedOfGroup(msgspec.Struct, kw_only=True):
    """Number of undecided transactions of a group, and how many of them are older than each age."""

    producer_group: str
    n: Count
    older_than_ms: Counts


class AuditOverTime(msgspec.Struct, kw_only=True):
    """Time series for plots."""

    interval_ms: int
    outcomes: list[OutcomesAt]
    decision_ms: Annotated[
        list[list[int]],
        Meta(
            description="Histogram as pairs: upper bound in milliseconds, number of transactions."
        ),
    ]
    undecided: list[UndecidedOfGroup]
    log_interval_ms: int
    growth: Annotated[
        list[list[int]],
        Meta(description="Triples: Unix time in milliseconds, records stored, bytes stored."),
    ]


class AuditReportSummary(msgspec.Struct, kw_only=True):
    """A report without its content."""

    report_id: str
    kind: Annotated[str, REPORT_KIND]
    state: Annotated[str, REPORT_STATE]
    from_: Timestamp | UnsetType = msgspec.field(name="from", default=UNSET)
    to: Timestamp | UnsetType = UNSET
    producer_group: str | UnsetType = UNSET
    checks_asked: list[Annotated[str, AUDIT_CHECK]]
    created_at: Timestamp
    started_at: Timestamp | UnsetType = UNSET
    finished_at: Timestamp | UnsetType = UNSET
    exit_status: (
        Annotated[
            Int32,
            Meta(
                description="0: clean, 1: findings, 4: does not balance; other values if the "
                "report failed."
            ),
        ]
        | UnsetType
    ) = UNSET
    reason: Annotated[str, Meta(description="Reason for the failure.")] | UnsetType = UNSET
    progress: AuditProgress | UnsetType = UNSET


class AuditReport(AuditReportSummary, kw_only=True):
    """An audit report. When its state is done, it has everything that `escrowmq audit run --json`
    writes.
    """

    begun: Annotated[int, Meta(ge=0, description="Number of transactions begun.")] | UnsetType = (
        UNSET
    )
    verdicts: Counts | UnsetType = UNSET
    balanced: (
        Annotated[
            bool,
            Meta(
                description="True if every transaction has exactly one verdict and every byte of "
                "the log is accounted for."
            ),
        ]
        | UnsetType
    ) = UNSET
    flags: Counts | UnsetType = UNSET
    findings: AuditFindings | UnsetType = UNSET
    held: HeldTransactions | UnsetType = UNSET
    producer_groups: list[AuditedGroup] | UnsetType = UNSET
    producer_groups_omitted: Count | UnsetType = UNSET
    log: AuditedLog | UnsetType = UNSET
    segments: AuditedSegments | UnsetType = UNSET
    engine: (
        Annotated[
            str,
            Meta(
                description="`local`, or `spark` and its version. Reports of `local` have no "
                "`html` and `parquet`."
            ),
        ]
        | UnsetType
    ) = UNSET
    checks: (
        Annotated[dict[str, Any], Meta(description="Counts of each check, by its name.")]
        | UnsetType
    ) = UNSET
    over_time: AuditOverTime | UnsetType = UNSET
    run: AuditRun | UnsetType = UNSET


class AuditReportPage(msgspec.Struct, kw_only=True):
    """Reports, in the order of their creation."""

    items: list[AuditReportSummary]
    next_page_token: str | UnsetType = UNSET


class ListAuditReportsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the list of reports."""

    state: (
        Annotated[str, Meta(min_length=1, max_length=100, description="Comma-separated states.")]
        | UnsetType
    ) = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class AuditFindingPage(msgspec.Struct, kw_only=True):
    """Findings of a report, in log order."""

    items: list[AuditFinding]
    next_page_token: str | UnsetType = UNSET


class ListAuditFindingsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the list of findings."""

    verdict: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=100,
                description="A verdict, `damaged`, a flag such as `altered`, or the kind of a "
                "check.",
            ),
        ]
        | UnsetType
    ) = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET


class DownloadQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of a report download."""

    format: Annotated[ReportFormat, Meta(description="What to download.")] = "json"


class TransactionProof(msgspec.Struct, kw_only=True):
    """The verdict on one transaction, and every record in the log that bears on it."""

    transaction_id: str
    verdict: Annotated[str, AUDIT_VERDICT]
    meaning: str
    is_finding: Annotated[bool, Meta(description="True if this verdict counts as a finding.")]
    producer_group: str | UnsetType = UNSET
    flags: list[Annotated[str, AUDIT_FLAG]]
    records: list[AuditRecord]


class LogSegment(msgspec.Struct, kw_only=True):
    """A segment: one file of the log."""

    segment: Annotated[str, Meta(description="Its file name.")]
    begin: Offset
    end: Offset
    sealed: Annotated[
        bool,
        Meta(
            description="True if the whole file is written and synced; it does not change any more."
        ),
    ]
    first_stored_at: Timestamp | UnsetType = UNSET


class LogSegmentPage(msgspec.Struct, kw_only=True):
    """Segments, in log order."""

    items: list[LogSegment]
    next_page_token: str | UnsetType = UNSET


class ListAuditSegmentsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the list of segments."""

    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET
