"""Reports of audits over HTTP: create, get, list the findings, download, delete."""

import asyncio
import csv
import io
from typing import Any, BinaryIO, get_args

import msgspec
from msgspec import UNSET, UnsetType

from app.audit import schemas
from app.audit.schemas import (
    HELD_VERDICT,
    KINDS_OF_FINDINGS,
    AuditFindingPage,
    AuditProgress,
    AuditReportInput,
    AuditReportPage,
    AuditReportSummary,
    CheckName,
    DownloadQuery,
    ListAuditFindingsQuery,
    ListAuditReportsQuery,
)
from app.encoding import codec, pages
from app.http.exchange import NO_CONTENT, Call, FileReply, Reply, reply
from app.operations import IDEMPOTENCY_KEY, operation
from app.problems import invalid_field
from app.registry.audit_reports import DONE, FAILED, QUEUED, RUNNING, AuditReport
from app.reports.service import HTML, ID_PREFIX, PARQUET, REPORT
from app.services import Services

_OF_A_REPORT = ("report_not_found", "report_expired")

CHECKS: tuple[str, ...] = get_args(CheckName)
_STATES = (QUEUED, RUNNING, DONE, FAILED)
_OCTETS = "application/octet-stream"
_CSV = (
    "verdict transaction_id producer_group flags log_offset bytes reason records check evidence"
).split()


@operation(
    "POST",
    "/v1/audit/reports",
    "createAuditReport",
    tag="audit",
    scopes=["audit"],
    body=AuditReportInput,
    body_is_optional=True,
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
    problems=[
        "reserved_topic",
        "idempotency_key_reused",
        "storage_full",
    ],
)
async def create(services: Services, call: Call, given: AuditReportInput) -> Reply:
    """Create an audit report: the outcome of every transaction, and further `checks` of the log.

    It is made by a process beside the service, one report at a time: by Spark, or without it, if
    Spark is not installed (see `engine`).
    If the service stops meanwhile, the report is made after the next start.
    """
    key, fingerprint = call.idempotency_key, await call.fingerprint()
    begun_from_ms, begun_to_ms = _time(given.from_, "/from"), _time(given.to, "/to")
    if begun_from_ms is not None and begun_to_ms is not None and begun_from_ms > begun_to_ms:
        raise invalid_field("/to", "out_of_range", "`to` must not be before `from`")
    if given.producer_group is not UNSET:
        services.producer_groups.check_name(given.producer_group)
    report, is_repeated = services.reports.made_before(key, fingerprint), True
    if report is None:
        is_repeated = False
        report = AuditReport(
            report_id=services.identifiers.new(ID_PREFIX),
            kind=given.kind,
            begun_from_ms=begun_from_ms,
            begun_to_ms=begun_to_ms,
            producer_group=None if given.producer_group is UNSET else given.producer_group,
            checks=",".join(CHECKS if given.checks is UNSET else dict.fromkeys(given.checks)),
            created_at_ms=services.clock.wall_ms(),
            idempotency_key=key,
            fingerprint=None if key is None else fingerprint,
        )
        await services.reports.create(report)
    headers = {"Location": f"/v1/audit/reports/{report.report_id}"} | (
        {"Idempotency-Replayed": "true"} if is_repeated else {}
    )
    return reply(202, _view(services, report), headers)


@operation(
    "GET",
    "/v1/audit/reports",
    "listAuditReports",
    tag="audit",
    scopes=["audit"],
    query=ListAuditReportsQuery,
    answers={200: AuditReportPage},
    problems=["invalid_page_token"],
)
async def list_(services: Services, _: Call, query: ListAuditReportsQuery) -> Reply:
    """List audit reports without their content."""
    states = _states(query.state or ",".join(_STATES))
    after = "" if query.page_token is UNSET else pages.decode_token("reports", query.page_token)
    wanted = [
        report for report in services.reports if report.report_id > after and report.state in states
    ]
    # by which a page goes on, also where a clock was set back
    found = sorted(wanted, key=lambda report: report.report_id)
    page = AuditReportPage(items=[_view(services, report) for report in found[: query.page_size]])
    if len(found) > query.page_size:
        page.next_page_token = pages.encode_token("reports", page.items[-1].report_id)
    return reply(200, page)


@operation(
    "GET",
    "/v1/audit/reports/{report_id}",
    "getAuditReport",
    tag="audit",
    scopes=["audit"],
    answers={200: schemas.AuditReport},
    problems=_OF_A_REPORT,
)
async def get(services: Services, _: Call, report_id: str) -> Reply:
    """Get an audit report. A finished report has everything that `escrowmq audit run --json`
    writes.
    """
    report = services.reports.get(report_id)
    view = _view(services, report)
    if report.state != DONE:
        return reply(200, view)
    file = await services.reports.opened(report, REPORT)
    return Reply(200, await asyncio.to_thread(_joined, view, file))


@operation(
    "DELETE",
    "/v1/audit/reports/{report_id}",
    "deleteAuditReport",
    tag="audit",
    scopes=["audit"],
    answers={204: None},
    problems=[*_OF_A_REPORT, "storage_full"],
)
async def drop(services: Services, _: Call, report_id: str) -> Reply:
    """Delete an audit report. If it is in progress, its process is ended."""
    await services.reports.drop(services.reports.get(report_id))
    return NO_CONTENT


