"""The tables of the checks (`checks/tables.py`) in SQLite: the log is added, then the checks ask.

All records of the log are rows here, with their bodies left out unless the service noted something
in them.
"""

import heapq
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from audit import columns
from audit.checks.leases import RUNS, SINGLE
from audit.checks.sql import one_of
from audit.checks.tables import Listed, Listing, Row
from audit.decode import plain_rows
from audit.decode.numbers import MOST_MS
from audit.decode.records import Records
from audit.files.local_files import OpenFile
from audit.local import lookup
from audit.log import consume_queues, key_index
from audit.log.log_files import files_of
from audit.log.log_range import Log
from storage.formats import key_scan
from storage.formats.names import LEASE_TOPIC, OFFSET_TOPIC, SCHEDULE_MARK_TOPIC

_OF_STRETCHES = ("segment", "is_verified", "kind", "log_offset", "record_bytes")
_OF_RECORDS = (
    "kind", "log_offset", "record_bytes", "is_verified", "topic", "queue_id", "queue_offset",
    "sys_flag", "stored_ms", "reconsume_times", "is_commit", "message_id", "transaction_id",
    "producer_group", "real_topic", "real_queue_id", "transaction_mark", "schedule_id", "decision",
    "event", "note", "facts", "decided_by", "check_answer", "due_ms", "so_far", "attempts",
    "retry_topic", "origin_id", "origin_place", "check_times",
)  # fmt: skip
_COLUMNS = ("segment", "born_ms", *_OF_RECORDS)
_IS_OF_FEW = f"(kind != '{columns.MESSAGE}' OR schedule_id IS NOT NULL)"
_IS_HALF = f"kind = '{columns.HALF}'"
_IS_CHECK = f"(kind = '{columns.CHECK}' AND json_valid(note))"
_LOG_ROWS = f"""
    SELECT segment, log_offset, record_bytes, kind, is_verified, topic, queue_id, queue_offset,
           sys_flag, stored_ms, born_ms, reconsume_times, is_commit,
           CASE WHEN {_IS_OF_FEW} THEN message_id END AS message_id,
           CASE WHEN {_IS_OF_FEW} THEN transaction_id END AS transaction_id,
           CASE WHEN {_IS_OF_FEW} THEN producer_group END AS producer_group,
           CASE WHEN NOT {_IS_OF_FEW} THEN topic || char(0) || message_id END AS id_hash,
           CASE WHEN {_IS_HALF} THEN real_queue_id END AS real_queue_id,
           CASE WHEN {_IS_HALF} THEN transaction_mark END AS transaction_mark,
           facts IS NOT NULL AS has_facts,
           CASE WHEN json_valid(facts) THEN json_extract(facts, '$.policy.max_answers') END
               AS max_answers,
           coalesce(CASE WHEN json_valid(facts) THEN json_type(facts, '$.so_far') = 'object' END,
                    FALSE) AS is_copy,
           CASE WHEN {_IS_CHECK} THEN json_extract(note, '$.reason') END AS reason,
           CASE WHEN {_IS_CHECK} THEN json_extract(note, '$.why') END AS why,
           real_topic, schedule_id, decision, event, note, decided_by, check_answer, due_ms, so_far,
           attempts, retry_topic, origin_id, origin_place, check_times
    FROM read_rows
"""


def _noted(topic: str) -> str:
    return f"log_rows WHERE topic = '{topic}' AND json_valid(note)"


def _items(name: str) -> str:
    """A row for each item of a list that lease events have."""
    return f"""
        SELECT at, stored_ms, event, `group`, lease, until_ms, value,
               json_extract(value, '$[0]') AS topic, json_extract(value, '$[1]') AS queue_id
        FROM lease_events, json_each(note, '$.{name}')
    """


