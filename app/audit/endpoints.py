"""The routes of audits."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.audit import handlers, proof_handlers
from app.audit.schemas import (
    AuditFindingPage,
    AuditReport,
    AuditReportInput,
    AuditReportPage,
    AuditReportSummary,
    DownloadQuery,
    ListAuditFindingsQuery,
    ListAuditReportsQuery,
    ListAuditSegmentsQuery,
    LogSegmentPage,
    TransactionProof,
)
from app.operations import IDEMPOTENCY_KEY, OperationRoute, answer, operation

router = APIRouter(route_class=OperationRoute)

ReportId = Annotated[str, Path(description="The report's id.")]
TransactionId = Annotated[str, Path(description="The transaction's id.")]
_OF_A_REPORT = ("report_not_found", "report_expired")


@router.post(
    "/v1/audit/reports",
    **operation(
        "createAuditReport",
        tag="audit",
        body=AuditReportInput,
        example={
            "kind": "transaction_outcomes",
            "from": "2026-03-01T00:00:00.000Z",
            "to": "2026-03-02T00:00:00.000Z",
            "producer_group": "shop",
            "checks": ["queues", "delays"],
        },
        answers={202: AuditReportSummary},
        answer_headers=["Location", "Idempotency-Replayed"],
        headers=[IDEMPOTENCY_KEY],
        problems=["reserved_topic", "idempotency_key_reused", "not_supported_by_engine", "overloaded", "storage_full"],
    ),
)
async def create_audit_report(request: Request) -> Response:
    """Ask for a report: what became of every transaction, and what else the log can tell (`checks`).

    It is made by a process beside the service, one at a time.

    501 where Spark is not installed. A service that ends begins it anew at its next start.
    """
    return await answer(request, handlers.create)


@router.get(
    "/v1/audit/reports",
    **operation(
        "listAuditReports",
        tag="audit",
        query=ListAuditReportsQuery,
        answers={200: AuditReportPage},
        problems=["invalid_page_token"],
    ),
)
async def list_audit_reports(request: Request) -> Response:
    """List reports, without what they say."""
    return await answer(request, handlers.list_)


@router.get(
    "/v1/audit/reports/{report_id}",
    **operation("getAuditReport", tag="audit", answers={200: AuditReport}, problems=_OF_A_REPORT),
)
async def get_audit_report(report_id: ReportId, request: Request) -> Response:
    """Look at a report. Done, it holds all that `escrowmq audit run --json` writes."""
    return await answer(request, handlers.get, report_id)


@router.delete(
    "/v1/audit/reports/{report_id}",
    **operation("deleteAuditReport", tag="audit", answers={204: None}, problems=[*_OF_A_REPORT, "storage_full"]),
)
async def delete_audit_report(report_id: ReportId, request: Request) -> Response:
    """Drop a report; one that is being made is ended."""
    return await answer(request, handlers.drop, report_id)


@router.get(
    "/v1/audit/reports/{report_id}/findings",
    **operation(
        "listAuditFindings",
        tag="audit",
        query=ListAuditFindingsQuery,
        answers={200: AuditFindingPage},
        problems=[*_OF_A_REPORT, "invalid_page_token"],
    ),
)
async def list_audit_findings(report_id: ReportId, request: Request) -> Response:
    """List what a report has found, with the records that prove it."""
    return await answer(request, handlers.list_findings, report_id)


@router.get(
    "/v1/audit/reports/{report_id}/download",
    **operation("downloadAuditReport", tag="audit", query=DownloadQuery, answers={200: bytes}, problems=_OF_A_REPORT),
)
async def download_audit_report(report_id: ReportId, request: Request) -> Response:
    """Download a report as a file."""
    return await answer(request, handlers.download, report_id)


@router.get(
    "/v1/audit/transactions/{transaction_id}",
    **operation(
        "getTransactionProof",
        tag="audit",
        answers={200: TransactionProof},
        problems=["transaction_not_found", "record_corrupt", "overloaded", "not_supported_by_engine"],
    ),
)
async def get_transaction_proof(transaction_id: TransactionId, request: Request) -> Response:
    """Prove what became of one transaction: the verdict, and every record in the log that bears on it. It needs no Spark."""
    return await answer(request, proof_handlers.get_proof, transaction_id)


@router.get(
    "/v1/audit/segments",
    **operation(
        "listAuditSegments",
        tag="audit",
        query=ListAuditSegmentsQuery,
        answers={200: LogSegmentPage},
        problems=["invalid_page_token", "not_supported_by_engine"],
    ),
)
async def list_audit_segments(request: Request) -> Response:
    """List the files of the log."""
    return await answer(request, proof_handlers.list_segments)
