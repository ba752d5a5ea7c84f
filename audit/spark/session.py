"""A Spark session for audits: quiet, on loopback unless it is a cluster's, with the sources
registered.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from audit.files.parquet_folder import ParquetFolderSource
from audit.spark.commit_log_source import CommitLogSource
from audit.spark.consume_queue_source import ConsumeQueueSource
from audit.spark.java import java_home
from audit.spark.key_index_source import KeyIndexSource

_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Batches of the reader are the batches that the JVM takes; its own vector size is for columns
    # that it makes itself.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.python.daemon.module": "audit.spark.worker_daemon",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "{cores}",
}
# What Java gains by compiling well is less than the time that this takes: a run over a short log is
# mostly planning.
_SHORT_LOG_BYTES = 256 << 20
# before what a user has set
_SHORT_LOG_SETTINGS = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}


@contextmanager
def session(
    master: str | None,
    *,
    log: Path,
    to_read_bytes: int | None = None,
    settings: Mapping[str, str] | None = None,
    name: str = "escrowmq audit",
) -> Iterator[SparkSession]:
    """A session that ends with the block. What Java and Spark have to say goes to the file `log`.

    Without a `master` it is the one given to spark-submit, or local[*]. `to_read_bytes`: how much
    the session is for, where that is known. `settings` win over ours. Raises JavaNotFound.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, whose Java runs already
    is_local = master.startswith("local") if master is not None else not is_submitted
    if not is_submitted:
        os.environ["JAVA_HOME"] = java_home()
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else Spark starts its workers with the first python3 of the PATH, and they must find this
    # room.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    # Spark starts them with `-m`, by which the working directory would come first.
    os.environ["PYTHONSAFEPATH"] = "1"
    builder = SparkSession.builder.appName(name)
    if master is not None or is_local:
        builder = builder.master(master or "local[*]")
    is_short = to_read_bytes is not None and to_read_bytes < _SHORT_LOG_BYTES
    all_settings = {**_settings(is_local=is_local, is_short=is_short), **(settings or {})}
    for key, value in all_settings.items():
        builder = builder.config(key, value)
    conf = SparkConf().setAppName(name).setAll(list(all_settings.items()))
    if master is not None or is_local:
        conf.setMaster(master or "local[*]")
    with _stderr_into(log):
        with _own_handler_of_sigint():  # the session takes seconds more
            _start(conf, is_standalone=master is not None and master.startswith("spark://"))
        spark = builder.getOrCreate()
    try:
        for source in (CommitLogSource, ConsumeQueueSource, KeyIndexSource, ParquetFolderSource):
            spark.dataSource.register(source)
        yield spark
    finally:
        spark.stop()


def _start(conf: SparkConf, *, is_standalone: bool) -> None:
    """Start Java and Spark. Let a standalone cluster's workers reach S3 with the credentials of
    this process.

    A setting is visible among the machine's processes, as an option of Java's. These values are
    not: Java runs by then.
    """
    _start_java(conf)
    if not is_standalone:
        SparkContext.getOrCreate(conf)
        return
    SparkContext(
        conf=conf,
        environment={key: value for key, value in os.environ.items() if key.startswith("AWS_")},
    )


def _start_java(conf: SparkConf) -> None:
    """Start the Java of all sessions of this process, unless it runs.

    Once Java has said its port, it ends with this process. A stop (Ctrl-C) before that would leave
    it behind: pyspark removes the folder in which Java is to say it, and Java then waits for a
    caller for ever. So a thread starts Java, and a stop waits for the thread, two seconds or three.
    """
    with ThreadPoolExecutor(1) as starter:
        starter.submit(SparkContext._ensure_initialized, conf=conf).result()


def _settings(*, is_local: bool, is_short: bool) -> dict[str, str]:
    if not is_local:
        return _SETTINGS
    cores = os.cpu_count() or 1
    local = {key: value.format(cores=cores) for key, value in _LOCAL_SETTINGS.items()}
    return {**_SETTINGS, **local, **(_SHORT_LOG_SETTINGS if is_short else {})}


@contextmanager
def _own_handler_of_sigint() -> Iterator[None]:
    """Keep this process's handler. Spark's own one calls Java from inside a call of Java, which
    fails with a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if kept is not None:  # of another language
            signal.signal(signal.SIGINT, kept)


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Start the JVM with this file as its standard error; that of this process is restored."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """(done, known) of the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [
        found
        for number in tracker.getActiveStageIds()
        if (found := tracker.getStageInfo(number)) is not None
    ]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
