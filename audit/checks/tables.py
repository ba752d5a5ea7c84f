"""The seam between the checks and an engine: tables of a log, asked in the SQL that both Spark and
SQLite evaluate.

Base tables, which each engine makes:

    log_rows            one row for each record and each stretch that is none. Numbers of all; of a
                        message that is in its topic by itself neither ids nor producer group.
                        id_hash: of topic and id of such a message. The JSON of halves and checks
                        as columns: has_facts, max_answers, is_copy; reason, why
    messages_by_id      kind, message_id, topic, due_ms, attempts, reconsume_times, stored_ms of
                        all records
    op_halves           queue_offset: of halves that ops name by their numbers, in a log whose
                        store has the positions of a broker's groups
    lease_events        at, stored_ms, event, group, lease, until_ms, offsets (number of them)
    lease_runs          a row for each run of an event: topic, queue_id, first_offset, messages,
                        said (the last item, as text)
    lease_run_messages  the same for each message of a run: queue_offset
    lease_singles       a row for each message that an event names alone
    lease_positions     a row for each position of an event: topic, queue_id, position
    schedule_marks      a row for each place that a mark names: log_offset, stored_ms, event,
                        to_ms, place
    commits             at, group, topic, queue_id, position
    queue_entries       topic, queue_id, queue_offset, log_offset, record_bytes: of consume queues
    index_entries       file, entry, key_hash, log_offset, is_linked: of the key index
    log_keys            log_offset, key_hash: of each key of each record

Only what both evaluate alike is used: integers, CASE, coalesce, joins on equality or NOT EXISTS,
`row_number`, `lag` and `last` over windows. SQLite is given the functions that it lacks
(`local/connection.py`). All SQL is made of constants of the code and numbers: texts of a log are
values only.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

Row = dict[str, Any]


class Listing(NamedTuple):
    """A query whose rows are findings of one kind, listed in the order of the column `at`."""

    kind: str
    query: str
    at: str


class Listed(NamedTuple):
    kind: str
    total: int
    items: list[Row]  # the first ones


class Tables(Protocol):
    def base(self, name: str) -> str:
        """Name of a base table, which exists from now on."""

    def define(self, name: str, query: str, *, keep: bool = False) -> str:
        """Name of a new table. `keep`: compute it once, as several queries use it."""

    def given(self, name: str, schema: str, rows: Sequence[Sequence[Any]]) -> str:
        """Name of a new table with these rows; `schema` as Spark writes it."""

    def rows(self, query: str) -> list[Row]: ...

    def listed(self, listings: Sequence[Listing], most: int) -> list[Listed]:
        """Evidence of findings: columns without a value are left out.

        At most `most` rows of each kind, and of equal `at` in the order of their JSON. Kinds
        without a row may be missing.
        """

    def rows_at(self, offsets: Iterable[int], names: Sequence[str]) -> dict[int, Row]:
        """The records at these log offsets, where records were found before."""
