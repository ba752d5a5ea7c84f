"""The audit on a cluster as docs/audit.md says: a master and two workers of Spark's, each a process
of its own.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.spark.java import JavaNotFound, java_home
from tests.support.planted import plant

pytestmark = pytest.mark.faults

BIN = Path(sys.executable).parent
JOB = Path(__file__).parents[2] / "examples" / "audit_job.py"
WORKERS = 2


@pytest.fixture
def environment() -> dict[str, str]:
    try:
        home = java_home()
    except JavaNotFound as missing:
        pytest.skip(str(missing))
    return {
        **os.environ,
        "JAVA_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.fixture
def master(environment, tmp_path) -> Iterator[str]:
    """The URL of a standalone master on loopback that two workers have registered with."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str, until: str) -> str:
        command = [
            BIN / "spark-class",
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *options,
        ]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(until, line):
                return found[0]
        raise AssertionError("".join(said))

    try:
        url = start("master.Master", "--port", "0", until=r"spark://127\.0\.0\.1:\d+")
        for _ in range(WORKERS):
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
            start("worker.Worker", *options, url, until="Successfully registered with master")
        yield url
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_submitted_audit_finds_on_two_workers_what_was_planted(master, environment, tmp_path):
    _, truth = plant(tmp_path / "store", times=1)
    spark = [
        "--master",
        master,
        "--executor-memory",
        "512m",
        "--conf",
        "spark.sql.shuffle.partitions=2",
    ]
    audit = ["audit", "run", "--log", "store", "--json", "report.json", "--quiet"]

    done = subprocess.run(
        [BIN / "spark-submit", *spark, JOB, *audit],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert {name: count for name, count in report["verdicts"].items() if count} == Counter(
        truth.values()
    )
    assert report["balanced"] is True
    executors = list((tmp_path / "work").glob("app-*/*"))
    assert len(executors) == WORKERS


def test_a_submitted_audit_makes_no_page_of_rows_that_its_workers_cannot_write_to_the_drivers_folder(
    master, environment, tmp_path
):
    """Only Spark knows then where it runs."""
    plant(tmp_path / "store", times=1)
    audit = ["audit", "run", "--log", "store", "--html", "report.html", "--quiet"]

    done = subprocess.run(
        [BIN / "spark-submit", "--master", master, "--executor-memory", "512m", JOB, *audit],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    assert "--parquet" in done.stdout, "spark-submit hands on there what its program says"
    assert not (tmp_path / "report.html").exists()
