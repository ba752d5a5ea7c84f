"""How long did each stage take, by group or topic?

    born_to_stored      from the sender's clock to the log, by topic; clocks differ
    begun_to_decided    of a transaction, by producer group
    stored_to_handed    until a group was handed a message for the first time
    handed_to_settled   from the last lease to the acknowledgement

Times are those of storage, to the millisecond; a log's time never goes back, so one whose clock was
wrong for a while shows zeros.
"""

from typing import Any

from audit import columns, histogram
from audit.checks.check_context import CheckContext, Found

_KEYS = ("producer_group", "group", "topic")


def check(context: CheckContext) -> Found:
    steps, records = context.lease_steps, context.records
    stages = {
        "born_to_stored": (
            {"topic": "topic"},
            "stored_ms - born_ms",
            f"{records} WHERE kind = '{columns.MESSAGE}'",
        ),
        "begun_to_decided": (
            {"producer_group": "producer_group"},
            "decided_ms - begun_ms",
            f"{context.timelines} WHERE decided_ms IS NOT NULL",
        ),
        "stored_to_handed": (
            {"group": "`group`", "topic": "s.topic"},
            "s.stored_ms - r.stored_ms",
            f"{steps} AS s JOIN {records} AS r ON r.topic = s.topic AND r.queue_id = s.queue_id "
            "AND r.queue_offset = s.queue_offset "
            "WHERE s.event = 'leased' AND s.previous IS NULL AND s.attempt = 1",
        ),
        "handed_to_settled": (
            {"group": "`group`"},
            "stored_ms - leased_ms",
            f"{steps} WHERE event = 'acked' AND leased_ms IS NOT NULL",
        ),
    }
    everything = " UNION ALL ".join(
        f"SELECT '{stage}' AS stage, {_keys(keys)}, {ms} AS ms FROM {rows}"
        for stage, (keys, ms, rows) in stages.items()
    )
    found: dict[str, list[dict[str, Any]]] = {stage: [] for stage in stages}
    for of_stage in histogram.by_stage(context.rows, everything, ["stage", *_KEYS]):
        found[of_stage.pop("stage")].append(of_stage)
    return Found(numbers={"stages": found})


def _keys(known: dict[str, str]) -> str:
    return ", ".join(f"{known.get(key, 'NULL')} AS `{key}`" for key in _KEYS)
