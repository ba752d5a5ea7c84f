"""Messages that were stored or delivered more than once, and why.

A broker's producer that hears no answer sends again, and a second record with the same id is in the
topic: that is counted. The messages of a batch have one id, too, but are in one queue with one
time. This service makes the ids itself: a producer that sends again gets another id, or the receipt
of the first send, so equal ids mean that this service stored a message twice. What has waited, and
what came out of a transaction, is judged elsewhere (`delays.py`, the verdicts).

The leases of each group record the deliveries. At least once is what is promised, so a message that
comes again is no fault: its lease ended, its consumer refused it or gave it back unprocessed, or
the group was reset, or a dead letter was sent again. It is a fault where it had been settled, or
another lease held it; and where the group had passed over the message by its own rules, which it
does with none that it was ever given. What is pulled leaves no trace in the log, and is not judged.
"""

from typing import Any

from audit.checks import leases
from audit.checks.check_context import CheckContext, Found
from audit.checks.leases import MESSAGE, SETTLED
from audit.checks.sql import one_of

_NAMED = 100  # ids that are looked up in the log, one by one
_IS_SETTLED = f"previous IN {one_of(SETTLED)}"
_CAUSES = {
    "expired": "lease_ended",
    "leased": "lease_ended",
    "returned": "refused",
    "released": "given_back",
}


def check(context: CheckContext) -> Found:
    found = Found()
    _look_for_repeats(context, found)
    handed = f"SELECT * FROM {context.lease_steps} WHERE event = 'leased'"
    settled = leases.without_reset(
        f"{handed} AND {_IS_SETTLED}", context.resets, since="previous_at"
    )
    twice = leases.without_reset(
        f"{handed} AND previous = 'leased' AND stored_ms < held_until_ms",
        context.resets,
        since="previous_at",
    )
    skipped = leases.without_reset(
        leases.skipped_before(handed, context.skips), context.resets, since="skipped_at"
    )
    place = f"{MESSAGE}, lease, attempt, at AS log_offset"
    evidence = f"{place}, previous, previous_at AS previous_log_offset"
    found.add("handed_out_after_settled", f"SELECT {evidence} FROM ({settled}) AS f")
    found.add("handed_out_twice", f"SELECT {evidence}, held_until_ms FROM ({twice}) AS f")
    found.add(
        "handed_out_though_skipped",
        f"SELECT {place}, skipped_at AS skipped_log_offset FROM ({skipped}) AS f",
    )
    found.numbers = {"groups": _by_group(context)}
    return found


def _look_for_repeats(context: CheckContext, found: Found) -> None:
    """Places of an id, by queue and time: a batch counts once."""
    identified = f"{context.tables.base('log_rows')} WHERE id_hash IS NOT NULL"
    several = context.tables.define(
        "repeated",
        f"""
            SELECT min(topic) AS topic,
                   count(DISTINCT concat_ws(' ', queue_id, stored_ms)) AS times,
                   min(log_offset) AS first_log_offset, max(log_offset) AS log_offset
            FROM {identified} AND id_hash IN (
                SELECT id_hash FROM {identified} GROUP BY id_hash
                HAVING min(queue_id) < max(queue_id) OR min(stored_ms) < max(stored_ms)
            )
            GROUP BY id_hash
        """,
        keep=True,
    )
    kind = "sent_twice" if context.has_brokers_records else "stored_twice"
    total = context.row(f"SELECT count(1) AS number FROM {several}")["number"]
    found.counts |= {"sent_twice": 0, "stored_twice": 0, kind: total}
    rows = context.rows(f"SELECT * FROM {several} ORDER BY log_offset LIMIT {_NAMED}")
    ids = context.tables.rows_at([row["log_offset"] for row in rows], ["message_id"])
    found.items += [
        {"verdict": kind, "message_id": ids[row["log_offset"]]["message_id"], **row} for row in rows
    ]


def _by_group(context: CheckContext) -> list[dict[str, Any]]:
    """Numbers of messages delivered, and delivered again by cause; and of messages skipped, by
    rule.
    """
    base = context.tables.base
    groups: dict[str, dict[str, Any]] = {}
    totals = context.rows(f"""
        SELECT `group`, count(1) AS handed_out, count(previous) AS again
        FROM {context.lease_steps} WHERE event = 'leased' GROUP BY `group` ORDER BY `group`
    """)
    for row in totals:
        groups[row["group"]] = {**row, "causes": {}}
    named = " ".join(
        f"WHEN previous = '{before}' THEN '{cause}'" for before, cause in _CAUSES.items()
    )
    # A message that comes by the retry topic is another place, leased there for the first time.
    causes = context.rows(f"""
        SELECT `group`, CASE WHEN {_IS_SETTLED} THEN 'reset' {named} END AS cause,
               count(1) AS number
        FROM {context.lease_steps} WHERE event = 'leased' AND previous IS NOT NULL GROUP BY 1, 2
        UNION ALL
        SELECT `group`, 'put_off' AS cause, sum(messages) AS number
        FROM {base("lease_runs")} WHERE event = 'retried' GROUP BY `group`
        UNION ALL
        SELECT `group`, 'redriven' AS cause, sum(offsets) AS number
        FROM {base("lease_events")} WHERE event = 'redriven' GROUP BY `group`
        ORDER BY `group`, cause
    """)
    for row in causes:
        _of(groups, row["group"])["causes"][row["cause"]] = row["number"]
    skipped = context.rows(f"""
        SELECT `group`, reason, sum(end_offset - first_offset) AS number
        FROM {context.skips} GROUP BY 1, 2 ORDER BY 1, 2
    """)
    for row in skipped:
        _of(groups, row["group"]).setdefault("skipped", {})[row["reason"]] = row["number"]
    return [groups[name] for name in sorted(groups)]


def _of(groups: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return groups.setdefault(name, {"group": name, "handed_out": 0, "again": 0, "causes": {}})
