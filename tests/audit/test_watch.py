"""The continuous audit says what the batch audit says, however it is cut off, and counts nothing
twice.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
from pyarrow import parquet

from audit.jobs.transaction_audit import Scope, TransactionAudit
from audit.jobs.watch import NotWatched, Step, Watch
from audit.jobs.watch_state import State, StateError, StateFolder
from audit.log import log_range
from audit.verdicts import FAIL_ON, VERDICTS
from tests.audit.test_outcomes import BROKERS, unpacked
from tests.support.planted import FLAGGED, plant
from tests.support.written_log import Transactions, WrittenLog

LONG_MS = 1 << 40
BATCH_BYTES = 30_000


class Killed(Exception):
    """Stands for the end of the process."""


class Killing(StateFolder):
    """A folder whose owner dies when it has written, or is about to write, the state of a batch."""

    def __init__(self, uri: str, *, batch: int, is_written: bool) -> None:
        super().__init__(uri)
        self._batch = batch
        self._is_written = is_written

    def write(self, state) -> None:
        if state.batch == self._batch and not self._is_written:
            raise Killed
        super().write(state)
        if state.batch == self._batch:
            raise Killed


def watched(
    spark,
    store: Path,
    folder: StateFolder,
    *,
    horizon_ms: int = LONG_MS,
    batch_bytes: int = BATCH_BYTES,
):
    """The watch, and its steps, until the end of the log."""
    steps: list[Step] = []
    watch = opened(spark, store, folder, horizon_ms=horizon_ms, on_step=steps.append)
    watch.run(batch_bytes=batch_bytes, interval_ms=None)
    return watch, steps


def opened(
    spark,
    store: Path,
    folder: StateFolder,
    *,
    horizon_ms: int = LONG_MS,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Watch:
    return Watch(
        spark,
        str(store),
        folder,
        counted=FAIL_ON.__contains__,
        horizon_ms=horizon_ms,
        on_step=on_step,
        split_bytes=10_000,
    )


def written(folder: Path, names: str) -> Path:
    """The store of a log with an undecided transaction for each name."""
    shop = Transactions(WrittenLog(folder))
    for name in names:
        shop.begin(name)
    return shop.log.close()


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    log, truth = plant(tmp_path_factory.mktemp("watched") / "store", times=1)
    return log.root, truth


@pytest.mark.faults
def test_a_watch_that_is_killed_twice_ends_with_what_the_batch_audit_says(spark, planted, tmp_path):
    store, truth = planted
    state = str(tmp_path / "state")
    for batch, is_written in ((1, False), (1, True)):
        with pytest.raises(Killed):
            watched(spark, store, Killing(state, batch=batch, is_written=is_written))

    watch, steps = watched(spark, store, StateFolder(state))

    audited = TransactionAudit(spark, log_range.find_log(str(store)), Scope()).run().report
    report = watch.report()
    assert steps[0].state.batch == 2
    assert {name: report[name] for name in ("begun", "verdicts", "balanced", "flags")} == {
        name: audited[name] for name in ("begun", "verdicts", "balanced", "flags")
    }
    assert report["verdicts"] == {name: Counter(truth.values())[name] for name in VERDICTS}
    assert report["findings"]["by_verdict"] == audited["findings"]["by_verdict"]
    assert {name: audited["log"][name] for name in report["log"]} == report["log"]
    assert steps[-1].state.batch > 2
    kept = sorted(path.name for path in (tmp_path / "state" / "rows").iterdir())
    assert len({name.partition("-")[0] for name in kept}) == 2, (
        "of the batches before nothing is left"
    )


def test_every_finding_is_reported_once_and_as_it_ends(spark, planted, tmp_path):
    store, truth = planted

    watch, steps = watched(spark, store, StateFolder(str(tmp_path / "state")), batch_bytes=60_000)

    told = [item for step in steps for item in step.findings]
    expected = {
        name
        for name, verdict in truth.items()
        if verdict in FAIL_ON or name.partition(".")[0] in FLAGGED
    }
    assert {item["transaction_id"]: item["verdict"] for item in told} == {
        name: truth[name] for name in expected
    }
    assert watch.report()["verdicts"] == {name: Counter(truth.values())[name] for name in VERDICTS}
    assert watch.report()["balanced"] is True
    again, nothing = watched(spark, store, StateFolder(str(tmp_path / "state")))
    assert nothing == []
    assert again.report() == watch.report()


def test_a_state_of_an_earlier_release_is_continued(spark, planted, tmp_path):
    store, truth = planted
    folder = tmp_path / "state"
    with pytest.raises(Killed):
        watched(spark, store, Killing(str(folder), batch=1, is_written=True))
    for file in folder.glob("rows/*/*.parquet"):
        table = parquet.read_table(file)
        names = ["told" if name == "reported" else name for name in table.column_names]
        parquet.write_table(table.rename_columns(names), file)
    for file in folder.glob("states/*.json"):
        assert "told_facts" in json.loads(file.read_text())

    watch, _ = watched(spark, store, StateFolder(str(folder)))

    assert watch.report()["verdicts"] == {name: Counter(truth.values())[name] for name in VERDICTS}


@pytest.mark.faults
def test_what_is_heard_of_a_transaction_beyond_the_horizon_cannot_be_verified_and_is_counted(
    spark, tmp_path
):
    shop = Transactions(WrittenLog(tmp_path / "store"))
    first = shop.begin("first")
    shop.commit(first)
    shop.begin("open")
    shop.log.now_ms += 10_000
    for number in range(60):
        halves = shop.begin(f"later-{number}")
        if number == 50:
            shop.log.append(*shop.finals(first))  # once more
        shop.log.now_ms += 1_000
        shop.commit(halves)
    shop.log.close()

    watch, steps = watched(
        spark,
        shop.log.root,
        StateFolder(str(tmp_path / "state")),
        horizon_ms=5_000,
        batch_bytes=shop.log.end // 8,
    )

    report = watch.report()
    assert report["verdicts"]["unverifiable_retention"] == 1
    assert (report["verdicts"]["committed_once"], report["verdicts"]["undecided"]) == (61, 1)
    assert (report["begun"], report["balanced"]) == (63, True)
    assert max(step.state.open and sum(step.state.open.values()) for step in steps) < 40, (
        "what is kept is bounded"
    )
    assert report["watch"]["left"] > 20


@pytest.mark.faults
def test_segments_that_go_before_they_are_read_are_damage_when_it_goes_on(spark, tmp_path):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 15)
    state = str(tmp_path / "state")
    with pytest.raises(Killed):
        watched(spark, log.root, Killing(state, batch=0, is_written=True), batch_bytes=1 << 14)
    reached = StateFolder(state).newest().reached
    for path in sorted(log.folder.iterdir())[:2]:
        path.unlink()

    watch, _ = watched(spark, log.root, StateFolder(state))

    report = watch.report()
    assert report["log"]["damaged_bytes"] == (1 << 16) - reached
    assert (report["log"]["begin"], report["balanced"]) == (0, True)


def test_a_watch_refuses_what_it_cannot_judge_or_does_not_belong_to_it(spark, planted, tmp_path):
    brokers = unpacked(BROKERS / "public-1.tar.xz", tmp_path)
    with pytest.raises(NotWatched, match="a broker wrote"):
        watched(spark, brokers, StateFolder(str(tmp_path / "one")))
    other = WrittenLog(tmp_path / "other")
    Transactions(other).begin("x")
    watched(spark, other.close(), StateFolder(str(tmp_path / "two")))

    with pytest.raises(StateError, match="holds the state of"):
        watched(spark, planted[0], StateFolder(str(tmp_path / "two")))


@pytest.mark.parametrize(
    ("names", "reason"),
    [("x", "the log ends at"), ("uvwxyz", "has counted another log")],
    ids=["shorter", "longer"],
)
def test_a_log_in_the_place_of_the_one_that_was_counted_is_refused(spark, tmp_path, names, reason):
    store, state = tmp_path / "store", str(tmp_path / "state")
    watched(spark, written(store, "abc"), StateFolder(state))
    rmtree(store)
    written(store, names)

    with pytest.raises(StateError, match=reason):
        opened(spark, store, StateFolder(state))

    assert StateFolder(state).newest().open != {}


def test_of_two_watches_with_one_state_the_second_ends_and_the_state_is_that_of_the_first(
    spark, tmp_path
):
    store, state = written(tmp_path / "store", "abc"), str(tmp_path / "state")
    first, second = (opened(spark, store, StateFolder(state)) for _ in range(2))
    first.run(batch_bytes=BATCH_BYTES, interval_ms=None)

    with pytest.raises(StateError, match="another watch uses"):
        second.run(batch_bytes=BATCH_BYTES, interval_ms=None)

    again, steps = watched(spark, store, StateFolder(state))
    assert steps == []
    assert again.report() == first.report()
    assert first.report()["verdicts"]["undecided"] == 3


def test_files_of_others_in_the_folder_of_the_state_are_left_alone(tmp_path):
    others = [tmp_path / name for name in ("states/note.json", "states/.1.json.swp", "rows/copy/a")]
    for path in [*others, tmp_path / "rows/0-aa/a", tmp_path / "rows/3-aa/a"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = StateFolder(str(tmp_path))

    for batch in range(4):
        folder.write(State(log="store", begin=0, reached=batch, batch=batch))

    assert folder.newest().batch == 3
    assert all(path.exists() for path in others)
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["3-aa", "copy"]


@pytest.mark.faults
def test_a_watch_that_is_told_to_end_ends_with_the_status_of_what_it_has_counted(planted, tmp_path):
    store, truth = planted
    command = [
        Path(sys.executable).with_name("escrowmq"),
        "audit",
        "watch",
        "--log",
        store,
        "--state",
        tmp_path / "state",
    ]
    options = [
        "--json",
        tmp_path / "report.json",
        "--progress",
        "json",
        "--interval-ms",
        "100",
        "--master",
        "local[2]",
    ]
    # In runs of seconds compiling more costs more than it gains.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    watching = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=environment)

    lines = []
    for line in watching.stdout:
        lines.append(json.loads(line))
        if "reached" in lines[-1]:
            break
    watching.send_signal(signal.SIGTERM)
    rest, _ = watching.communicate(timeout=240)

    assert rest == b""
    assert watching.returncode == 1
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert (report["begun"], report["run"]["exit_status"]) == (len(truth), 1)
    assert lines[-1] == {"batch": 0, "reached": report["log"]["end"], "kept": len(truth)}
    assert (
        len(lines) - 1
        == len({line["finding"]["transaction_id"] for line in lines[:-1]})
        > len(FLAGGED)
    )
