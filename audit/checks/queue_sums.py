"""Records of each queue in the log, by one shuffle: first and last offset, and sums that show
whether any is missing.
"""

from typing import NamedTuple

from audit.checks.sql import IS_NUMBERED

PRIME = (1 << 31) - 1  # numbers are summed modulo it, so that no sum overflows


class QueueSums(NamedTuple):
    """`sum`, `squares`: of the offsets and of their squares, each modulo PRIME; `last_at`: log
    offset of the last.
    """

    topic: str
    queue_id: int
    first: int
    last: int
    records: int
    sum: int
    squares: int
    last_at: int


def by_queue(records: str) -> str:
    """The sums of each queue, in the order of names and numbers."""
    offset = f"(queue_offset % {PRIME})"
    return f"""
        SELECT topic, queue_id, min(queue_offset) AS `first`, max(queue_offset) AS `last`,
               count(1) AS records, sum({offset}) AS `sum`,
               sum(({offset} * {offset}) % {PRIME}) AS squares,
               max_by(log_offset, queue_offset) AS last_at
        FROM {records} WHERE {IS_NUMBERED} GROUP BY topic, queue_id ORDER BY topic, queue_id
    """
