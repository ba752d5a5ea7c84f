"""The audit: records read and judged a second, beside what reading and decoding alone can do in the same run.

A log of transactions that were begun and decided, one append each, as a service under load writes it. The limits: decoding with
numpy on one core, and DuckDB (where it is installed) grouping the same Arrow batches by transaction. TRANSACTIONS=1000000 for
the goal: a million in 10 s, warm, on two cores.
"""

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from audit import columns, extent, log_rows
from audit.extent import Log
from audit.log_files import LogReader
from audit.outcomes import READ_COLUMNS
from audit.session import session
from audit.transaction_audit import Scope, TransactionAudit
from benchmarks.report import Figure, seconds, show
from tests.support.written_log import Transactions, WrittenLog

TRANSACTIONS = int(os.environ.get("TRANSACTIONS", "100000"))
ROLLED_BACK_EACH = 10
WARM_RUNS = 3


def run() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = _write(Path(directory) / "store")
        log = extent.find_log(str(store))
        show(
            f"The audit of {TRANSACTIONS:,} transactions",
            f"{log.end - log.begin:,} bytes of log, page cache warm, local[*]",
            [*_without_spark(log), *_with_spark(log, Path(directory))],
        )


def _write(root: Path) -> Path:
    log = WrittenLog(root, segment_bytes=1 << 28)
    shop = Transactions(log)
    for number in range(TRANSACTIONS):
        halves = shop.begin(f"txn_{number:024d}")
        if number % ROLLED_BACK_EACH:
            shop.commit(halves)
        else:
            shop.roll_back(halves)
    return log.close()


def _batches(log: Log) -> Iterator[pa.RecordBatch]:
    schema = columns.arrow_schema(READ_COLUMNS)
    for part in extent.parts(log):
        yield from log_rows.rows(log, part, schema)


def _walk(log: Log) -> int:
    reader = LogReader()
    try:
        return sum(len(piece.record_offsets) for part in extent.parts(log) for piece in extent.pieces(log, part, reader))
    finally:
        reader.close()


def _without_spark(log: Log) -> list[Figure]:
    count = _walk(log)
    walked = count / seconds(lambda: _walk(log))
    decoded = count / seconds(lambda: sum(batch.num_rows for batch in _batches(log)))
    note = f"{count:,} records, one core"
    return [Figure("decoded to the audit's columns", decoded, "records/s", walked, "finding them and their checksums", note)]


def _with_spark(log: Log, directory: Path) -> list[Figure]:
    count = _walk(log)
    decoding = min(seconds(lambda: list(_batches(log))) for _ in range(WARM_RUNS))
    with session("local[*]", log=directory / "spark.log") as spark:
        reader = spark.read.format("commitlog").option("path", log.uri).schema(columns.schema_text(READ_COLUMNS))

        def scan() -> None:
            reader.load().write.format("noop").mode("overwrite").save()

        def audit() -> None:
            assert TransactionAudit(spark, log, Scope()).run().is_balanced

        cold = seconds(audit)
        audited = min(seconds(audit) for _ in range(WARM_RUNS))
        scan()
        scanned = min(seconds(scan) for _ in range(WARM_RUNS))
    load = f"load {os.getloadavg()[0]:.1f}"
    figures = [
        Figure("scanned by Spark", count / scanned, "records/s", count / decoding, "decoding on one core", load),
        Figure("audited, warm", count / audited, "records/s", count / decoding, "decoding on one core", load),
        Figure("audited, warm", audited, "s", decoding, "decoding on one core", load),
        Figure("audited, the first of a session", cold, "s", audited, "warm", load),
    ]
    if importlib.util.find_spec("duckdb") is not None:
        figures.append(Figure("audited, warm", audited, "s", decoding + _grouped(log), "decoding, then DuckDB", load))
    return figures


def _grouped(log: Log) -> float:
    """The same groups by another engine, a third of the numbers."""
    import duckdb

    table = pa.Table.from_batches(_batches(log))
    question = (
        "select transaction_id, bit_or(role), sum(record_bytes), count(*), min(log_offset), max(group_hash), "
        "sum(message_hash) filter (role = 1), sum(body_crc) filter (role = 1), max(prepared_offset), max(message_count) "
        "from log group by transaction_id"
    )
    connection = duckdb.connect()
    connection.register("log", table)
    return seconds(lambda: connection.sql(question).to_arrow_table())
