"""C20: stores that were killed, lost power, were torn and spoiled, audited as they lay there before
anybody mended them.

The bytes that the audit takes for the log are those that a start keeps, and its verdicts are those
of the plain checker.
"""

from pathlib import Path
from random import Random

import pytest

from audit.checks.kinds import KINDS
from audit.decode.walk import What
from audit.jobs.transaction_audit import Scope, TransactionAudit
from audit.log import log_range
from audit.log.log_files import LogReader
from audit.spark.java import JavaNotFound
from audit.spark.session import session
from audit.verdicts import Fact, verdict
from storage.errors import CorruptRecord
from storage.files.simulated import SimulatedDisk
from tests.audit.test_checks import checked
from tests.fault import chain
from tests.fault.campaign_size import sized
from tests.fault.chain import Memory
from tests.support import plain_audit
from tests.support.simulation import ROOT, World

pytestmark = pytest.mark.faults

READ = sized(ci=60, full=1_000)  # stores whose records are compared, without Spark
JUDGED = sized(ci=8, full=500)  # stores whose verdicts are
CHECKED = sized(ci=1, full=60)
SPOILED_EACH = 4  # of the stores that are judged, one in so many


def crashed_disk(seed: int) -> tuple[SimulatedDisk, chain.LocalStoreOptions, int]:
    """A disk as some lives have left it, the last of which did not end in order; its store's
    options, and the time.
    """
    randomness = Random(seed)
    memory = Memory(policy=randomness.choice(list(chain.FlushPolicy)))
    append = chain.AppendMode.POOL if seed % 3 == 0 else chain.AppendMode.FILE
    options = chain._options(randomness, memory.policy, append)
    disk = SimulatedDisk()
    wall_ms = 1_800_000_000_000
    for life in range(randomness.randrange(1, 5)):
        world = World(disk, seed * 100 + life, wall_ms=wall_ms)
        disk.cut_after = disk.operations + randomness.randrange(60, 400)
        # a cut may have taken what it begun: none is decided later
        memory = Memory(policy=memory.policy, serial=memory.serial)
        world.run(chain.live(world, options, memory, closes=False, rounds=12))
        wall_ms = world.clock.wall_ms() + 1
        world.end()
        disk = disk.after_power_cut(randomness) if randomness.random() < 0.7 else disk.after_kill()
    return disk, options, wall_ms


def copied(disk: SimulatedDisk, folder: Path) -> Path:
    """The store as it lies there, in real files."""
    for source in sorted(disk._folders):
        if source == ROOT or ROOT in source.parents:
            target = folder / source.relative_to(ROOT)
            target.mkdir(parents=True, exist_ok=True)
            for name, inode in disk._folders[source].live.items():
                (target / name).write_bytes(inode.live)
    return folder


def recovered_end(
    disk: SimulatedDisk, options: chain.LocalStoreOptions, seed: int, wall_ms: int
) -> int | None:
    """Where a start finds the end of the log; None where it refuses to start."""
    with World(disk, seed, wall_ms=wall_ms) as world:
        try:
            store = world.call(world.open_store(options))
        except CorruptRecord:
            return None
        return store.status().written_end


def spoiled(store: Path, randomness: Random, end: int) -> None:
    """Some bytes of the log are others than were written."""
    for _ in range(randomness.choice([1, 2, 5])):
        path = randomness.choice(sorted((store / "commitlog").iterdir()))
        data = bytearray(path.read_bytes())
        last = min(len(data), end - int(path.name))
        if last > 0:
            at = randomness.randrange(last)
            data[at : at + 4] = randomness.randbytes(4)
            path.write_bytes(data)


