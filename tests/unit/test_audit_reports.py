"""Reports of audits, made by a program that stands in for Spark: they fail, pile up, are
cut off.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.registry.audit_reports import AuditReport, AuditReportRows
from app.registry.database import Database
from app.reports.options import AuditOptions
from app.reports.service import HTML, PARQUET, AuditReports
from storage.clock import SystemClock
from storage.errors import Backpressure, RegistryUnavailable, ReportExpired, UnknownReport
from tests.conftest import ON_POSTGRESQL
from tests.support import report_program
from tests.support.http import reached as reached_in
from tests.support.written_log import Transactions, WrittenLog

PROGRAM = (sys.executable, report_program.__file__)

reached = partial(reached_in, seconds=report_program.PATIENCE_SECONDS)


class Service:
    """The reports of one data directory; `open` and `stop` as a service that starts and ends."""

    def __init__(self, data_dir: Path, url: str = "", **options) -> None:
        self._data_dir = data_dir
        self._url = url or f"sqlite:///{data_dir / 'registry.db'}"
        self._options = AuditOptions(**options)

    async def open(self, program=PROGRAM, *, has_spark=True) -> AuditReports:
        self._database = Database(self._url)
        await self._database.open()
        rows = AuditReportRows(self._database)
        self.reports = AuditReports(
            rows,
            SystemClock(),
            self._options,
            program=program,
            data_dir=self._data_dir,
            has_spark=has_spark,
        )
        await self.reports.open()
        return self.reports

    async def stop(self) -> None:
        await self.reports.stop()
        await self._database.aclose()

    @contextmanager
    def slow_database(self) -> Iterator[None]:
        """Whatever is asked of the database meanwhile waits for the end of this."""
        end = threading.Event()
        waiting = asyncio.create_task(self._database.run(lambda _: end.wait()))
        try:
            yield
        finally:
            end.set()
            waiting.cancel()


@pytest.fixture
async def service(tmp_path):
    made = Service(tmp_path, kept_reports=2, max_queued=3)
    yield made
    await made.stop()


async def ask(
    reports: AuditReports, number: int, group: str = "shop", *, checks: str = ""
) -> AuditReport:
    report = AuditReport(
        report_id=f"rpt_{number}",
        kind="transaction_outcomes",
        producer_group=group,
        checks=checks,
        created_at_ms=number,
        fingerprint="x",
    )
    await reports.create(report)
    return report


async def read(reports: AuditReports, report: AuditReport) -> dict:
    with await reports.opened(report, "report.json") as file:
        return json.load(file)


async def until_state(reports: AuditReports, report: AuditReport, *states: str) -> AuditReport:
    return await reached(
        lambda: (now := reports.get(report.report_id)).state in states and now,
        f"{report.report_id} is {states}",
    )


async def until_it_hangs(reports: AuditReports, report: AuditReport, folder: Path) -> int:
    """The process id of a run that goes on for ever."""
    path = folder / "audit" / report.report_id / "pid"
    return int(await reached(lambda: path.is_file() and path.read_text(), "the program has begun"))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_report_is_made_by_the_program_and_then_read_from_its_files(service, tmp_path):
    reports = await service.open()

    report = await until_state(reports, await ask(reports, 1), "done")

    assert (report.exit_status, report.reason, report.starts) == (1, None, 1)
    made = await read(reports, report)
    assert (made["run"]["report_id"], made["run"]["log"], made["producer_group"]) == (
        "rpt_1",
        "store",
        "shop",
    )


async def test_reports_are_made_one_at_a_time_in_their_order_and_too_many_that_wait_are_refused(
    service, tmp_path
):
    reports = await service.open()
    first = await ask(reports, 1, "hangs")
    await until_it_hangs(reports, first, tmp_path)
    for number in (2, 3, 4):
        await ask(reports, number)

    with pytest.raises(Backpressure):
        await ask(reports, 5)

    assert [(one.report_id, one.state) for one in reports] == [
        ("rpt_1", "running"), ("rpt_2", "queued"), ("rpt_3", "queued"), ("rpt_4", "queued")
    ]  # fmt: skip
    await reached(
        lambda: reports.progress(reports.get("rpt_1")) == (1, 7), "it has said how far it is"
    )


async def test_a_program_that_fails_or_is_not_there_fails_the_report_with_its_last_words(service):
    reports = await service.open()

    report = await until_state(reports, await ask(reports, 1, "fails"), "failed")
    assert (report.exit_status, report.reason) == (1, "the log is not there")

    await service.stop()
    reports = await service.open(program=("/nowhere/escrowmq",))
    report = await until_state(reports, await ask(reports, 2), "failed")
    assert "/nowhere/escrowmq" in report.reason
    with pytest.raises(UnknownReport, match="is failed"):
        await reports.opened(report, "report.json")


async def test_a_run_that_takes_too_long_is_ended(tmp_path):
    service = Service(tmp_path, timeout_ms=500)
    reports = await service.open()

    report = await until_state(reports, await ask(reports, 1, "hangs"), "failed")

    assert report.reason == "it took longer than 500 ms"
    await service.stop()


async def test_the_service_ends_what_runs_and_the_next_start_makes_it_anew_three_times_at_most(
    service, tmp_path
):
    reports = await service.open()
    report = await ask(reports, 1, "hangs")
    for starts in (1, 2, 3):
        pid = await until_it_hangs(reports, report, tmp_path)
        assert reports.get("rpt_1").starts == starts
        await service.stop()
        assert not is_there(pid)
        (tmp_path / "audit" / "rpt_1" / "pid").unlink()
        reports = await service.open()

    report = await until_state(reports, report, "failed")
    assert report.reason == "the service ended 3 times while it was made"


async def test_a_start_takes_up_what_was_queued_and_removes_folders_that_no_report_has(
    service, tmp_path
):
    reports = await service.open(program=PROGRAM)
    hanging = await ask(reports, 1, "hangs")
    await until_it_hangs(reports, hanging, tmp_path)
    waiting = await ask(reports, 2)
    await reports.drop(hanging)
    await until_state(reports, waiting, "done")
    await service.stop()
    (tmp_path / "audit" / "rpt_-P7hQeT34O58RENQLUrHGIiY").mkdir()

    reports = await service.open()

    assert [one.report_id for one in reports] == ["rpt_2"]
    assert [path.name for path in (tmp_path / "audit").iterdir()] == ["rpt_2"]
    with pytest.raises(ReportExpired):
        reports.get("rpt_1")


async def test_a_start_leaves_what_is_no_report_in_a_folder_that_has_an_audit_of_its_own(
    service, tmp_path
):
    """A data directory that was chosen by mistake: a checkout, a home directory."""
    names = ("2025", "checks", "rpt", "report_1", "rpt_2025", "rpt_monthly")
    others = [tmp_path / "audit" / name / "file" for name in names]
    for path in others:
        path.parent.mkdir(parents=True)
        path.write_text("not of EscrowMQ")

    await service.open()

    assert [path.read_text() for path in others] == ["not of EscrowMQ"] * 6


async def test_a_report_that_is_dropped_while_it_is_made_is_ended_and_its_files_are_gone(
    service, tmp_path
):
    reports = await service.open()
    report = await ask(reports, 1, "hangs")
    pid = await until_it_hangs(reports, report, tmp_path)

    await reports.drop(report)

    assert not is_there(pid)
    assert not (tmp_path / "audit" / "rpt_1").exists()
    await until_state(reports, await ask(reports, 2), "done")


async def test_a_report_that_is_dropped_while_it_is_downloaded_is_read_to_its_end_and_is_gone_for_the_next(
    service,
):
    reports = await service.open()
    report = await until_state(reports, await ask(reports, 1), "done")

    with await reports.opened(report, "report.json") as file:
        await reports.drop(report)

        assert json.load(file)["state"] == "done"
    with pytest.raises(ReportExpired):
        await reports.opened(report, "report.json")  # looked up before


async def test_the_oldest_go_when_there_are_too_many_and_it_is_known_that_they_were_there(
    service, tmp_path
):
    reports = await service.open()
    for number in range(1, 5):
        await until_state(
            reports,
            await ask(reports, number, "fails" if number == 2 else "shop"),
            "done",
            "failed",
        )
    await ask(reports, 5, "hangs")
    await until_it_hangs(
        reports, AuditReport(report_id="rpt_5", kind="", created_at_ms=5), tmp_path
    )

    assert [one.report_id for one in reports] == ["rpt_3", "rpt_4", "rpt_5"]
    assert sorted(path.name for path in (tmp_path / "audit").iterdir()) == [
        "rpt_3",
        "rpt_4",
        "rpt_5",
    ]
    for gone, error in (("rpt_1", ReportExpired), ("rpt_0", UnknownReport)):
        with pytest.raises(error):
            reports.get(gone)


async def test_a_report_that_was_seen_done_is_done_after_a_stop_that_came_before_it_was_stored(
    service, tmp_path
):
    reports = await service.open()
    report = await ask(reports, 1, group="waits")
    go = tmp_path / "audit" / "rpt_1" / report_program.GO
    await reached(go.is_fifo, "the program has begun")
    with service.slow_database():
        await asyncio.to_thread(go.write_bytes, b"")
        await until_state(reports, report, "done")
        stopping = asyncio.create_task(service.stop())
        for _ in range(20):  # turns of the loop: the stop is as far as it comes
            await asyncio.sleep(0)

    await stopping

    assert (await service.open()).get("rpt_1").state == "done"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)])
async def leaving(request, tmp_path):
    """(a service, a block in which its database is away)."""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        url, away = server.new_database(), server.away
    else:
        file = tmp_path / "registry" / "registry.db"
        file.parent.mkdir()
        url, away = f"sqlite:///{file}", partial(moved_away, file)
    service = Service(tmp_path, url, kept_reports=1)
    yield service, away
    with suppress(RegistryUnavailable):
        await service.stop()


@contextmanager
def moved_away(file: Path) -> Iterator[None]:
    elsewhere = file.with_name("elsewhere.db")
    file.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(file)


async def begin_one_that_waits(reports: AuditReports, folder: Path) -> tuple[AuditReport, Path]:
    """(the report, what lets it end when it is written to)."""
    report = await ask(reports, 1, group="waits")
    go = folder / "audit" / report.report_id / report_program.GO
    await reached(go.is_fifo, "the program has begun")
    return report, go


async def test_reports_go_on_once_a_database_is_back_that_was_away_at_the_end_of_one(
    leaving, tmp_path
):
    service, away = leaving
    reports = await service.open()
    first, go = await begin_one_that_waits(reports, tmp_path)
    second = await ask(reports, 2)
    with away(), capture_logs() as logs:
        await asyncio.to_thread(go.write_bytes, b"")
        await reached(lambda: logs, "it is logged that the result was not stored")
        assert reports.get("rpt_1").state == "done"
        assert reports.get("rpt_2").state == "queued"

    await until_state(reports, second, "done")
    await reached(lambda: [one.report_id for one in reports] == ["rpt_2"], "the oldest has gone")

    assert [line["event"] for line in logs].count("report_not_stored_yet") == 1
    await service.stop()
    reports = await service.open()
    with pytest.raises(ReportExpired):
        reports.get(first.report_id)  # the oldest of two, where one is kept
    second = reports.get(second.report_id)
    assert (second.state, second.starts, second.reason) == ("done", 1, None)


async def test_a_report_that_is_made_while_the_database_is_away_is_made_anew_after_a_stop(
    leaving, tmp_path
):
    service, away = leaving
    reports = await service.open()
    report, go = await begin_one_that_waits(reports, tmp_path)
    with away(), capture_logs() as logs:
        await asyncio.to_thread(go.write_bytes, b"")
        await reached(lambda: logs, "it is logged that the result was not stored")
        async with asyncio.timeout(60):
            await reports.stop()

    await service.stop()
    reports = await service.open()

    assert reports.get(report.report_id).state in ("queued", "running")


async def test_a_report_whose_deletion_is_refused_without_the_database_is_gone_once_it_is_back(
    leaving, tmp_path
):
    service, away = leaving
    reports = await service.open()
    hanging = await ask(reports, 1, "hangs")
    pid = await until_it_hangs(reports, hanging, tmp_path)
    with away():
        with pytest.raises(RegistryUnavailable):
            await reports.drop(hanging)
        assert not is_there(pid)
        with pytest.raises(ReportExpired):
            reports.get(hanging.report_id)

    await reached(
        lambda: not (tmp_path / "audit" / "rpt_1").exists(), "the files of the report are gone"
    )
    await service.stop()
    reports = await service.open()

    with pytest.raises(ReportExpired):
        reports.get(hanging.report_id)


async def test_a_deletion_that_was_refused_waits_for_no_other_report_that_is_being_made(
    leaving, tmp_path
):
    service, away = leaving
    reports = await service.open()
    made = await until_state(reports, await ask(reports, 1), "done")
    hanging = await ask(reports, 2, "hangs")
    await until_it_hangs(reports, hanging, tmp_path)
    with away(), pytest.raises(RegistryUnavailable):
        await reports.drop(made)

    await reached(
        lambda: not (tmp_path / "audit" / "rpt_1").exists(), "the files of the report are gone"
    )
    assert reports.get(hanging.report_id).state == "running"
    await service.stop()
    reports = await service.open()

    with pytest.raises(ReportExpired):
        reports.get(made.report_id)


async def test_without_spark_the_engine_local_makes_reports_with_checks_and_no_page(
    service, tmp_path
):
    shop = Transactions(WrittenLog(tmp_path / "store"))
    shop.commit(shop.begin("txn_1"))
    shop.log.close()
    reports = await service.open(program=(sys.executable, "-m", "escrowmq"), has_spark=False)

    report = await until_state(
        reports, await ask(reports, 1, checks="queues,retries"), "done", "failed"
    )

    assert (report.state, report.reason, report.exit_status) == ("done", None, 0)
    made = await read(reports, report)
    assert (made["engine"], made["verdicts"]["committed_once"]) == ("local", 1)
    assert list(made["checks"]) == ["queues", "retries"]
    for pattern in (HTML, PARQUET):
        with pytest.raises(UnknownReport, match="no such file"):
            await reports.opened(report, pattern)