_QUERIES = {
    "messages_by_id": """
        SELECT kind, message_id, topic, due_ms, attempts, reconsume_times, stored_ms FROM read_rows
    """,
    "lease_events": f"""
        SELECT log_offset AS at, stored_ms, note, json_extract(note, '$.event') AS event,
               json_extract(note, '$.group') AS `group`, json_extract(note, '$.lease') AS lease,
               json_extract(note, '$.until_ms') AS until_ms,
               json_array_length(note, '$.offsets') AS offsets
        FROM {_noted(LEASE_TOPIC)}
    """,
    "lease_runs": f"""
        SELECT at, stored_ms, event, `group`, lease, until_ms, topic, queue_id,
               json_extract(value, '$[2]') AS first_offset,
               json_extract(value, '$[3]') AS messages, json_extract(value, '$[4]') AS said
        FROM ({_items("runs")})
    """,
    "lease_run_messages": f"""
        WITH RECURSIVE each_message AS (
            SELECT *, first_offset AS queue_offset FROM lease_runs
            WHERE event IN {one_of(RUNS)} AND messages > 0
            UNION ALL
            SELECT at, stored_ms, event, `group`, lease, until_ms, topic, queue_id, first_offset,
                   messages, said, queue_offset + 1
            FROM each_message WHERE queue_offset + 1 < first_offset + messages
        )
        SELECT * FROM each_message
    """,
    "lease_singles": f"""
        SELECT at, stored_ms, event, `group`, topic, queue_id,
               json_extract(value, '$[2]') AS queue_offset, json_extract(value, '$[3]') AS lease,
               CASE WHEN event = 'extended' THEN json_extract(value, '$[4]') END AS until_ms
        FROM ({_items("messages")}) WHERE event IN {one_of(SINGLE)}
    """,
    "lease_positions": f"""
        SELECT at, event, `group`, topic, queue_id, json_extract(value, '$[2]') AS position
        FROM ({_items("positions")})
    """,
    "schedule_marks": f"""
        SELECT log_offset, marks.stored_ms, json_extract(note, '$.event') AS event,
               json_extract(note, '$.due_ms') AS to_ms, json_extract(value, '$[1]') AS place
        FROM (SELECT * FROM {_noted(SCHEDULE_MARK_TOPIC)}) AS marks,
             json_each(CASE WHEN json_type(note, '$.entries') = 'array'
                            THEN json_extract(note, '$.entries')
                            ELSE json_array(json_extract(note, '$.entry')) END)
    """,
    "commits": f"""
        SELECT log_offset AS at, json_extract(note, '$.group') AS `group`,
               json_extract(note, '$.topic') AS topic, json_extract(note, '$.queue') AS queue_id,
               json_extract(note, '$.offset') AS position
        FROM {_noted(OFFSET_TOPIC)}
    """,
}
_MADE_OF = {
    "lease_runs": "lease_events",
    "lease_run_messages": "lease_runs",
    "lease_singles": "lease_events",
    "lease_positions": "lease_events",
}
_QUEUE_ENTRY = ("topic", "queue_id", "queue_offset", "log_offset", "record_bytes")
_INDEX_ENTRY = ("file", "entry", "key_hash", "log_offset", "is_linked")


