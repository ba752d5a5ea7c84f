"""The log held against what the producers' own database says became of each transaction.

A producer that follows the pattern writes a marker with its data, in one local transaction: the id
of the transaction and `commit` or `rollback`. What the markers say and what the log proves must be
the same. Where they differ an event is lost (the database committed, and no consumer got it) or a
phantom (a consumer got it, and the database did not commit).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.checks.check_context import LISTED, CheckContext
from audit.decode.hashes import hash_of
from audit.errors import NoSuchGroup
from audit.jobs.transaction_audit import TransactionAudit
from audit.log import log_range
from audit.log.log_range import Log
from audit.patience import limit_locks, within
from audit.scope import Scope
from audit.spark.spark_tables import SparkTables
from audit.verdicts import VERDICTS, Fact, verdict

KIND = "reconciliation"
LIMIT_S = 300
_ROWS = 50_000  # of the database, at once
_HOUR_MS = 3_600_000

LOST_EVENT = "lost_event"
PHANTOM = "phantom"
UNSETTLED = "unsettled"
RECONCILED = {
    LOST_EVENT: "the database committed, and the message was rolled back, never published, or "
    "never begun",
    PHANTOM: "a message was published, and the database rolled back or has never heard of it",
    UNSETTLED: "one of the two has decided, the other not yet",
}
FAIL_ON_RECONCILED = (LOST_EVENT, PHANTOM)


class MarkerError(Exception):
    """The table of markers is not as described."""


class Markers(NamedTuple):
    """The table of markers: one row for each transaction that the database knows. `url`:
    SQLAlchemy's.
    """

    url: str
    table: str = "markers"
    id_column: str = "transaction_id"
    outcome_column: str = "outcome"
    commit_value: str = "commit"
    rollback_value: str = "rollback"


def read_markers(markers: Markers, *, limit_s: int = LIMIT_S) -> pa.Table:
    """Columns transaction_id, marked (commit or rollback). `limit_s`: for each part of the rows.

    Raises MarkerError, NoAnswer, or what SQLAlchemy raises.
    """
    engine = sa.create_engine(markers.url, poolclass=sa.NullPool)
    try:
        _check_file(engine.url)
        batches = within(limit_s, partial(_read_all, engine, markers, limit_s))
    finally:
        engine.dispose()
    return pa.Table.from_batches(batches, schema=_SCHEMA)


def _read_all(
    engine: sa.Engine, markers: Markers, limit_s: int, goes_on: Callable[[], None]
) -> list[pa.RecordBatch]:
    made = []
    for batch in _batches(engine, markers, limit_s):
        made.append(batch)
        goes_on()
    return made


def _check_file(url: sa.URL) -> None:
    """Raise MarkerError where the file of an SQLite database does not exist: to open it makes it,
    and it has no markers.
    """
    if url.get_backend_name() != "sqlite" or url.query.get("uri"):
        return
    if url.database not in (None, "", ":memory:") and not Path(url.database).exists():
        raise MarkerError(f"there is no file {url.database}")


_SCHEMA = pa.schema([("transaction_id", pa.string()), ("marked", pa.string())])


def _batches(engine: sa.Engine, markers: Markers, limit_s: int) -> Iterator[pa.RecordBatch]:
    words = {markers.commit_value: "commit", markers.rollback_value: "rollback"}
    schema, _, name = markers.table.rpartition(".")
    table = sa.table(
        name, sa.column(markers.id_column), sa.column(markers.outcome_column), schema=schema or None
    )
    by_parts = {"yield_per": _ROWS}
    query = sa.select(table.c[markers.id_column], table.c[markers.outcome_column])
    with engine.connect() as connection:
        limit_locks(connection, limit_s)
        for rows in connection.execute(query, execution_options=by_parts).partitions():
            ids = [_id_of(row[0], markers) for row in rows]
            outcomes = [str(row[1]) for row in rows]
            odd = sorted(set(outcomes) - words.keys())
            if odd:
                raise MarkerError(
                    f"{markers.table}.{markers.outcome_column} has {odd[0]!r}, which is none of "
                    f"{', '.join(words)}"
                )
            yield pa.RecordBatch.from_arrays(
                [pa.array(ids), pa.array([words[one] for one in outcomes])], schema=_SCHEMA
            )


def _id_of(value: object, markers: Markers) -> str:
    """The id of a transaction as the log has it. Raises MarkerError: such a value is none there."""
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        has = "a row without an id" if value is None else "bytes, where the log has text"
        raise MarkerError(f"{markers.table}.{markers.id_column} has {has}")
    return str(value)


# --------------------------------------------------------------------------------------------------
# the judgement

_COMMITTED = ("committed_once", "committed_duplicated", "final_missing")
_ROLLED_BACK = ("rolled_back_clean",)


def judge(marked: str | None, proven: str | None, *, decision: str | None = None) -> str | None:
    """The fault, of RECONCILED; None where both agree or nothing can be concluded.

    `proven`: the verdict, None where the log has nothing of it; `decision`: what was decided of one
    that was decided late.
    """
    if proven in ("unverifiable_retention", "op_without_half"):
        return None  # what it was begun with is gone, or was never there: the audit itself says so
    committed = proven in _COMMITTED or (proven == "resolved_late" and decision == "commit")
    rolled_back = proven in _ROLLED_BACK or (proven == "resolved_late" and decision == "rollback")
    is_published = committed or proven == "rolled_back_but_delivered"
    if marked == "commit":
        if committed:
            return LOST_EVENT if proven == "final_missing" else None
        return (
            LOST_EVENT
            if rolled_back or proven is None
            else UNSETTLED
            if proven != "rolled_back_but_delivered"
            else None
        )
    if is_published and proven != "final_missing":
        return PHANTOM
    if marked == "rollback":
        return None if rolled_back or proven is None else UNSETTLED
    return None  # no mark of it, and nothing was published


def run(
    spark: SparkSession,
    log: Log,
    table: pa.Table,
    *,
    producer_groups: Sequence[str] = (),
    split_bytes: int = log_range.SPLIT_BYTES,
    listed: int = LISTED,
) -> dict[str, Any]:
    """The report: what the two say of every transaction that either knows.

    `table`: the markers, as they were read. `producer_groups`: of the transactions in the log only
    those of these groups are compared; all of them if it is empty. Raises NoSuchGroup.
    """
    audit = TransactionAudit(spark, log, Scope(), split_bytes=split_bytes)
    tables = SparkTables(spark, log, split_bytes=split_bytes)
    try:
        transactions, sums = audit.judge()
        lines = spark.table(CheckContext(tables, log).timelines)
        joined = tables.keep(_joined(spark, transactions, lines, table, producer_groups))
        doubled = _doubled(table)
        keys = ("marked", "facts", "decision", "group", "producer_group", "hour_ms", "is_compared")
        counted = joined.groupBy(*keys).count().collect()
        _check_groups(producer_groups, {row["group"] for row in counted})
        found = _counts([row for row in counted if row["is_compared"]], is_whole=log.begin == 0)
        items = _items(joined.where("is_compared"), found.wanted, listed)
    finally:
        tables.release()
        audit.release()
    known = sum(row["count"] for row in counted if row["facts"] is not None)
    marked = sum(row["count"] for row in counted if row["marked"] is not None)
    total = sum(found.kinds[kind] for kind in FAIL_ON_RECONCILED)
    return {
        "kind": KIND,
        "state": "done",
        **({"producer_groups": list(producer_groups)} if producer_groups else {}),
        "transactions": {
            "in_the_log": known,
            "in_the_database": table.num_rows,
            "compared": sum(found.pairs.values()),
        },
        "pairs": {name: found.pairs[name] for name in sorted(found.pairs)},
        "balanced": marked == table.num_rows
        and not doubled
        and known == sum(sums.counts[name] for name in VERDICTS),
        "marked_twice": doubled,
        "findings": {
            "total": total,
            "by_verdict": {kind: found.kinds[kind] for kind in RECONCILED},
            "items": items,
            "omitted": max(0, sum(found.kinds.values()) - len(items)),
        },
        "by_producer_group_and_hour": [
            {"producer_group": group, "hour_ms": hour, **kinds}
            for (group, hour), kinds in sorted(found.by_group.items())
        ],
        "log": {"begin": log.begin, "end": log.end},
        "engine": f"spark {spark.version}",
    }


def _joined(
    spark: SparkSession,
    transactions: DataFrame,
    timelines: DataFrame,
    table: pa.Table,
    producer_groups: Sequence[str],
) -> DataFrame:
    """One row for each transaction that the log or the database knows: marked, facts, decision,
    where and when it began, and whether it is compared.

    A marker is joined before transactions of other groups are excluded: otherwise the marker of
    such a transaction would be a lost event.
    """
    c = F.col
    ours = transactions.where(c("transaction_id").isNotNull()).select(
        "transaction_id", "facts", "first_offset", "group"
    )
    lines = timelines.select("transaction_id", "producer_group", "begun_ms", "decision")
    proven = ours.join(lines, "transaction_id", "left")
    marked = spark.createDataFrame(table)
    hour_ms = c("begun_ms") - c("begun_ms") % _HOUR_MS
    is_compared = F.lit(True)
    if producer_groups:
        hashes = [hash_of(name) for name in producer_groups]
        is_compared = c("facts").isNull() | F.coalesce(c("group").isin(hashes), F.lit(False))
    return proven.join(marked, "transaction_id", "full").withColumns(
        {"hour_ms": hour_ms, "is_compared": is_compared}
    )


def _check_groups(producer_groups: Sequence[str], known: set[int | None]) -> None:
    unknown = [name for name in producer_groups if hash_of(name) not in known]
    if unknown:
        raise NoSuchGroup(f"no transaction in the log is of {', '.join(unknown)}")


def _doubled(table: pa.Table) -> int:
    distinct = len(table.column("transaction_id").unique())
    return int(table.num_rows - distinct)


class _Counts(NamedTuple):
    kinds: Counter[str]
    pairs: Counter[str]  # "commit / committed_once"
    by_group: dict[tuple[str, int], dict[str, int]]
    # (marked, facts, decision) of what is found
    wanted: dict[tuple[str | None, int | None, str | None], str]


def _counts(rows: list[Any], *, is_whole: bool) -> _Counts:
    found = _Counts(Counter(), Counter(), {}, {})
    for row in rows:
        proven = None if row["facts"] is None else verdict(Fact(row["facts"]))
        found.pairs[f"{row['marked'] or 'unmarked'} / {proven or 'not in the log'}"] += row["count"]
        if proven is None and not is_whole:
            continue  # it may have been begun, and decided, before the log begins
        kind = judge(row["marked"], proven, decision=row["decision"])
        if kind is None:
            continue
        found.kinds[kind] += row["count"]
        found.wanted[row["marked"], row["facts"], row["decision"]] = kind
        of_hour = found.by_group.setdefault((row["producer_group"] or "", row["hour_ms"] or 0), {})
        of_hour[kind] = of_hour.get(kind, 0) + row["count"]
    return found


def _items(
    joined: DataFrame, wanted: Mapping[tuple[str | None, int | None, str | None], str], listed: int
) -> list[dict[str, Any]]:
    if not wanted:
        return []
    rows = joined.sparkSession.createDataFrame(
        [(*key, kind) for key, kind in wanted.items()],
        "marked string, facts bigint, decision string, kind string",
    )
    one, of = joined.alias("one"), F.broadcast(rows.alias("of"))
    same = F.lit(True)
    for name in ("marked", "facts", "decision"):
        same &= F.col(f"one.{name}").eqNullSafe(F.col(f"of.{name}"))
    picked = (
        one.join(of, same)
        .select("kind", "one.*")
        .orderBy("first_offset", "transaction_id")
        .limit(listed)
        .collect()
    )
    return [_item(row) for row in picked]


def _item(row: Any) -> dict[str, Any]:
    made = {
        "verdict": row["kind"],
        "transaction_id": row["transaction_id"],
        "database": row["marked"],
        "log": None if row["facts"] is None else verdict(Fact(row["facts"])),
        "producer_group": row["producer_group"],
        "begun_ms": row["begun_ms"],
        "log_offset": row["first_offset"],
    }
    return {name: value for name, value in made.items() if value is not None}
