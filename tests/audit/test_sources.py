"""The log and the queues as Spark sees them: columns, filters, streams."""

import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from audit import columns
from audit.log import consume_queues, log_range
from audit.spark.consume_queue_source import ConsumeQueueReader
from storage.formats import names, queue_entry
from storage.formats.names import HALF_TOPIC
from tests.golden.test_rocketmq_stores import FOLDER as BROKERS
from tests.support import plain_audit
from tests.support.planted import plant


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    log, _ = plant(tmp_path_factory.mktemp("sources") / "store", times=1, segment_bytes=1 << 16)
    return log.root


@pytest.fixture(scope="module")
def broker_store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("broker")
    with tarfile.open(BROKERS / "public-1.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "store"


def log_of(spark, store: Path, *names: str, **options: str):
    reader = spark.read.format("commitlog").option("path", str(store)).options(**options)
    return (reader.schema(columns.schema_text(names)) if names else reader).load()


def test_every_column_comes_with_its_type(spark, broker_store):
    frame = log_of(spark, broker_store)

    rows = frame.orderBy("log_offset").collect()

    assert [field.simpleString() for field in frame.schema] == [
        f"{name}:{kind}" for name, kind in columns.COLUMNS.items()
    ]
    assert len(rows) == 538
    assert rows[0]["topic"] == HALF_TOPIC
    assert rows[0]["body_bytes"] == len(rows[0]["body"])


@pytest.mark.parametrize(
    "condition",
    [
        "kind = 'op' and log_offset >= 20000",
        "kind in ('half', 'held') and log_offset < 90000",
        "stored_at > timestamp'2027-01-15 08:00:00.050' and topic = 'orders'",
        "transaction_id = 'committed.1.0' or kind = 'op'",
        "is_commit and not kind = 'final'",
        "decision is not null and queue_id = 0",
        "topic in ('orders', null) or topic in (null, 'orders')",
        "topic in ('orders', null)",
        "Topic = 'orders' and LOG_OFFSET < 90000",
    ],
)
def test_a_filter_gives_the_same_whether_the_reader_or_spark_applies_it(spark, store, condition):
    wanted = (
        "log_offset",
        "kind",
        "topic",
        "stored_at",
        "transaction_id",
        "is_commit",
        "decision",
        "queue_id",
    )

    by_spark = (
        log_of(spark, store, *wanted)
        .where(condition)
        .select("log_offset")
        .orderBy("log_offset")
        .collect()
    )
    by_reader = log_of(spark, store, *wanted, pushdown="true", splitMB="0.01").where(condition)

    assert by_reader.select("log_offset").orderBy("log_offset").collect() == by_spark
    assert by_spark


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_the_names_of_columns_are_those_of_the_schema_whatever_their_case(spark, store, pushdown):
    names = "LOG_OFFSET bigint, Kind string, topic string"
    reader = spark.read.format("commitlog").options(path=str(store), pushdown=pushdown)

    found = reader.schema(names).load().where("kind = 'op' and TOPIC is not null")

    expected = log_of(spark, store, "log_offset", "kind", "topic").where("kind = 'op'")
    assert found.columns == ["LOG_OFFSET", "Kind", "topic"]
    assert sorted(found.collect()) == sorted(expected.collect()) != []


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("kind string, nope string", {}, "a log has no column nope; there are segment, log_offset"),
        ("kind string", {"path": ""}, "the option path is missing"),
        ("kind string", {"splitMB": "big"}, "the option splitMB is a number of MiB, not big"),
        ("kind string", {"startOffset": "1e3"}, "startoffset is a whole number, not 1e3"),
    ],
)
def test_a_read_that_cannot_be_made_says_what_is_wrong_before_any_task(
    spark, store, schema, options, reason
):
    reader = spark.read.format("commitlog").options(**{"path": str(store), **options})

    with pytest.raises(AnalysisException, match=reason):
        reader.schema(schema).load().collect()


def test_a_stretch_of_the_log_can_be_read(spark, store):
    whole = [
        row.log_offset for row in log_of(spark, store, "log_offset").orderBy("log_offset").collect()
    ]

    some = log_of(
        spark, store, "log_offset", startOffset=str(whole[10]), endOffset=str(whole[200])
    ).collect()

    log = log_range.find_log(str(store), begin=whole[10], end=whole[200])
    assert sorted(row.log_offset for row in some) == [
        offset for offset in whole if log.begin <= offset < log.end
    ]
    assert len(some) > 100