@operation(
    "GET",
    "/v1/audit/reports/{report_id}/findings",
    "listAuditFindings",
    tag="audit",
    scopes=["audit"],
    query=ListAuditFindingsQuery,
    answers={200: AuditFindingPage},
    problems=[*_OF_A_REPORT, "invalid_page_token"],
)
async def list_findings(
    services: Services, _: Call, report_id: str, query: ListAuditFindingsQuery
) -> Reply:
    """List the findings of a report, with the records that prove them.

    Held transactions are no findings unless the report was made so; `verdict=undecided_held` lists
    them.
    """
    report = services.reports.get(report_id)
    begin = (
        0 if query.page_token is UNSET else pages.decode_number_token("findings", query.page_token)
    )
    verdict = None if query.verdict is UNSET else _kind_of_finding(query.verdict)
    file = await services.reports.opened(report, REPORT)
    return Reply(
        200, await asyncio.to_thread(_page_of_findings, file, verdict, begin, query.page_size)
    )


@operation(
    "GET",
    "/v1/audit/reports/{report_id}/download",
    "downloadAuditReport",
    tag="audit",
    scopes=["audit"],
    query=DownloadQuery,
    answers={200: bytes},
    problems=_OF_A_REPORT,
)
async def download(
    services: Services, _: Call, report_id: str, query: DownloadQuery
) -> Reply | FileReply:
    """Download an audit report as a file."""
    wanted = query.format
    report = services.reports.get(report_id)
    if wanted == "csv":
        table = await asyncio.to_thread(_as_table, await services.reports.opened(report, REPORT))
        headers = {
            "Content-Disposition": f'attachment; filename="{report_id}.csv"',
            "X-Content-Type-Options": "nosniff",
        }
        return Reply(200, table, headers, _OCTETS)
    file = await services.reports.opened(
        report, {"json": REPORT, "html": HTML, "parquet": PARQUET}[wanted]
    )
    return FileReply(file, f"{report_id}.{wanted}", _OCTETS)


# --------------------------------------------------------------------------------------------- the
# files, on a thread


def _read(file: BinaryIO) -> dict[str, Any]:
    with file:
        report: dict[str, Any] = msgspec.json.decode(file.read())
    return report


def _joined(view: AuditReportSummary, file: BinaryIO) -> bytes:
    return codec.encode(_read(file) | msgspec.to_builtins(view))


def _page_of_findings(file: BinaryIO, verdict: str | None, begin: int, size: int) -> bytes:
    report = _read(file)
    items = report["held" if verdict == HELD_VERDICT and "held" in report else "findings"]["items"]
    places = [
        at for at in range(begin, len(items)) if verdict is None or _is_of(items[at], verdict)
    ]
    page: dict[str, Any] = {"items": [items[at] for at in places[:size]]}
    if len(places) > size:
        page["next_page_token"] = pages.encode_token("findings", str(places[size]))
    return codec.encode(page)


def _is_of(finding: dict[str, Any], verdict: str) -> bool:
    return finding["verdict"] == verdict or finding.get(verdict) is True


def _as_table(file: BinaryIO) -> bytes:
    """One line for each finding, with the places of its records, or what else proves it."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(_CSV)
    for item in _read(file)["findings"]["items"]:
        records = item.get("records", [])
        flags = " ".join(name for name, value in item.items() if value is True)
        first = item.get("log_offset", records[0]["log_offset"] if records else "")
        named = " ".join(f"{record['kind']}@{record['log_offset']}" for record in records)
        cells = [
            item["verdict"],
            item.get("transaction_id"),
            item.get("producer_group"),
            flags,
            first,
            item.get("bytes"),
        ]
        evidence = msgspec.json.encode(item["evidence"]).decode() if "evidence" in item else None
        lines.writerow(
            [
                _plain(cell)
                for cell in (*cells, item.get("reason"), named, item.get("check"), evidence)
            ]
        )
    return text.getvalue().encode("utf-8")


def _plain(cell: Any) -> Any:
    """A spreadsheet takes a text that begins so for a formula, and clients choose ids."""
    return (
        f"'{cell}"
        if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r")
        else cell
    )


# --------------------------------------------------------------------------------------------------
# details


def _view(services: Services, report: AuditReport) -> AuditReportSummary:
    progress = services.reports.progress(report)
    return AuditReportSummary(
        report_id=report.report_id,
        kind=report.kind,
        state=report.state,
        from_=_text(report.begun_from_ms),
        to=_text(report.begun_to_ms),
        producer_group=report.producer_group or UNSET,
        checks_asked=report.checks.split(",") if report.checks else [],
        created_at=codec.rfc3339(report.created_at_ms),
        started_at=_text(report.started_at_ms),
        finished_at=_text(report.finished_at_ms),
        exit_status=UNSET if report.exit_status is None else report.exit_status,
        reason=report.reason or UNSET,
        progress=UNSET
        if progress is None
        else AuditProgress(tasks_done=progress.done, tasks_known=progress.known),
    )


def _time(given: str | UnsetType, pointer: str) -> int | None:
    return None if given is UNSET else codec.parse_time(given, pointer)


def _text(wall_ms: int | None) -> str | UnsetType:
    return UNSET if wall_ms is None else codec.rfc3339(wall_ms)


def _kind_of_finding(given: str) -> str:
    """Refuse a word that no finding has: an empty list would say that there are none."""
    if given not in KINDS_OF_FINDINGS:
        raise invalid_field(
            "/query/verdict",
            "not_allowed",
            f"a verdict is one of {', '.join(KINDS_OF_FINDINGS)}",
        )
    return given


def _states(given: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in given.split(","))
    if not words <= set(_STATES):
        raise invalid_field(
            "/query/state", "not_allowed", f"a state is one of {', '.join(_STATES)}"
        )
    return words
