"""The input of the checks (tables of the log, made when a check first needs them) and their
findings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from audit import columns
from audit.checks import leases, queue_sums, timelines
from audit.checks.queue_sums import QueueSums
from audit.checks.sql import begins, behind, one_of
from audit.checks.tables import Listing, Row, Tables
from audit.columns import DEAD_LETTER, DELAYED, DELAYED_AGAIN, RETRY
from audit.log import brokers
from audit.log.log_range import Log
from storage.formats import inner_batch, names
from storage.formats.consumer_offsets import GroupQueue

LISTED = 1_000  # findings of a kind


@dataclass
class Found:
    """The findings of one check: numbers for the report, a count a kind, the first items."""

    numbers: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    _asked: list[Listing] = field(default_factory=list)

    def add(self, kind: str, query: str, *, at: str = "log_offset") -> None:
        """Each row is a finding of this kind, its columns the evidence, those without a value left
        out; in the order of `at`.

        They are counted when `settle` is called, all kinds in one job.
        """
        self.counts[kind] = 0
        self._asked.append(Listing(kind, query, at))

    def settle(self, tables: Tables, *, listed: int = LISTED) -> "Found":
        """Count what was added, and list the first of each kind."""
        if self._asked:
            for one in sorted(tables.listed(self._asked, listed)):
                self.counts[one.kind] = one.total
                self.items += [{"verdict": one.kind, **item} for item in one.items]
        self._asked = []
        return self


class CheckContext:
    """Tables, bounds and queries of one log for its checks. A property that is a text is the name
    of a table.
    """

    def __init__(self, tables: Tables, log: Log) -> None:
        self.tables = tables
        self.log = log

    def rows(self, query: str) -> list[Row]:
        return self.tables.rows(query)

    def row(self, query: str) -> Row:
        """The one row of a query."""
        (found,) = self.tables.rows(query)
        return found

    @cached_property
    def records(self) -> str:
        """The rows that are records."""
        is_stretch = f"kind IN {one_of(columns.STRETCHES)}"
        query = f"SELECT * FROM {self.tables.base('log_rows')} WHERE NOT ({is_stretch})"
        return self.tables.define("records", query)

    @cached_property
    def has_brokers_records(self) -> bool:
        return brokers.has_brokers_records(self.log)

    @cached_property
    def asked_before(self) -> int | None:
        """The number of the first half that a broker has not finished; None if no broker states
        it.
        """
        progress = GroupQueue(names.ASKING_GROUP, names.HALF_TOPIC, 0)
        return (self.log.folder.metadata.consumers or {}).get(progress)

    @cached_property
    def queues(self) -> list[QueueSums]:
        """Offsets and counts of each queue in the log."""
        return [QueueSums(**row) for row in self.rows(queue_sums.by_queue(self.records))]

    @cached_property
    def queues_with_inner_batches(self) -> set[tuple[str, int]]:
        """(topic, number) of those with records that take several offsets."""
        rows = self.rows(
            f"SELECT DISTINCT topic, queue_id FROM {self.records} "
            f"WHERE (sys_flag & {inner_batch.FLAG}) != 0"
        )
        return {(row["topic"], row["queue_id"]) for row in rows}

    @cached_property
    def last_stored_ms(self) -> int:
        """The newest time of storage in the log; 0 where it is empty."""
        newest = self.row(f"SELECT max(stored_ms) AS newest FROM {self.records}")["newest"]
        return newest or 0

    @cached_property
    def copies(self) -> str:
        """Messages on their way to a group once more, or among its dead letters: `group`, `origin`,
        `state`, `tries`.

        `state`: waiting, back (in the retry topic) or dead; `origin`: the place of the first
        delivery, or, of a broker's copies, which do not say it, the message's id.
        """
        is_retry = f"kind = '{RETRY}'"
        is_waiting = f"({is_retry} AND NOT {begins('topic', '%RETRY%')})"
        of_group = f"(CASE WHEN {is_waiting} THEN real_topic ELSE topic END)"
        query = f"""
            SELECT CASE WHEN {begins(of_group, "%RETRY%")} THEN {behind(of_group, "%RETRY%")}
                        WHEN {begins(of_group, "%DLQ%")} THEN {behind(of_group, "%DLQ%")}
                        ELSE {of_group} END AS `group`,
                   coalesce(CASE WHEN origin_place IS NOT NULL
                                 THEN concat_ws(' ', retry_topic, origin_place) END,
                            origin_id, message_id) AS origin,
                   CASE WHEN {is_waiting} THEN 'waiting' WHEN {is_retry} THEN 'back' ELSE 'dead' END
                       AS state,
                   coalesce(attempts, reconsume_times) AS tries,
                   topic, queue_id, queue_offset, message_id, log_offset, stored_ms
            FROM {self.records}
            WHERE kind IN {one_of((RETRY, DEAD_LETTER))} AND so_far IS NULL
        """
        return self.tables.define("copies", query, keep=True)

    @cached_property
    def waiting(self) -> str:
        """The messages in delay topics."""
        query = f"""
            SELECT * FROM {self.records}
            WHERE kind IN {one_of((DELAYED, DELAYED_AGAIN))}
               OR (kind = '{RETRY}' AND due_ms IS NOT NULL)
        """
        return self.tables.define("waiting", query)

    @cached_property
    def timelines(self) -> str:
        return self.tables.define("timelines", timelines.timelines(self.records), keep=True)

    @cached_property
    def lease_steps(self) -> str:
        """Lease events of each message, with the event before each (`leases.with_previous`)."""
        steps = leases.of_messages(
            self.tables.base("lease_run_messages"), self.tables.base("lease_singles")
        )
        return self.tables.define("lease_steps", leases.with_previous(steps), keep=True)

    @cached_property
    def skips(self) -> str:
        query = leases.skips(self.tables.base("lease_runs"))
        return self.tables.define("skips", query, keep=True)

    @cached_property
    def resets(self) -> str:
        query = leases.resets(self.tables.base("lease_positions"), self.tables.base("lease_events"))
        return self.tables.define("resets", query, keep=True)


Check = Callable[[CheckContext], Found]