def rows_of(log: log_range.Log, split_bytes: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(log offsets of the records, stretches of damage)"""
    reader = LogReader()
    records: list[int] = []
    damage: list[tuple[int, int]] = []
    for part in log_range.parts(log, split_bytes=split_bytes):
        for piece in log_range.pieces(log, part, reader):
            if piece.what is What.RECORDS:
                records += piece.record_offsets.tolist()
            elif piece.what is What.DAMAGE:
                damage.append((piece.offset, piece.length))
    reader.close()
    return records, damage


def accounted_bytes(log: log_range.Log) -> int:
    reader = LogReader()
    found = [
        piece.length
        for part in log_range.parts(log, split_bytes=3_000)
        for piece in log_range.pieces(log, part, reader)
    ]
    reader.close()
    return sum(found)


def plain_rows(store: Path, end: int) -> tuple[list[int], list[tuple[int, int]]]:
    read = plain_audit.read_log(store / "commitlog", end=end)
    return sorted(message.log_offset for message in read.messages), sorted(read.damage)


def test_of_a_crashed_store_the_audit_reads_what_a_start_keeps(tmp_path, record_property):
    torn = compared = 0
    for seed in range(READ):
        disk, options, wall_ms = crashed_disk(seed)
        if not disk.exists(ROOT / "commitlog") or not disk.list_directory(ROOT / "commitlog"):
            continue
        store = copied(disk, tmp_path / str(seed))
        log = log_range.find_log(str(store))

        assert log.end == recovered_end(disk, options, seed, wall_ms), f"seed {seed}"
        assert rows_of(log, split_bytes=Random(seed).choice([500, 3_000, 1 << 20])) == plain_rows(
            store, log.end
        ), f"seed {seed}"
        torn += log.torn_bytes > 0
        compared += 1

    record_property("torn", torn)
    assert compared > 0.9 * READ
    assert torn > 0.05 * READ, "too few torn ends: it would prove nothing"


def test_of_a_spoiled_store_every_byte_is_accounted_for(tmp_path):
    damaged = 0
    for seed in range(READ):
        disk, _, _ = crashed_disk(seed)
        store = copied(disk, tmp_path / str(seed))
        if not (store / "commitlog").is_dir() or not any((store / "commitlog").iterdir()):
            continue
        randomness = Random(seed)
        spoiled(store, randomness, log_range.find_log(str(store)).end)
        log = log_range.find_log(str(store))

        found = rows_of(log, split_bytes=randomness.choice([500, 3_000, 1 << 20]))

        assert (found[0], sorted(found[1])) == plain_rows(store, log.end), f"seed {seed}"
        assert accounted_bytes(log) == log.end - log.begin, f"seed {seed}"
        damaged += bool(found[1])

    assert damaged > 0.3 * READ


@pytest.mark.xdist_group("spark")
def test_spark_says_of_crashed_and_spoiled_stores_what_the_plain_checker_says(
    tmp_path, record_property
):
    met: set[str] = set()
    transactions = damaged = 0
    settings = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    try:
        with session("local[2]", log=tmp_path / "spark.log", settings=settings) as spark:
            for seed in range(JUDGED):
                randomness = Random(seed)
                disk, _, _ = crashed_disk(10_000 + seed)
                store = copied(disk, tmp_path / str(seed))
                if seed % SPOILED_EACH == 0:
                    spoiled(store, randomness, log_range.find_log(str(store)).end)
                log = log_range.find_log(str(store))
                plain = plain_audit.read_log(store / "commitlog", end=log.end)
                expected = plain_audit.verdicts(plain, log_begin=log.begin)

                audit = TransactionAudit(spark, log, Scope(), split_bytes=9_000)
                rows, sums = audit.judge()

                judged = (
                    rows.where("transaction_id is not null")
                    .select("transaction_id", "facts")
                    .collect()
                )
                audit.release()
                assert {
                    row["transaction_id"]: verdict(Fact(row["facts"])) for row in judged
                } == expected, f"seed {seed}"
                assert (sums.bytes, sums.counts["damaged"]) == (
                    log.end - log.begin,
                    len(plain.damage),
                ), f"seed {seed}"
                met |= set(expected.values())
                transactions += len(expected)
                damaged += bool(plain.damage) or log.torn_bytes > 0
    except JavaNotFound as missing:
        pytest.skip(str(missing))

    record_property("transactions", transactions)
    assert {"committed_once", "rolled_back_clean", "undecided"} <= met
    assert damaged >= JUDGED // SPOILED_EACH, (
        "too few that were damaged or torn: it would prove little"
    )


def test_where_a_crash_has_left_nothing_wrong_the_checks_find_nothing(tmp_path):
    settings = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    try:
        with session("local[2]", log=tmp_path / "spark.log", settings=settings) as spark:
            for seed in range(CHECKED):
                disk, _, _ = crashed_disk(20_000 + seed)
                if not disk.exists(ROOT / "commitlog") or not disk.list_directory(
                    ROOT / "commitlog"
                ):
                    continue
                store = copied(disk, tmp_path / str(seed))

                found = checked(spark, store, split_bytes=4_000)

                items = [item for one in found.values() for item in one.items]
                assert not [item for item in items if KINDS[item["verdict"]].is_fault], seed
    except JavaNotFound as missing:
        pytest.skip(str(missing))
