"""The report of an audit of outcomes, from the sums of either engine."""

from collections.abc import Callable, Sequence
from typing import Any

from audit.errors import SegmentsDropped
from audit.findings import present, time_of
from audit.log import digest, log_range
from audit.log.log_files import Segment
from audit.log.log_range import Log
from audit.rules import ms_of
from audit.scope import Outcome, Scope
from audit.sums import Sums
from audit.verdicts import DAMAGED, FLAGS, HELD, VERDICTS
from storage.formats import names

KIND = "transaction_outcomes"
_BEGINNINGS = 3  # of one audit, where retention takes away what it reads


def while_segments_go(
    where: str | Sequence[str], found: Log, audit: Callable[[Log], Outcome]
) -> Outcome:
    """The outcome of the log as it was `found`.

    A service may drop segments meanwhile. Where that is why the audit fails, it begins once more
    with those that are left. Raises SegmentsDropped, from the last failure, where that does not
    help.
    """
    for _ in range(_BEGINNINGS):
        try:
            return audit(found)
        except Exception as error:
            failure, now = error, log_range.find_log(where)
            if set(found.folder.segments) <= set(now.folder.segments):
                raise
            found = now
    raise SegmentsDropped(
        f"{_BEGINNINGS} times in a row retention dropped segments that were still to be read: "
        "audit a copy (`escrowmq audit archive`), or keep messages for longer"
    ) from failure


def of_sums(
    log: Log,
    scope: Scope,
    sums: Sums,
    found: list[dict[str, Any]],
    wanted: Sequence[str],
    *,
    held: list[dict[str, Any]],
    engine: str,
    digests: digest.Digests,
) -> dict[str, Any]:
    """`found`: the findings that are listed, of the kinds that are `wanted`; `held`: the held
    transactions that are listed.
    """
    read = [
        one
        for one in log.folder.segments
        if one.base_offset < log.end and one.end_offset > log.begin
    ]
    total = sum(sums.counts[name] for name in wanted)
    has_one_verdict = sum(sums.counts[name] for name in VERDICTS) == sums.begun
    asked = {
        "from": None if scope.begun_from is None else time_of(ms_of(scope.begun_from)),
        "to": None if scope.begun_to is None else time_of(ms_of(scope.begun_to)),
        "producer_group": scope.producer_group,
    }
    return {
        "kind": KIND,
        "state": "done",
        **present(asked),
        "begun": sums.begun,
        "verdicts": {name: sums.counts[name] for name in VERDICTS},
        "balanced": has_one_verdict and sums.bytes == log.end - log.begin,
        "flags": {name: sums.counts[name] for name in FLAGS},
        "findings": {
            "total": total,
            "by_verdict": {name: sums.counts[name] for name in wanted if sums.counts[name]},
            "items": found,
            "omitted": max(0, total - len(found)),
        },
        "held": {"items": held, "omitted": max(0, sums.counts[HELD] - len(held))},
        "producer_groups": [
            present({"producer_group": name, "verdicts": verdicts})
            for name, verdicts in sums.by_group
        ],
        "producer_groups_omitted": sums.groups_omitted,
        "log": {
            "begin": log.begin,
            "end": log.end,
            "records": sums.records,
            "accounted_bytes": sums.bytes,
            "damaged_stretches": sums.counts[DAMAGED],
            "damaged_bytes": sums.damaged_bytes,
            "torn_bytes": log.torn_bytes,
            **({} if log.folder.dropped is None else {"dropped": log.folder.dropped._asdict()}),
            **_compacted(read),
        },
        "segments": {
            **(
                {
                    "from": names.file_name(read[0].base_offset),
                    "to": names.file_name(read[-1].base_offset),
                }
                if read
                else {}
            ),
            "digest": digest.chain(log, digests),
        },
        "engine": engine,
    }


def _compacted(segments: Sequence[Segment]) -> dict[str, Any]:
    """Report entry on compacted segments, whose checksums cannot be checked."""
    rows = [one for one in segments if one.is_compacted]
    if not rows:
        return {}
    found = {
        "segments": len(rows),
        "bytes": sum(one.size for one in rows),
        "checksums": "not checked",
    }
    return {"compacted": found}
