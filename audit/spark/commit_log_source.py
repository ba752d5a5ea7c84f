"""Spark data source `commitlog`: the records of a log as rows (audit/columns.py), decoded by numpy,
handed over as Arrow.

    spark.read.format("commitlog").option("path", "/data/store").schema("kind string, topic
    string").load()

Options:
    path             a store's folder (the one that holds commitlog/), or one that holds the
                     segments; a path, or a URI that
                     pyarrow knows (s3://, hdfs://, gs://, file://)
    archive          a folder that has what retention has dropped there (audit/log/merged_log.py)
    splitMB          how much of a segment one task reads (64)
    startOffset      log offsets: read from the first unit at or behind it,
    endOffset        and up to the first unit at or behind it (up to where the log is on disk)
    reached          of a stream: the border at which an earlier one has ended; what is behind it
                     and is gone is `missing`
    maxBytesPerTrigger  of a stream: how much of the log one batch reads, to the next border of a
                        unit
    pushdown         "true" where spark.sql.python.filterPushdown.enabled is on, which it is not by
                     default; Spark
                     refuses a reader that can take filters while it is off
    log              the log as an earlier look found it (`encode_log`): so that several reads mean
                     the same bytes

Ask for columns by a schema: those that are not named cost nothing. What is damaged comes as rows of
kind `damaged`; a row is never left out in silence. Every byte of the log is in one row,
`record_bytes` of all rows add up to the length of the log.
"""

import base64
import pickle
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from audit import arrow_columns, columns
from audit.log import log_range, log_rows
from audit.log.log_range import Log, Part, Span
from audit.log.store_metadata import StoreMetadata

NAME = "commitlog"


def encode_log(log: Log) -> str:
    """The log as an option of a read, which does not need the figures that the store states."""
    read = log._replace(folder=log.folder._replace(metadata=StoreMetadata()))
    return base64.b64encode(pickle.dumps(read)).decode("ascii")


def log_of(options: MutableMapping[str, str]) -> Log:
    """Raises LogNotFound."""
    known = options.get("log")
    if known is not None:
        log: Log = pickle.loads(base64.b64decode(known))  # noqa: S301 - our own, a moment ago
        return log
    return log_range.find_log(
        _where(options), begin=_number(options, "startoffset"), end=_number(options, "endoffset")
    )


class CommitLogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.schema_text()

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_columns(schema)
        kind = (
            FilteringReader
            if self.options.get("pushdown", "").lower() == "true"
            else CommitLogReader
        )
        return kind(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        _check_columns(schema)
        return CommitLogStream(dict(self.options), schema)


@dataclass
class LogPartition(InputPartition):
    span: Span
    part: Part


class CommitLogReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        log = log_of(self._options)
        found = log_range.parts(log, split_bytes=_split_bytes(self._options))
        return [LogPartition(log.span, part) for part in found if may_match(part, self._filters)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return  # of a log without a byte: Spark asks for one partition all the same
        yield from _rows(partition, self._schema, self._filters)


class CommitLogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows.

    An offset is a log offset, and a border of units: what is read up to one is read on from there.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        reached = _number(self._options, "reached")
        if reached is not None:
            return {"offset": reached}
        log = log_range.find_log(_where(self._options))
        asked = _number(self._options, "startoffset")
        return {"offset": log.begin if asked is None else log_range.border_at(log, asked)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = _number(self._options, "maxbytespertrigger")
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = log_range.find_log(_where(self._options)).limit

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        log = log_range.find_log(_where(self._options))
        end = log.limit if self._target is None else min(self._target, log.limit)
        if isinstance(limit, ReadMaxBytes):
            end = min(end, log_range.border_at(log, start["offset"] + limit.max_bytes))
        return {"offset": max(start["offset"], end)}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": log_range.find_log(_where(self._options)).limit}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        log = log_range.find_log(_where(self._options))._replace(
            begin=start["offset"], end=end["offset"]
        )
        return [
            LogPartition(log.span, part)
            for part in log_range.parts(log, split_bytes=_split_bytes(self._options))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):
            yield from _rows(partition, self._schema)


class FilteringReader(CommitLogReader):
    """Takes filters that spare whole parts of the log, or rows before Spark sees them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if is_taken(one):
                self._filters.append(one)
            else:
                yield one


def _rows(
    partition: LogPartition, schema: StructType, filters: Sequence[Filter] = ()
) -> Iterator[pa.RecordBatch]:
    """Rows of the partition that match the filters, with the names of the columns as the schema
    writes them.
    """
    asked = to_arrow_schema(schema, timezone="UTC")
    wanted = pa.schema([field.with_name(field.name.lower()) for field in asked])
    for batch in log_rows.rows(
        partition.span, partition.part, _with_filter_columns(wanted, filters)
    ):
        kept = _matching(batch, filters)
        if kept.num_rows:
            found = kept.select(wanted.names)
            yield found if asked.names == wanted.names else found.rename_columns(asked.names)


def _check_columns(schema: StructType) -> None:
    """Raise ValueError for columns that a log does not have. As in Spark's SQL, case does not
    matter.
    """
    unknown = [name for name in schema.names if name.lower() not in columns.COLUMNS]
    if unknown:
        raise ValueError(
            f"a log has no column {', '.join(unknown)}; there are {', '.join(columns.COLUMNS)}"
        )


# --------------------------------------------------------------------------------------------------
# filters

_COMPARISONS: dict[type[Filter], Any] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_FILTERED = {
    "log_offset",
    "kind",
    "topic",
    "queue_id",
    "queue_offset",
    "stored_at",
    "born_at",
    "transaction_id",
    "is_commit",
}


def is_taken(one: Filter) -> bool:
    """Can the reader itself see to it?"""
    if not isinstance(one, (In, *_COMPARISONS)):
        return False
    path: tuple[str, ...] = one.attribute  # type: ignore[attr-defined]
    return len(path) == 1 and _column_of(one) in _FILTERED


def _column_of(one: Filter) -> str:
    name: str = one.attribute[0]  # type: ignore[attr-defined]
    return name.lower()


def may_match(part: Part, filters: Iterable[Filter]) -> bool:
    """Can a record that begins in the part have such a log offset?"""
    for one in filters:
        if isinstance(one, In) or _column_of(one) != "log_offset":
            continue
        value = one.value  # type: ignore[attr-defined]
        if (
            isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual)
            and part.end <= value - _REACH
        ):
            return False
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual) and part.begin > value:
            return False
    return True


_REACH = 64 << 20  # a part gives the records of a unit that begins in it, and a unit is shorter


def _with_filter_columns(schema: pa.Schema, filters: Iterable[Filter]) -> pa.Schema:
    asked = {_column_of(one) for one in filters}
    missing = asked - set(schema.names)
    for name in sorted(missing):
        schema = schema.append(arrow_columns.field(name))
    return schema


def _matching(batch: pa.RecordBatch, filters: Iterable[Filter]) -> pa.RecordBatch:
    for one in filters:
        column = batch.column(_column_of(one))
        value = one.value  # type: ignore[attr-defined]
        if isinstance(one, In):
            listed = pa.array([_value(each) for each in value], column.type)
            keep = pc.is_in(column, listed, skip_nulls=True)  # in SQL, null is in no list
        else:
            keep = _COMPARISONS[type(one)](column, pa.scalar(_value(value), column.type))
        batch = batch.filter(keep)
    return batch


def _value(value: Any) -> Any:
    """A time without a zone is one of the session's, which is UTC."""
    return (
        value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
    )


def _where(options: MutableMapping[str, str]) -> str | list[str]:
    path, archive = options.get("path"), options.get("archive")
    if not path:
        raise ValueError("the option path is missing: the folder of a store, or of segments")
    return path if archive is None else [archive, path]


def _split_bytes(options: MutableMapping[str, str]) -> int:
    text = options.get("splitmb", str(log_range.SPLIT_BYTES >> 20))
    try:
        return max(1, int(float(text) * (1 << 20)))
    except (ValueError, OverflowError):
        raise ValueError(f"the option splitMB is a number of MiB, not {text}") from None


def _number(options: MutableMapping[str, str], name: str) -> int | None:
    text = options.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ValueError(f"the option {name} is a whole number, not {text}") from None
