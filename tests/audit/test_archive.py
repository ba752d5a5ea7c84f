"""Sealed segments in an archive: byte for byte, each with a manifest, readable as a log."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c

from audit.jobs import archive as archiving
from audit.log import log_range
from tests.support import plain_audit
from tests.support.builders import message
from tests.support.written_log import WrittenLog

SEGMENT_BYTES = 1 << 12
ESCROWMQ = Path(sys.executable).with_name("escrowmq")
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # whoever imports it fails
from cli.main import main
main()
"""


def write(root: Path, *, segments: int) -> WrittenLog:
    log = WrittenLog(root, segment_bytes=SEGMENT_BYTES)
    while log.end < SEGMENT_BYTES * (segments - 1) + 1_000:
        log.append(message(b"x" * 200))
    log.close()
    return log


def test_what_is_sealed_is_copied_with_a_manifest_that_is_true_of_it_and_the_last_segment_stays(
    tmp_path,
):
    log = write(tmp_path / "store", segments=3)

    made = archiving.archive(log_range.find_log(str(log.root)), f"file://{tmp_path}/archive")

    assert [one["begin"] for one in made] == [0, SEGMENT_BYTES]
    stored = plain_audit.read_log(log.folder, end=log.end).messages
    for manifest in made:
        copy = (tmp_path / "archive" / manifest["segment"]).read_bytes()
        assert copy == (log.folder / manifest["segment"]).read_bytes()
        assert manifest == json.loads(
            (tmp_path / "archive" / f"{manifest['segment']}.json").read_text()
        )
        assert (manifest["bytes"], manifest["crc32c"]) == (len(copy), f"{crc32c(copy):08x}")
        of_it = [
            one
            for one in stored
            if manifest["begin"] <= one.log_offset < manifest["begin"] + SEGMENT_BYTES
        ]
        assert manifest["records"] == len(of_it)
        times = [one.stored_at_ms for one in of_it]
        assert (manifest["first_stored_ms"], manifest["last_stored_ms"]) == (min(times), max(times))
    assert len(list((tmp_path / "archive").iterdir())) == 4, "nothing half-made is left"


def test_the_archive_can_be_read_as_a_log_and_a_second_run_copies_what_is_new(tmp_path):
    target = str(tmp_path / "archive")
    log = write(tmp_path / "store", segments=3)
    archiving.archive(log_range.find_log(str(log.root)), target)

    again = archiving.archive(log_range.find_log(str(log.root)), target)
    grown = write(tmp_path / "grown", segments=4)
    later = archiving.archive(log_range.find_log(str(grown.root)), target)

    assert again == []
    assert [one["begin"] for one in later] == [2 * SEGMENT_BYTES]
    found = log_range.find_log(target)
    assert (found.begin, [one.base_offset for one in found.folder.segments]) == (
        0,
        [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES],
    )


def test_a_copy_that_was_cut_off_has_no_manifest_and_is_made_anew(tmp_path):
    log = write(tmp_path / "store", segments=2)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / f"{'0' * 20}.part").write_bytes(b"torn")
    (tmp_path / "archive" / ("0" * 20)).write_bytes(b"without a manifest")

    (made,) = archiving.archive(log_range.find_log(str(log.root)), str(tmp_path / "archive"))

    assert (tmp_path / "archive" / made["segment"]).read_bytes() == (
        log.folder / made["segment"]
    ).read_bytes()


def torn_manifest(folder: Path, name: str) -> None:
    path = folder / f"{name}.json"
    path.write_bytes(path.read_bytes()[:40])


def manifest_of_zeros(folder: Path, name: str) -> None:
    """As a file system leaves it that has put the length on disk, and not the bytes."""
    path = folder / f"{name}.json"
    path.write_bytes(bytes(path.stat().st_size))


def manifest_of_nothing(folder: Path, name: str) -> None:
    (folder / f"{name}.json").write_bytes(b"[]")