class LocalTables:
    """The tables of one log. `has_keys`: with the keys of its records."""

    def __init__(self, connection: sqlite3.Connection, log: Log, *, has_keys: bool) -> None:
        self._connection = connection
        self._log = log
        self._has_keys = has_keys
        self._create("read_rows", _COLUMNS)
        self._create("log_keys", ("log_offset", "key_hash"))
        self._create("op_halves", ("queue_offset",))
        self.define("log_rows", _LOG_ROWS)
        self._known = {"log_rows", "log_keys", "op_halves"}

    # ----------------------------------------------------------------------------------------------
    # what is added

    def add_records(self, rows: Records, segment: int) -> None:
        """Records of one segment, in log order."""
        count = len(rows)
        born_ms = np.clip(rows.field("born_at").astype(np.int64), -MOST_MS, MOST_MS).tolist()
        made = [plain_rows.column(rows, name) for name in _OF_RECORDS]
        self._insert("read_rows", _COLUMNS, zip([segment] * count, born_ms, *made, strict=True))
        ops = np.flatnonzero(rows.are(columns.OP)).tolist()
        if ops:
            halves = plain_rows.column(rows, "half_offsets")
            named = ((half,) for at in ops for half in halves[at])
            self._insert("op_halves", ("queue_offset",), named)
        if self._has_keys:
            offsets = rows.at + rows.window_offset
            keys = key_scan.keys(rows.window, rows.window_offset, offsets, rows.lengths)
            pairs = zip(keys.log_offsets.tolist(), keys.hashes.tolist(), strict=True)
            self._insert("log_keys", ("log_offset", "key_hash"), pairs)

    def add_stretch(self, kind: str, log_offset: int, length: int, *, segment: int) -> None:
        """A stretch of a segment that is no record."""
        row = (segment, kind == columns.FILLER, kind, log_offset, length)
        self._insert("read_rows", _OF_STRETCHES, [row])

    # ----------------------------------------------------------------------------------------------
    # as the checks ask

    def base(self, name: str) -> str:
        if name in self._known:
            return name
        if name in _MADE_OF:
            self.base(_MADE_OF[name])
        if name == "queue_entries":
            self._create(name, _QUEUE_ENTRY)
            self._insert(name, _QUEUE_ENTRY, self._queue_entries())
        elif name == "index_entries":
            self._create(name, _INDEX_ENTRY)
            self._insert(name, _INDEX_ENTRY, self._index_entries())
        else:
            self.define(name, _QUERIES[name], keep=name == "lease_events")
        self._known.add(name)
        return name

    def define(self, name: str, query: str, *, keep: bool = False) -> str:
        self._connection.execute(f"CREATE {'TABLE' if keep else 'VIEW'} {name} AS {query}")
        return name

    def given(self, name: str, schema: str, rows: Sequence[Sequence[Any]]) -> str:
        names = [column.split()[0] for column in schema.split(",")]
        self._create(name, names)
        self._insert(name, names, rows)
        return name

    def rows(self, query: str) -> list[Row]:
        return list(self._each(query))

    def listed(self, listings: Sequence[Listing], most: int) -> list[Listed]:
        found = []
        for one in listings:
            total = 0

            def items(query: str = one.query) -> Iterator[Row]:
                nonlocal total
                for row in self._each(query):
                    total += 1
                    yield {name: value for name, value in row.items() if value is not None}

            first = heapq.nsmallest(most, items(), key=_place(one.at))
            found.append(Listed(one.kind, total, first))
        return found

    def rows_at(self, offsets: Iterable[int], names: Sequence[str]) -> dict[int, Row]:
        return lookup.rows_at(self._log, offsets, names)

    # ----------------------------------------------------------------------------------------------
    # beside the log

    def _queue_entries(self) -> Iterator[tuple[Any, ...]]:
        for file in consume_queues.queue_files(self._log.uri):
            found = consume_queues.entries(self._log.uri, file)
            numbers = (found[name].tolist() for name in _QUEUE_ENTRY[2:])
            for entry in zip(*numbers, strict=True):
                yield file.topic, file.queue_id, *entry

    def _index_entries(self) -> Iterator[tuple[Any, ...]]:
        files, _ = files_of(self._log.uri)
        for file in key_index.index_files(self._log.uri):
            opened: OpenFile = files.open(file.path)
            try:
                for block in key_index.entries(file, opened):
                    numbers = (block[name].tolist() for name in _INDEX_ENTRY[1:])
                    for entry in zip(*numbers, strict=True):
                        yield file.name, *entry
            finally:
                opened.close()

    def _each(self, query: str) -> Iterator[Row]:
        return (dict(row) for row in self._connection.execute(query))

    def _create(self, name: str, names: Iterable[str]) -> None:
        self._connection.execute(f"CREATE TABLE {name} ({', '.join(names)})")

    def _insert(self, name: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {name} ({', '.join(names)}) VALUES ({marks})"
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")


def _place(at: str) -> Callable[[Row], tuple[int, str]]:
    """The order of findings, as in Spark: by a column, then by their JSON."""
    return lambda row: (row[at], json.dumps(row, ensure_ascii=False, separators=(",", ":")))
