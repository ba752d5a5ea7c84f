"""The audit: transactions judged a second, beside what reading and decoding alone can do in the
same run, and how it grows.

Logs of transactions that were begun and decided, one append each, as a service under load writes
them. The limits: decoding with numpy on one core, and DuckDB grouping the same Arrow batches by
transaction. TRANSACTIONS=10000000 for another size, or several with commas between; WATCHED says up
to which size the continuous audit is measured, too.

The goal is a million in 10 s, warm, on two cores. A store of ten million takes 11 GB in TMPDIR.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession

from audit import arrow_columns, columns
from audit.jobs.transaction_audit import TransactionAudit
from audit.jobs.watch import Watch
from audit.jobs.watch_state import StateFolder
from audit.log import log_range, log_rows
from audit.log.log_files import LogReader
from audit.log.log_range import Log
from audit.rules import READ_COLUMNS
from audit.scope import Scope
from audit.spark.session import session
from audit.verdicts import FAIL_ON
from benchmarks import audited_log
from benchmarks.report import Figure, seconds, show

SIZES = [int(size) for size in os.environ.get("TRANSACTIONS", "10000,100000,1000000").split(",")]
WATCHED = int(os.environ.get("WATCHED", "1000000"))
WARM_RUNS = 3
_WATCH_BATCH_BYTES = 256 << 20  # as `audit watch` has it
_LARGE = 2_000_000  # transactions: from here on one warm run tells enough
_GROUPED = (
    "select transaction_id, bit_or(role), sum(record_bytes), count(*), min(log_offset), "
    "max(group_hash), "
    "sum(message_hash) filter (role = 1), sum(body_crc) filter (role = 1), max(prepared_offset), "
    "max(message_count) "
    "from log group by transaction_id"
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size: seconds, each the least of its runs."""

    transactions: int
    records: int
    log_bytes: int
    written: float
    walked: float
    decoded: float
    grouped: float  # by DuckDB
    scanned: float
    audited: float
    watched: float | None
    load: float


def run() -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with session(
            "local[*]", log=folder / "spark.log", settings={"spark.driver.memory": "3g"}
        ) as spark:
            found: list[Measured] = []
            first = 0.0
            for size in sorted(SIZES):
                store = folder / f"store-{size}"
                written = seconds(partial(audited_log.write, store, size))
                log = log_range.find_log(str(store))
                if not found:
                    first = seconds(partial(_audit, spark, log))
                found.append(_measure(spark, size, log, written=written))
                show(
                    f"The audit of {size:,} transactions", _settings(found[-1]), _figures(found[-1])
                )
        show("The audit as the log grows", "page cache warm, local[*]", _growth(found, first))


def _measure(spark: SparkSession, size: int, log: Log, *, written: float) -> Measured:
    runs = 1 if size >= _LARGE else WARM_RUNS
    records = _walk(log)
    reader = (
        spark.read.format("commitlog")
        .option("path", log.uri)
        .schema(columns.schema_text(READ_COLUMNS))
    )
    return Measured(
        transactions=size,
        records=records,
        log_bytes=log.end - log.begin,
        written=written,
        walked=seconds(lambda: _walk(log)),
        decoded=min(
            seconds(lambda: sum(batch.num_rows for batch in _batches(log))) for _ in range(runs)
        ),
        grouped=_group(log, runs),
        scanned=min(
            seconds(lambda: reader.load().write.format("noop").mode("overwrite").save())
            for _ in range(runs)
        ),
        audited=min(seconds(lambda: _audit(spark, log)) for _ in range(runs)),
        watched=_watch(spark, log, f"{log.uri}.state") if size <= WATCHED else None,
        load=os.getloadavg()[0],
    )


def _audit(spark: SparkSession, log: Log) -> None:
    assert TransactionAudit(spark, log, Scope()).run().is_balanced


def _watch(spark: SparkSession, log: Log, state: str) -> float:
    folder = StateFolder(state)
    watch = Watch(
        spark,
        log.uri,
        folder,
        counted=FAIL_ON.__contains__,
        horizon_ms=3_600_000,
        on_step=lambda _: None,
    )
    taken = seconds(lambda: watch.run(batch_bytes=_WATCH_BATCH_BYTES, interval_ms=None))
    assert watch.report()["balanced"]
    assert watch.state.reached == log.end
    return taken


def _walk(log: Log) -> int:
    reader = LogReader()
    try:
        return sum(
            len(piece.record_offsets)
            for part in log_range.parts(log)
            for piece in log_range.pieces(log, part, reader)
        )
    finally:
        reader.close()


def _batches(log: Log) -> Iterator[pa.RecordBatch]:
    schema = arrow_columns.schema(READ_COLUMNS)
    for part in log_range.parts(log):
        yield from log_rows.rows(log, part, schema)


def _group(log: Log, runs: int) -> float:
    """The same groups by another engine, a third of the numbers: seconds, without decoding."""
    table = pa.Table.from_batches(_batches(log))
    connection = duckdb.connect()
    connection.register("log", table)
    return min(seconds(lambda: connection.sql(_GROUPED).to_arrow_table()) for _ in range(runs))


# --------------------------------------------------------------------------------------------------
# the figures


def _settings(found: Measured) -> str:
    return (
        f"{found.log_bytes:,} bytes of log, {found.records:,} records, written in "
        f"{found.written:.1f} s; page cache warm, "
        f"local[*], load {found.load:.1f}"
    )


def _figures(found: Measured) -> list[Figure]:
    count = found.records
    one_core = "decoding on one core"
    figures = [
        Figure(
            "decoded to the audit's columns",
            count / found.decoded,
            "records/s",
            count / found.walked,
            "finding records",
        ),
        Figure(
            "scanned by Spark", count / found.scanned, "records/s", count / found.decoded, one_core
        ),
        Figure("audited", count / found.audited, "records/s", count / found.decoded, one_core),
        Figure(
            "audited", found.audited, "s", found.decoded + found.grouped, "decoding, then DuckDB"
        ),
    ]
    if found.watched is not None:
        figures.append(
            Figure(
                "watched from its beginning",
                count / found.watched,
                "records/s",
                count / found.audited,
                "audited",
            )
        )
    return figures


def _growth(found: list[Measured], first: float) -> list[Figure]:
    """Each size beside as many times the one before it: 1.0 is a straight line, more is what a run
    costs in any case.
    """
    begun = Figure(
        "the first audit of a session",
        first,
        "s",
        found[0].audited,
        f"warm, {found[0].transactions:,}",
    )
    steps = [
        Figure(
            f"{one.transactions:,} transactions",
            one.audited,
            "s",
            before.audited * one.transactions / before.transactions,
            f"of {before.transactions:,}, in proportion",
            f"{one.transactions / one.audited:,.0f} transactions/s",
        )
        for before, one in zip([found[0], *found], found, strict=False)
    ]
    return [begun, *steps]