def torn_copy(folder: Path, name: str) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(SEGMENT_BYTES // 2)


def no_copy(folder: Path, name: str) -> None:
    (folder / name).unlink()


@pytest.mark.parametrize(
    "damage", [torn_manifest, manifest_of_zeros, manifest_of_nothing, torn_copy, no_copy]
)
def test_a_copy_that_its_manifest_does_not_vouch_for_is_made_anew(tmp_path, damage):
    log, archive = write(tmp_path / "store", segments=3), tmp_path / "archive"
    first, _ = archiving.archive(log_range.find_log(str(log.root)), str(archive))
    damage(archive, first["segment"])

    again = archiving.archive(log_range.find_log(str(log.root)), str(archive))

    assert again == [first]
    assert (archive / first["segment"]).read_bytes() == (log.folder / first["segment"]).read_bytes()
    assert json.loads((archive / f"{first['segment']}.json").read_text()) == first
    assert archiving.archive(log_range.find_log(str(log.root)), str(archive)) == []


def test_what_lies_there_of_another_log_stays_as_it_is(tmp_path):
    log = write(tmp_path / "store", segments=2)
    other = WrittenLog(tmp_path / "other", segment_bytes=2 * SEGMENT_BYTES)
    while other.end < 2 * SEGMENT_BYTES + 100:
        other.append(message(b"y" * 300))
    other.close()
    archiving.archive(log_range.find_log(str(log.root)), str(tmp_path / "archive"))
    kept = (tmp_path / "archive" / ("0" * 20)).read_bytes()

    with pytest.raises(archiving.NotCopied, match="another log"):
        archiving.archive(log_range.find_log(str(other.root)), str(tmp_path / "archive"))

    assert (tmp_path / "archive" / ("0" * 20)).read_bytes() == kept


def test_on_a_disk_each_step_is_synced_before_the_next(tmp_path, monkeypatch):
    """A folder is synced with its new names, so what a power cut leaves is what stood in it at its
    last sync.
    """
    log, archive = write(tmp_path / "store", segments=2), tmp_path / "deep" / "archive"
    left_by_a_power_cut: list[dict[str, int]] = []
    synced_files: dict[int, int] = {}  # inode -> bytes on disk
    fsync = os.fsync

    def watched(handle: int) -> None:
        fsync(handle)
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode):
            synced_files[about.st_ino] = about.st_size
        elif os.path.samefile(f"/proc/self/fd/{handle}", archive):
            found = {path.name: path.stat() for path in archive.iterdir()}
            left_by_a_power_cut.append(
                {name: synced_files.get(one.st_ino, 0) for name, one in found.items()}
            )
        else:
            synced_folders.append(os.readlink(f"/proc/self/fd/{handle}"))

    synced_folders: list[str] = []
    monkeypatch.setattr(os, "fsync", watched)

    (made,) = archiving.archive(log_range.find_log(str(log.root)), str(archive))

    name, manifest_bytes = made["segment"], (archive / f"{made['segment']}.json").stat().st_size
    assert left_by_a_power_cut == [
        {name: SEGMENT_BYTES},
        {name: SEGMENT_BYTES, f"{name}.json": manifest_bytes},
    ]
    assert synced_folders == [str(tmp_path / "deep"), str(tmp_path)], (
        "the names of the folders that were made"
    )


def test_a_segment_that_is_shorter_than_it_says_is_not_taken_for_whole(tmp_path):
    log = write(tmp_path / "store", segments=2)
    found = log_range.find_log(str(log.root))
    with (log.folder / ("0" * 20)).open("r+b") as file:
        file.truncate(SEGMENT_BYTES - 8)

    with pytest.raises(archiving.NotCopied):
        archiving.archive(found, str(tmp_path / "archive"))

    assert not (tmp_path / "archive" / f"{'0' * 20}.json").exists()


def test_the_command_says_what_it_has_copied_and_ends_with_3_where_it_cannot(tmp_path):
    log = write(tmp_path / "store", segments=2)
    (tmp_path / "a-file").write_bytes(b"")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [ESCROWMQ, "audit", "archive", *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    done = run("--log", str(log.root), "--to", "archive")

    assert (done.returncode, "1 segments copied" in done.stderr) == (0, True)
    assert run("--log", "nowhere", "--to", "archive").returncode == 3
    assert run("--log", str(log.root), "--to", "a-file/archive").returncode == 3


def test_the_command_runs_where_spark_is_not_installed(tmp_path):
    log = write(tmp_path / "store", segments=2)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_SPARK, "audit", *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    archived = run("archive", "--log", str(log.root), "--to", "archive")

    assert (archived.returncode, "1 segments copied" in archived.stderr) == (0, True)
    audited = run("run", "--log", str(log.root))
    assert (audited.returncode, "The audit needs Spark" in audited.stderr) == (3, True), (
        "the process has no Spark"
    )
