"""Operations of the audit: reports over the whole log, and proofs of single transactions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from escrowmq_client.call import (
    Call,
    body_of,
    decoded,
    fields,
    json_headers,
    keyed,
    nothing,
    query,
)
from escrowmq_client.models.audit import (
    AuditFindingPage,
    AuditReport,
    AuditReportPage,
    AuditReportSummary,
    LogSegmentPage,
    TransactionProof,
)


def create_audit_report(
    *,
    kind: Literal["transaction_outcomes"] | None = None,
    from_: datetime | None = None,
    to: datetime | None = None,
    producer_group: str | None = None,
    checks: Sequence[str] | None = None,
    idempotency_key: str | None = None,
) -> Call[AuditReportSummary]:
    """Create an audit report: the outcome of every transaction, and further `checks` of the log.

    It is made in the background; get it with `get_audit_report`.
    """
    return Call(
        "createAuditReport",
        "POST",
        "/v1/audit/reports",
        decoded(AuditReportSummary),
        headers=json_headers(keyed(idempotency_key)),
        body=fields(kind=kind, from_=from_, to=to, producer_group=producer_group, checks=checks),
    )


def list_audit_reports(
    *,
    state: str | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[AuditReportPage]:
    """List audit reports without their content."""
    return Call(
        "listAuditReports",
        "GET",
        "/v1/audit/reports",
        decoded(AuditReportPage),
        query=query(state=state, page_size=page_size, page_token=page_token),
    )


def get_audit_report(report_id: str) -> Call[AuditReport]:
    """Get an audit report. Raises NotFound (report_not_found); ProblemError (report_expired)."""
    return Call(
        "getAuditReport",
        "GET",
        "/v1/audit/reports/{report_id}",
        decoded(AuditReport),
        parts={"report_id": report_id},
    )


def delete_audit_report(report_id: str) -> Call[None]:
    """Delete an audit report; if it is in progress, end it.

    Raises NotFound (report_not_found); ProblemError (report_expired).
    """
    return Call(
        "deleteAuditReport",
        "DELETE",
        "/v1/audit/reports/{report_id}",
        nothing,
        parts={"report_id": report_id},
    )


def list_audit_findings(
    report_id: str,
    *,
    verdict: str | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[AuditFindingPage]:
    """List the findings of a report, with the records that prove them.

    Raises NotFound (report_not_found); ProblemError (report_expired).
    """
    return Call(
        "listAuditFindings",
        "GET",
        "/v1/audit/reports/{report_id}/findings",
        decoded(AuditFindingPage),
        parts={"report_id": report_id},
        query=query(verdict=verdict, page_size=page_size, page_token=page_token),
    )


def download_audit_report(
    report_id: str,
    *,
    format: Literal["json", "html", "csv", "parquet"] | None = None,  # noqa: A002  the word for it
) -> Call[bytes]:
    """Download an audit report as a file.

    Raises NotFound (report_not_found); ProblemError (report_expired).
    """
    return Call(
        "downloadAuditReport",
        "GET",
        "/v1/audit/reports/{report_id}/download",
        body_of,
        parts={"report_id": report_id},
        query=query(format=format),
    )


def get_transaction_proof(transaction_id: str) -> Call[TransactionProof]:
    """Prove the outcome of a transaction by every record in the log that it rests on.

    Raises NotFound (transaction_not_found); ProblemError (not_supported_by_engine).
    """
    return Call(
        "getTransactionProof",
        "GET",
        "/v1/audit/transactions/{transaction_id}",
        decoded(TransactionProof),
        parts={"transaction_id": transaction_id},
    )


def list_audit_segments(
    *, page_size: int | None = None, page_token: str | None = None
) -> Call[LogSegmentPage]:
    """List the segments of the log. Raises ProblemError (not_supported_by_engine)."""
    return Call(
        "listAuditSegments",
        "GET",
        "/v1/audit/segments",
        decoded(LogSegmentPage),
        query=query(page_size=page_size, page_token=page_token),
    )
