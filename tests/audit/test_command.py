"""`escrowmq audit run` as a person or a job runs it: its exit status says what was found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from audit.java import fits, parse_version
from tests.support.planted import FLAGGED, plant

ESCROWMQ = Path(sys.executable).with_name("escrowmq")


def audit(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ESCROWMQ, "audit", "run", *options], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.xdist_group("spark")
def test_a_run_with_findings_ends_with_1_and_writes_its_report(tmp_path):
    _, truth = plant(tmp_path / "store", times=1)

    done = audit("--log", "store", "--json", "report.json", "--master", "local[2]", cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["begun"] == len(truth)
    assert report["balanced"] is True
    assert report["findings"]["total"] == sum(report["findings"]["by_verdict"].values()) > len(FLAGGED)
    assert (report["run"]["exit_status"], report["run"]["log"]) == (1, "store")
    assert f"{len(truth)} transactions" in done.stdout
    assert "rolled_back_but_delivered" in done.stdout
    assert "WARN" not in done.stderr, "Java and Spark speak into their own file"


def test_where_there_is_no_log_it_ends_with_3_and_says_so(tmp_path):
    done = audit("--log", "nowhere", cwd=tmp_path)

    assert done.returncode == 3
    assert "nowhere has no segments of a log" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--log", ".", "--fail-on", "everything"), ("--log", ".", "--from", "yesterday")])
def test_wrong_usage_ends_with_2(tmp_path, options):
    assert audit(*options, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("text", "version", "is_fit"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15), True),
        ('openjdk version "21" 2023-09-19', (21, 0, 0), True),
        ('openjdk version "25.0.2" 2026-01-20', (25, 0, 2), False),  # its collector damages data
        ('openjdk version "25.0.3" 2026-04-21', (25, 0, 3), True),
        ('java version "1.8.0_402"', (1, 8, 0), False),
        ('openjdk version "11.0.22" 2024-01-16', (11, 0, 22), False),
    ],
)
def test_spark_is_given_a_java_that_it_runs_on(text, version, is_fit):
    assert parse_version(text) == version
    assert fits(version) is is_fit
