"""Audit reports, their findings, and proofs of single transactions."""

from datetime import datetime
from typing import Any

from escrowmq_client.models.base import Output


class AuditProgress(Output, frozen=True, kw_only=True):
    """Progress of the current steps."""

    tasks_done: int
    tasks_known: int


class AuditReportSummary(Output, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A report without its content."""

    report_id: str
    kind: str
    state: str
    """queued, running, done or failed."""
    from_: datetime | None = None
    to: datetime | None = None
    producer_group: str | None = None
    checks_asked: list[str]
    """Further checks of the log."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_status: int | None = None
    """0: clean, 1: findings, 4: does not balance; other values if the report failed."""
    reason: str | None = None
    """Reason for the failure."""
    progress: AuditProgress | None = None


class AuditReportPage(Output, frozen=True, kw_only=True):
    """Reports, in the order of their creation."""

    items: list[AuditReportSummary]
    next_page_token: str | None = None


class AuditRecord(Output, frozen=True, kw_only=True):
    """A log record that a finding rests on."""

    kind: str
    """half, op, final, check, held, delayed, delayed_again, message, ..."""
    log_offset: int
    bytes: int | None = None
    crc: str
    """CRC-32 of its body, as eight hexadecimal digits."""
    at: str
    """Store time: RFC 3339, or milliseconds if a broker stored a number that is not a valid date.
    """
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None
    prepared_offset: int | None = None
    """Log offset of the half message that it refers to."""
    decision: str | None = None
    """For an op: commit or rollback."""
    half_offsets: list[int] | None = None
    """For an op: queue offsets of the half messages that it decides."""
    event: str | None = None
    """For a check: the event."""


class AuditFinding(Output, frozen=True, kw_only=True):
    """A finding: a transaction, a damaged range of the log, or the result of a check."""

    verdict: str
    """The verdict on a transaction, `damaged`, or the kind of finding of a check."""
    transaction_id: str | None = None
    producer_group: str | None = None
    altered: bool | None = None
    wrong_half: bool | None = None
    undecided_but_published: bool | None = None
    records: list[AuditRecord] | None = None
    records_omitted: int | None = None
    segment: str | None = None
    """For damage: the file name."""
    log_offset: int | None = None
    bytes: int | None = None
    reason: str | None = None
    check: str | None = None
    """The check that reported it."""
    evidence: dict[str, Any] | None = None
    """For a check: groups, queue offsets, log offsets and times."""


class AuditFindingPage(Output, frozen=True, kw_only=True):
    """Findings of a report, in log order."""

    items: list[AuditFinding]
    next_page_token: str | None = None


class AuditFindings(Output, frozen=True, kw_only=True):
    """Counts of all findings, and the first 1,000 findings."""

    total: int
    by_verdict: dict[str, int]
    items: list[AuditFinding]
    omitted: int


class HeldTransactions(Output, frozen=True, kw_only=True):
    """Transactions that wait for an operator: the first 1,000."""

    items: list[AuditFinding]
    omitted: int


class UndecidedOfGroup(Output, frozen=True, kw_only=True):
    """Number of undecided transactions of a group, and how many of them are older than each age."""

    producer_group: str
    n: int
    older_than_ms: dict[str, int]


class OutcomesAt(Output, frozen=True, kw_only=True):
    """Outcomes of the transactions that were begun in one interval."""

    at_ms: int
    verdicts: dict[str, int]


class AuditOverTime(Output, frozen=True, kw_only=True):
    """Time series for plots."""

    interval_ms: int
    outcomes: list[OutcomesAt]
    decision_ms: list[list[int]]
    """Histogram as pairs: upper bound in milliseconds, number of transactions."""
    undecided: list[UndecidedOfGroup]
    log_interval_ms: int
    growth: list[list[int]]
    """Triples: Unix time in milliseconds, records stored, bytes stored."""


class AuditRun(Output, frozen=True, kw_only=True):
    """Facts that differ between runs over the same bytes."""

    report_id: str
    started_at: datetime
    finished_at: datetime
    seconds: float
    exit_status: int
    """0 clean, 1 findings, 4 does not balance."""
    log: str
    master: str | None = None
    python: str | None = None


class AuditedGroup(Output, frozen=True, kw_only=True):
    """Transactions of one producer group."""

    producer_group: str | None = None
    verdicts: dict[str, int]


class AuditedLog(Output, frozen=True, kw_only=True):
    """The range of the log that was read, and its content."""

    begin: int
    end: int
    records: int
    accounted_bytes: int
    damaged_stretches: int
    damaged_bytes: int
    torn_bytes: int


class AuditedSegments(Output, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The files that were read. Equal bytes give an equal digest."""

    from_: str | None = None
    to: str | None = None
    digest: str


class AuditReport(AuditReportSummary, frozen=True, kw_only=True, rename={"from_": "from"}):
    """An audit report. When its state is done, it has everything that `escrowmq audit run --json`
    writes.
    """

    begun: int | None = None
    """Number of transactions begun."""
    verdicts: dict[str, int] | None = None
    balanced: bool | None = None
    """True if every transaction has exactly one verdict and every byte of the log is accounted for.
    """
    flags: dict[str, int] | None = None
    findings: AuditFindings | None = None
    held: HeldTransactions | None = None
    producer_groups: list[AuditedGroup] | None = None
    producer_groups_omitted: int | None = None
    log: AuditedLog | None = None
    segments: AuditedSegments | None = None
    engine: str | None = None
    checks: dict[str, Any] | None = None
    """Counts of each check, by its name."""
    over_time: AuditOverTime | None = None
    run: AuditRun | None = None


class TransactionProof(Output, frozen=True, kw_only=True):
    """The verdict on one transaction, and every record in the log that bears on it."""

    transaction_id: str
    verdict: str
    meaning: str
    is_finding: bool
    """True if this verdict counts as a finding."""
    producer_group: str | None = None
    flags: list[str]
    """altered, wrong_half, undecided_but_published."""
    records: list[AuditRecord]


class LogSegment(Output, frozen=True, kw_only=True):
    """A segment: one file of the log."""

    segment: str
    """Its file name."""
    begin: int
    end: int
    sealed: bool
    """True if the whole file is written and synced; it does not change any more."""
    first_stored_at: datetime | None = None


class LogSegmentPage(Output, frozen=True, kw_only=True):
    """Segments, in log order."""

    items: list[LogSegment]
    next_page_token: str | None = None
