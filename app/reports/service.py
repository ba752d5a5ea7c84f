"""Reports of audits: asked for, made one at a time by a process of their own, kept until there are
too many.

A report is a row in SQL and a folder of files. While one is made the row says running; a service
that ends takes the process with it, and the next one restarts that report.

Where the database of the rows takes nothing for now, what was made waits for it: the row follows.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import structlog

from app.encoding import codec
from app.registry.audit_reports import DONE, FAILED, QUEUED, RUNNING, AuditReport, AuditReportRows
from app.reports import process
from app.reports.options import AuditOptions
from storage.clock import Clock
from storage.errors import (
    Backpressure,
    ReportExpired,
    StorageFull,
    UnavailableError,
    UnknownReport,
    reason_of,
)
from storage.idempotency import check_fingerprint
from storage.identifiers import made_at_ms
from storage.keyed_locks import ShieldedTasks

FOLDER = "audit"
ID_PREFIX = "rpt"
REPORT = "report.json"
HTML = "report.html"
_ROWS = "rows"
PARQUET = f"{_ROWS}/*/*.parquet"  # one file, below a folder that is named after the run
_ERRORS = "standard-error.log"
_SPARK_LOG = "spark.log"
_MADE = (0, 1, 4)  # exit statuses with which there is a report: clean, findings, does not balance
_MOST_STARTS = 3
_MOST_DROPPED = 1_000  # of which it is known that they were there
_REASON_CHARACTERS = 500
_STORE_AGAIN_S = 1.0  # after a row that the database did not take

log = structlog.get_logger()


class Progress(NamedTuple):
    """Tasks of the stages that run now."""

    done: int
    known: int


class _Line(msgspec.Struct):
    tasks_done: int
    tasks_known: int


class AuditReports:
    """Runs audits, one at a time, and keeps their reports. Event loop only.

    `open` first, `stop` at the end.
    """

    def __init__(
        self,
        rows: AuditReportRows,
        clock: Clock,
        options: AuditOptions,
        *,
        program: Sequence[str],
        data_dir: Path,
        has_spark: bool = True,
        has_plots: bool = True,
    ) -> None:
        """`program`: what makes reports; without Spark by the engine `local`.

        `has_plots`: Spark can make a page of one, too.
        """
        self._has_spark = has_spark
        self._has_plots = has_plots
        self._rows = rows
        self._clock = clock
        self._options = options
        self._program = program
        self._data_dir = data_dir
        self._reports: dict[str, AuditReport] = {}
        self._progress: Progress | None = None
        self._working: asyncio.Task[None] | None = None
        self._current: tuple[str, asyncio.Task[int]] | None = None
        # the reports that were dropped, and whose rows did not say so yet
        self._to_remove: dict[str, AuditReport] = {}
        self._removing: asyncio.Task[None] | None = None
        self._changes = ShieldedTasks()  # of rows: clients see a change before it is stored

    async def open(self) -> None:
        """Take up what the last service left."""
        self._reports = {report.report_id: report for report in await self._rows.load()}
        await asyncio.to_thread(
            _remove_strays, self._data_dir / FOLDER, {report.report_id for report in self}
        )
        for report in self:
            if report.state == RUNNING and report.starts < _MOST_STARTS:
                await self._change(report, state=QUEUED, started_at_ms=None)
            elif report.state == RUNNING:
                reason = f"the service ended {_MOST_STARTS} times while it was made"
                await self._change(
                    report, state=FAILED, reason=reason, finished_at_ms=self._clock.wall_ms()
                )
                log.warning("report_failed", report_id=report.report_id, reason=reason)
        self._work_on()

    async def reload(self) -> None:
        """Take up a report whose row may have been made, though the answer was lost."""
        for report in await self._rows.load():
            self._reports.setdefault(report.report_id, report)
        self._work_on()

    async def stop(self) -> None:
        """Stop a running report; it restarts at the next start."""
        for task in (self._working, self._removing):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._working = self._removing = None
        await self._changes.drain()

    def __iter__(self) -> Iterator[AuditReport]:
        """The reports that were not deleted, in the order of their requests."""
        return iter([report for report in self._reports.values() if report.dropped_at_ms is None])

    def get(self, report_id: str) -> AuditReport:
        """Raises UnknownReport, ReportExpired."""
        report = self._reports.get(report_id)
        if report is None:
            raise UnknownReport(f"report {report_id[:100]} does not exist")
        if report.dropped_at_ms is not None:
            raise ReportExpired(
                f"report {report_id} was dropped at {codec.rfc3339(report.dropped_at_ms)}"
            )
        return report

    async def opened(self, report: AuditReport, pattern: str) -> BinaryIO:
        """A file of the report; it can be read to its end though the report is dropped meanwhile.

        Raises UnknownReport if the report has no such file, or not yet; ReportExpired.
        """
        found = (
            await asyncio.to_thread(_open, self._folder(report), pattern)
            if report.state == DONE
            else None
        )
        if found is None:
            self.get(report.report_id)  # dropped since it was looked up
            what = f"is {report.state}" if report.state != DONE else "has no such file"
            raise UnknownReport(f"report {report.report_id} {what}", state=report.state)
        return found

    def progress(self, report: AuditReport) -> Progress | None:
        return self._progress if report.state == RUNNING else None

    def made_before(self, key: str | None, fingerprint: str) -> AuditReport | None:
        """The report of an earlier request with the same Idempotency-Key; None if there is none.
        Raises IdempotencyKeyReused.
        """
        if key is None:
            return None
        found = next((one for one in self._reports.values() if one.idempotency_key == key), None)
        check_fingerprint(found, fingerprint, key=key)
        return found

    async def create(self, report: AuditReport) -> None:
        """Raises Backpressure, StorageFull."""
        waiting = sum(one.state == QUEUED for one in self)
        if waiting >= self._options.max_queued:
            raise Backpressure(
                f"{waiting} reports wait to be made, the limit is {self._options.max_queued}"
            )
        # before anything is awaited: a request with the same key finds it
        self._reports[report.report_id] = report
        try:
            await self._rows.add(report)
        except BaseException:
            del self._reports[report.report_id]
            raise
        self._work_on()

    async def drop(self, report: AuditReport) -> None:
        """End it where it is being made, and remove its files.

        Raises UnavailableError, StorageFull: it is gone until this service ends, and from then on
        too if the database takes the change before.
        """
        try:
            await self._change(report, dropped_at_ms=self._clock.wall_ms())
        except (UnavailableError, StorageFull):
            self._to_remove[report.report_id] = report
            self._remove_soon()
            raise
        finally:
            await self._end_run(report)
        await self._remove_files(report)

    async def _end_run(self, report: AuditReport) -> None:
        if self._current is not None and self._current[0] == report.report_id:
            self._current[1].cancel()
            await asyncio.wait({self._current[1]})

    async def _remove_files(self, report: AuditReport) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder(report), ignore_errors=True)

    # ----------------------------------------------------------------------------------------------
    # the work

    def _work_on(self) -> None:
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="audit-reports")

    async def _work(self) -> None:
        while True:
            queued = next((one for one in self if one.state == QUEUED), None)
            if queued is None:
                return
            await self._make(queued)

    def _remove_soon(self) -> None:
        if self._removing is None or self._removing.done():
            self._removing = asyncio.create_task(self._remove(), name="dropped-audit-reports")

    async def _remove(self) -> None:
        """Remove what was dropped, beside a run that may take hours."""
        while self._to_remove:
            report_id, report = next(iter(self._to_remove.items()))
            await self._change_at_last(report)
            if self._current is not None and self._current[0] == report_id:
                await asyncio.wait({self._current[1]})
            await self._remove_files(report)
            del self._to_remove[report_id]

    async def _make(self, report: AuditReport) -> None:
        try:
            await self._run(report)
        except Exception as error:
            log.exception("report_failed", report_id=report.report_id)
            await self._fail(report, reason_of(error))
        await self._drop_old()

    async def _run(self, report: AuditReport) -> None:
        folder = self._folder(report)
        await asyncio.to_thread(_make_empty, folder)
        report = await self._change_at_last(
            report,
            state=RUNNING,
            starts=report.starts + 1,
            started_at_ms=self._clock.wall_ms(),
            reason=None,
        )
        if report.dropped_at_ms is not None:
            return
        log.info("report_begun", report_id=report.report_id)
        self._progress = Progress(0, 0)
        task = asyncio.create_task(
            process.run(
                self._command(report), folder=self._data_dir, errors=folder / _ERRORS,
                on_line=self._note
            )
        )  # fmt: skip
        self._current = report.report_id, task
        try:
            await asyncio.wait({task}, timeout=self._options.timeout_ms / 1000)
            is_over_time = not task.done()
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._current = None
        if self._reports[report.report_id].dropped_at_ms is not None:
            return
        if is_over_time:
            await self._fail(report, f"it took longer than {self._options.timeout_ms} ms")
        elif task.result() in _MADE and (folder / REPORT).is_file():
            await self._change_at_last(
                report, state=DONE, exit_status=task.result(), finished_at_ms=self._clock.wall_ms()
            )
            log.info("report_done", report_id=report.report_id, exit_status=task.result())
        else:
            reason = await asyncio.to_thread(_last_words, folder / _ERRORS)
            await self._fail(
                report, reason or f"it ended with status {task.result()}", exit_status=task.result()
            )

    def _command(self, report: AuditReport) -> list[str]:
        """The command, run in the folder of the data, so that no path of this machine is in a
        report.
        """
        folder = f"{FOLDER}/{report.report_id}"
        command = [*self._program, "audit", "run", "--log", "store", "--json", f"{folder}/{REPORT}"]
        command += ["--checks", report.checks or "none", "--report-id", report.report_id]
        command += self._of_spark(folder) if self._has_spark else ["--engine", "local"]
        command += ["--progress", "json", "--end-with-stdin"]
        if report.begun_from_ms is not None:
            command += ["--from", codec.rfc3339(report.begun_from_ms)]
        if report.begun_to_ms is not None:
            command += ["--to", codec.rfc3339(report.begun_to_ms)]
        if report.producer_group is not None:
            command += ["--producer-group", report.producer_group]
        return command

    def _of_spark(self, folder: str) -> list[str]:
        """Options of the engine `spark`: what it needs, and the files that only it writes."""
        page = ["--html", f"{folder}/{HTML}"] if self._has_plots else []
        return [
            *("--spark-log", f"{folder}/{_SPARK_LOG}"),
            *("--driver-memory", self._options.driver_memory),
            *("--parquet", f"{folder}/{_ROWS}", "--parquet-files", "1"),
            *page,
        ]

    def _note(self, line: bytes) -> None:
        with suppress(msgspec.DecodeError):  # whatever else the program says
            found = msgspec.json.decode(line, type=_Line)
            self._progress = Progress(found.tasks_done, found.tasks_known)

    async def _fail(
        self, report: AuditReport, reason: str, *, exit_status: int | None = None
    ) -> None:
        reason = reason[:_REASON_CHARACTERS]
        log.warning("report_failed", report_id=report.report_id, reason=reason)
        await self._change_at_last(
            report,
            state=FAILED,
            reason=reason,
            exit_status=exit_status,
            finished_at_ms=self._clock.wall_ms(),
        )

    async def _drop_old(self) -> None:
        ended = [report for report in self if report.has_ended]
        for report in ended[: -self._options.kept_reports]:
            await self._change_at_last(report, dropped_at_ms=self._clock.wall_ms())
            await self._remove_files(report)
        dropped = [
            report.report_id
            for report in self._reports.values()
            if report.dropped_at_ms is not None and report.report_id not in self._to_remove
        ]
        for report_id in dropped[:-_MOST_DROPPED]:
            del self._reports[report_id]
            await self._at_last(report_id, partial(self._rows.forget, report_id))

    async def _change(self, report: AuditReport, **changes: object) -> AuditReport:
        """Change the report as it is by now: a request may have dropped it meanwhile."""
        changed = msgspec.structs.replace(self._reports[report.report_id], **changes)
        self._reports[report.report_id] = changed
        await self._changes.shielded(self._rows.change(changed))
        return changed

    async def _change_at_last(self, report: AuditReport, **changes: object) -> AuditReport:
        """As `_change`; return the report once its row has that, and what has changed since."""
        report_id = report.report_id
        changed = msgspec.structs.replace(self._reports[report_id], **changes)
        self._reports[report_id] = changed
        await self._at_last(report_id, lambda: self._rows.change(self._reports[report_id]))
        return self._reports[report_id]

    async def _at_last(
        self, report_id: str, store: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Store a change, as soon as the database takes it."""
        is_noted = False
        while True:
            try:
                await self._changes.shielded(store())
            except (UnavailableError, StorageFull) as error:
                if not is_noted:
                    log.warning("report_not_stored_yet", report_id=report_id, reason=str(error))
                    is_noted = True
            else:
                return
            await asyncio.sleep(_STORE_AGAIN_S)

    def _folder(self, report: AuditReport) -> Path:
        return self._data_dir / FOLDER / report.report_id


def _open(folder: Path, pattern: str) -> BinaryIO | None:
    path = next(folder.glob(pattern), None)
    with suppress(FileNotFoundError):
        return None if path is None else path.open("rb")
    return None


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _remove_strays(folder: Path, known: set[str]) -> None:
    """Remove the remains of reports whose deletion was interrupted.

    Nothing else: the directory may be another program's, named as the data directory by mistake.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in known and made_at_ms(path.name, ID_PREFIX) is not None:
            shutil.rmtree(path, ignore_errors=True)


def _last_words(path: Path) -> str:
    """Last output of a failed program, without the frames that typer draws."""
    lines = path.read_text("utf-8", "replace").replace("│", " ").splitlines()[-20:]
    words = [line.strip() for line in lines if any(character.isalnum() for character in line)]
    return " ".join(words)[-_REASON_CHARACTERS:]