def test_a_stream_in_small_batches_gives_every_row_once_and_ends(spark, store, tmp_path):
    batches: list[list[int]] = []

    def keep(frame, _) -> None:
        batches.append([row.log_offset for row in frame.collect()])

    stream = (
        spark.readStream.format("commitlog")
        .option("path", str(store))
        .option("maxBytesPerTrigger", "25000")
    )
    query = (
        stream.schema("log_offset bigint, kind string")
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)

    read = plain_audit.read_log(store / "commitlog", end=log_range.find_log(str(store)).end)
    fillers = len(list((store / "commitlog").iterdir())) - 1
    rows = [offset for batch in batches for offset in batch]
    assert len(batches) > 3
    assert len(rows) == len(set(rows)) == len(read.messages) + fillers
    assert {message.log_offset for message in read.messages} < set(rows)


def test_the_entries_of_consume_queues_are_rows_of_their_own(spark, broker_store):
    found = spark.read.format("consumequeue").option("path", str(broker_store)).load().collect()

    expected = []
    for file in consume_queues.queue_files(str(broker_store)):
        for number, entry in enumerate(queue_entry.decode_all(Path(file.path).read_bytes())):
            if entry.record_bytes:
                expected.append((file.topic, file.queue_id, file.first_entry + number, *entry))
    assert sorted(tuple(row) for row in found) == sorted(expected)
    assert len({(topic, queue_id) for topic, queue_id, *_ in expected}) > 10


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_holes_of_a_queue_file_are_not_read_and_entries_beside_them_are(tmp_path, scheme):
    """No machine has the memory for this file, nor the time."""
    folder = tmp_path / "consumequeue" / "orders" / "0"
    folder.mkdir(parents=True)
    far = (1 << 40) // queue_entry.ENTRY_BYTES
    # Those at the ends of a block of the disk are partly in the next one.
    numbers = [0, 1, 204, 205, far, far + 204, far + 250]
    with (folder / names.file_name(0)).open("wb") as file:
        for number in numbers:
            file.seek(number * queue_entry.ENTRY_BYTES)
            file.write(queue_entry.encode(1_000 + number, 100 + number % 7, -number))
        file.truncate(1 << 41)
    store = f"{scheme}{tmp_path}"
    (found,) = consume_queues.queue_files(store)

    entries = consume_queues.entries(store, found)

    assert entries["queue_offset"].tolist() == numbers
    assert entries["log_offset"].tolist() == [1_000 + number for number in numbers]
    assert entries["record_bytes"].tolist() == [100 + number % 7 for number in numbers]
    assert entries["tag_hash"].tolist() == [-number for number in numbers]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_queues_with_few_messages_are_one_task_and_one_batch_however_many_they_are(
    spark, tmp_path, scheme
):
    """Each has a file for 300,000 entries, which is a hole behind the first block."""
    queues = [(f"orders-{number}", queue_id) for number in range(500) for queue_id in (0, 1)]
    for at, (topic, queue_id) in enumerate(queues):
        folder = tmp_path / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True)
        with (folder / names.file_name(0)).open("wb") as file:
            file.write(queue_entry.encode(1_000 + at, 100, 0))
            file.write(queue_entry.encode(9_000 + at, 200, at))
            file.truncate(300_000 * queue_entry.ENTRY_BYTES)
    store = f"{scheme}{tmp_path}"

    frame = spark.read.format("consumequeue").option("path", store).load()

    reader = ConsumeQueueReader(store, frame.schema)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert frame.rdd.getNumPartitions() == 1
    assert batch.num_rows == 2 * len(queues)
    assert sorted(tuple(row) for row in frame.collect()) == sorted(
        (topic, queue_id, offset, *entry)
        for at, (topic, queue_id) in enumerate(queues)
        for offset, entry in enumerate([(1_000 + at, 100, 0), (9_000 + at, 200, at)])
    )


def test_files_of_long_queues_are_tasks_of_64_mib_and_batches_of_some_files(spark, tmp_path):
    entries = 10_000
    for queue_id in range(6):
        folder = tmp_path / "consumequeue" / "orders" / str(queue_id)
        folder.mkdir(parents=True)
        with (folder / names.file_name(0)).open("wb") as file:
            file.write(b"".join(queue_entry.encode(at, 100, 0) for at in range(entries)))
            file.flush()
            os.posix_fallocate(file.fileno(), 0, 30 << 20)

    frame = spark.read.format("consumequeue").option("path", str(tmp_path)).load()

    reader = ConsumeQueueReader(str(tmp_path), frame.schema)
    tasks = reader.partitions()
    assert [[file.queue_id for file in task.files] for task in tasks] == [[0, 1], [2, 3], [4, 5]]
    assert [[batch.num_rows for batch in reader.read(task)] for task in tasks] == [
        [2 * entries]
    ] * 3
    assert frame.count() == 6 * entries


def test_times_are_the_ones_that_are_stored_whatever_zone_the_machine_is_in(spark, store):
    (row,) = (
        log_of(spark, store, "log_offset", "stored_at")
        .where("log_offset = 0")
        .selectExpr("unix_millis(stored_at) at")
        .collect()
    )

    assert datetime.fromtimestamp(row.at / 1000, UTC) == datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
