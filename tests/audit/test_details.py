"""The row of each transaction, and how it went over time: both say what the report says."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from audit.jobs.transaction_audit import Scope, run
from audit.log import log_range
from audit.report import details
from tests.support.planted import plant

pytestmark = pytest.mark.xdist_group("spark")


def test_each_transaction_has_one_row_with_its_verdict_and_they_sum_up_over_time(spark, tmp_path):
    log, truth = plant(tmp_path / "store", times=1)
    wanted = details.Wanted(uri=str(tmp_path / "rows"), run_id="rpt_1", files=1)

    outcome = run(
        spark, str(log.root), Scope(), found=log_range.find_log(str(log.root)), rows=wanted
    )

    rows = pq.read_table(tmp_path / "rows").to_pylist()
    assert {row["transaction_id"]: row["verdict"] for row in rows} == truth
    assert len(rows) == len(truth) == outcome.report["begun"]
    assert {row["run_id"] for row in rows} == {"rpt_1"}
    assert {row["producer_group"] for row in rows if row["producer_group"]} == {"shop", "mailer"}
    for flag, count in outcome.report["flags"].items():
        assert sum(row[flag] for row in rows) == count
    folder = tmp_path / "rows" / "run_id=rpt_1"
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert (manifest["rows"], len(manifest["files"])) == (len(truth), 1)
    assert (folder / "_SUCCESS").exists()
    over = outcome.report["over_time"]
    assert sum((Counter(one["verdicts"]) for one in over["outcomes"]), Counter()) == Counter(
        truth.values()
    )
    decided = [row for row in rows if row["decided_ms"] is not None]
    assert sum(count for _, count in over["decision_ms"]) == len(decided)
    undecided = [row for row in rows if row["verdict"].startswith("undecided")]
    assert sum(group["n"] for group in over["undecided"]) == len(undecided)
    assert sum(count for _, count, _ in over["growth"]) == outcome.report["log"]["records"]
    begun = {row["transaction_id"]: row["begun_ms"] for row in rows}
    assert (
        over["outcomes"][0]["at_ms"]
        <= min(begun.values())
        < over["outcomes"][0]["at_ms"] + over["interval_ms"]
    )
