"""Stands in for `escrowmq audit run` where a test needs a report and not an audit: it writes what
it is told to, at once.

The producer group of the report says what it does: `fails`, `hangs`, anything else is written
about.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# It runs at low priority: on a machine that is busy with other things it may have to wait long.
PATIENCE_SECONDS = 240

GO = "go"

FINDINGS = [
    {"verdict": "final_missing", "transaction_id": "txn_1", "producer_group": "shop",
    "altered": False, "wrong_half": True,
     "undecided_but_published": False, "records_omitted": 0,
     "records": [{"kind": "half", "log_offset": 0, "bytes": 300, "crc": "0a0b0c0d",
     "at": "2026-03-01T00:00:00.000Z",
                  "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queue_id": 0, "queue_offset": 0,
                  "message_id": "msg_1"}]},
    {"verdict": "damaged", "segment": "00000000000000000000", "log_offset": 600, "bytes": 8,
    "reason": "its checksum is wrong"},
    {"verdict": "final_missing", "transaction_id": "=cmd()", "altered": True, "wrong_half": False,
     "undecided_but_published": False, "records": [], "records_omitted": 0},
    {"verdict": "queue_gap", "check": "queues", "log_offset": 700,
     "evidence": {"topic": "orders", "queue_id": 0, "missing": 2}},
]  # fmt: skip

HELD = [
    {"verdict": "undecided_held", "transaction_id": f"txn_held_{number}", "producer_group": "shop",
     "altered": False, "wrong_half": False,
     "undecided_but_published": False, "records": [], "records_omitted": 0}
    for number in range(3)
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs=2)
    parser.add_argument("--json", type=Path)
    for name in ("html", "parquet"):
        parser.add_argument(f"--{name}", type=Path)
    for name in (
        "checks",
        "log",
        "from",
        "to",
        "producer-group",
        "report-id",
        "spark-log",
        "driver-memory",
        "progress",
        "parquet-files",
    ):
        parser.add_argument(f"--{name}")
    parser.add_argument("--end-with-stdin", action="store_true")
    asked = parser.parse_args()
    if asked.producer_group == "hangs":
        sys.stdout.write('{"tasks_done":1,"tasks_known":7}\n')
        sys.stdout.flush()
        asked.json.with_name("pid").write_text(str(os.getpid()))
        sys.stdin.read()  # as --end-with-stdin says: until who started this is gone
        sys.exit(3)
    if asked.producer_group == "waits":
        os.mkfifo(asked.json.with_name(GO))
        asked.json.with_name(GO).read_bytes()  # a named pipe: until the test writes to it
    if asked.producer_group == "fails":
        sys.exit("the log is not there")
    if asked.producer_group != "shop":
        rows = asked.parquet / f"run_id={asked.report_id}"
        rows.mkdir(parents=True)
        (rows / "part-0.snappy.parquet").write_bytes(b"PAR1PAR1")
    if asked.html is not None:
        asked.html.write_text("<html>plots</html>")
    checks = [] if asked.checks == "none" else asked.checks.split(",")
    items = [one for one in FINDINGS if one.get("check") in (None, *checks)]
    report = {
        "kind": "transaction_outcomes",
        "state": "done",
        **({} if asked.producer_group is None else {"producer_group": asked.producer_group}),
        "begun": 3,
        "verdicts": {"committed_once": 1, "final_missing": 2},
        "balanced": True,
        "flags": {"altered": 1, "wrong_half": 1, "undecided_but_published": 0},
        "findings": {"total": len(items), "by_verdict": {"final_missing": 2, "damaged": 1},
        "items": items, "omitted": 0},
        "held": {"items": HELD, "omitted": 0},
        **({"checks": {name: {"findings": {}} for name in checks}} if checks else {}),
        "producer_groups": [{"producer_group": "shop",
        "verdicts": {"committed_once": 1, "final_missing": 2}}],
        "producer_groups_omitted": 0,
        "log": {"begin": 0, "end": 900, "records": 5, "accounted_bytes": 900,
        "damaged_stretches": 1, "damaged_bytes": 8,
                "torn_bytes": 0},
        "segments": {"from": "00000000000000000000", "to": "00000000000000000000",
        "digest": f"sha256:{'0' * 64}"},
        "engine": "spark 4.3.0",
        "run": {"report_id": asked.report_id, "started_at": "2026-03-02T00:00:00.000Z",
                "finished_at": "2026-03-02T00:00:09.000Z", "seconds": 9.0, "exit_status": 1,
                "log": asked.log, "python": "3.11"},
    }  # fmt: skip
    asked.json.write_text(json.dumps(report))
    sys.exit(1)


if __name__ == "__main__":
    main()
