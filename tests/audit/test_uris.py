"""Where the files of an audit lie: a path or a URI, of which nobody is shown the secrets."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from audit.files.uris import below, without_secrets
from cli.audit.common import run_part
from cli.common import Exit, in_short


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("s3://key:se/cr/et@bucket/a", "s3://***@bucket/a"),
        (
            "s3://key:secret@bucket/a@b?region=x, /data/a@b",
            "s3://***@bucket/a@b?region=x, /data/a@b",
        ),
        ("Cannot parse 's3://key:a+/b==@bucket'", "Cannot parse 's3://***@bucket'"),
        ("hdfs://user@host:8020/a", "hdfs://***@host:8020/a"),
        ("hdfs://host:8020/a@b s3://bucket/a@b", "hdfs://host:8020/a@b s3://bucket/a@b"),
    ],
)
def test_who_has_the_right_to_a_uri_is_not_shown(text, shown):
    assert without_secrets(text) == shown
    assert in_short(ValueError(text)) == shown
    assert run_part("rpt_1", [text], None, datetime.now(UTC), Exit.CLEAN)["log"] == shown


def test_of_what_a_worker_of_sparks_has_raised_the_reason_alone_is_said():
    error = """Job aborted: Lost task 0.3: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 4327, in invoke_udf
    run_process()
OSError: When resolving region for bucket 'bucket'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:642)"""

    assert in_short(RuntimeError(error)) == "When resolving region for bucket 'bucket'"


def test_of_what_java_has_raised_the_reason_alone_is_said():
    error = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'
\tat org.apache.spark.SparkContext$.org$apache$spark$SparkContext$$createTaskScheduler(SparkContext.scala:3266)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: no route
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 12 more
"""

    assert in_short(RuntimeError(error)) == (
        "Could not parse Master URL: 'local[x]' (SparkException)\nCaused by: no route (IOException)"
    )


def test_where_spark_has_ended_it_is_not_shown_where_it_was_made():
    error = """An error occurred while calling o42.load.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:

org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:59)

The currently active SparkContext was created at:

(No active SparkContext.)
"""

    assert in_short(RuntimeError(error)) == (
        "Cannot call methods on a stopped SparkContext. (IllegalStateException)"
    )


@pytest.mark.parametrize(
    ("uri", "inside"),
    [
        ("rows", "rows/run"),
        ("/data/what?/", "/data/what?/run"),
        ("s3://bucket/rows/", "s3://bucket/rows/run"),
        ("s3://bucket/rows?region=x&scheme=http", "s3://bucket/rows/run?region=x&scheme=http"),
    ],
)
def test_what_lies_in_a_folder_is_named_before_what_else_a_uri_says(uri, inside):
    assert below(uri, "run") == inside


def test_where_nothing_speaks_to_hdfs_it_is_said_what_to_install(tmp_path):
    without = "import sys; sys.modules['hdfs_native'] = None; from cli.main import main; main()"
    arguments = ["audit", "archive", "--log", "hdfs://127.0.0.1:9/store", "--to", "archive"]

    done = subprocess.run(
        [sys.executable, "-c", without, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 3
    assert "the extra `hdfs` of escrowmq" in done.stderr
    assert "Traceback" not in done.stderr
