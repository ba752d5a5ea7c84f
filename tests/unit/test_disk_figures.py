"""Counters of /proc, as kernels print them, and the figures of two readings."""

import os
from pathlib import Path

import pytest

from app.disk import proc
from app.disk.figures import CacheFigures, DeviceFigures, PressureFigures, figures_of
from app.disk.kernel_files import KernelFiles
from app.disk.words import duration, number, percent, rate, size
from tests.support.disk_recordings import PAGE_BYTES, ROOMY, WALL_MS, Recording

# Linux 2.6 with a partition of four fields, 4.14 (14 fields), 5.5 (20).
DISKSTATS = """\
   8       0 sda 100 5 2000 300 400 50 8000 700 2 600 1000
   8       1 sda1 100 5 2000 300
 259       0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17
 253       0 dm-0 x 5 2000 300 400 50 8000 700 2 600 1000

garbage
"""


def test_rows_of_every_kernel_are_read_and_what_is_no_row_is_left_out():
    found = proc.devices(DISKSTATS)

    assert set(found) == {(8, 0), (259, 0)}
    assert found[8, 0] == ("sda", 100, 5, 1_024_000, 300, 400, 50, 4_096_000, 700, 2, 600, 1_000)
    assert found[259, 0] == ("nvme0n1", 1, 2, 1_536, 4, 5, 6, 3_584, 8, 9, 10, 11)


def test_the_bytes_of_a_process_are_those_that_it_fetched_and_those_that_it_wrote():
    text = "rchar: 9\nwchar: 700\nsyscr: 1\nread_bytes: 4096\nwrite_bytes: 1048576\n"

    assert proc.process_io(text) == (4_096, 700)


def test_pages_are_read_with_the_names_of_old_and_new_kernels():
    text = "nr_dirty 5\nnr_writeback 6\nnr_dirty_threshold 70\n"

    assert proc.cache(text) == (5, 6, 70, None)
    assert proc.cache(text + "workingset_refault 8\n") == (5, 6, 70, 8)
    assert proc.cache(text + "workingset_refault_file 9\n") == (5, 6, 70, 9)


def test_pressure_has_the_totals_of_the_times():
    text = "some avg10=0.00 avg60=1.00 avg300=2.00 total=300\nfull avg10=0.00 total=40\n"

    assert proc.pressure(text) == (300, 40)
    assert proc.pressure("some avg10=0.00 total=300\n") == (300, 0)


@pytest.mark.parametrize("text", ["", "\0", "some\nfull", "a b c\n" * 3, "some total=x", "1 2 3 4"])
def test_another_format_is_no_reading(text):
    assert proc.devices(text) == {}
    assert proc.process_io(text) is None
    assert proc.pressure(text) is None
    assert proc.cache(text) is None
    assert proc.file_system(text, (8, 0)) is None


def test_the_figures_are_those_of_iostat(tmp_path):
    recording = (
        Recording("idle", tmp_path)
        .change("store", r"^at_ms .*", "at_ms 1000", when="before")
        .change("store", r"^at_ms .*", "at_ms 11000")
        .change("/proc/diskstats", r"vda .*", "vda 0 0 0 0 0 0 0 0 5 0 0", when="before")
        .change(
            "/proc/diskstats",
            r"vda .*",
            "vda 1000 200 400000 5000 3000 600 1200000 45000 3 9000 60000",
        )
    )

    figures = recording.figures()

    assert figures.window_ms == 10_000
    assert figures.device == DeviceFigures(
        name="vda",
        partition=None,
        reads_per_second=100,
        writes_per_second=300,
        merged_reads_per_second=20,
        merged_writes_per_second=60,
        read_bytes_per_second=20_480_000,
        write_bytes_per_second=61_440_000,
        request_bytes=204_800,
        write_request_bytes=204_800,
        in_flight=3,
        queue_depth=6,
        wait_ms=12.5,
        read_wait_ms=5,
        write_wait_ms=15,
        service_ms=2.25,
        utilisation=0.9,
    )


def test_the_figures_of_a_recorded_load(tmp_path):
    """Another process writes, recorded for 10.001 s on Linux 6.18."""
    figures = Recording("other_process", tmp_path).figures()
    device = figures.device

    assert figures.window_ms == 10_001
    assert round(device.write_bytes_per_second) == 331_212_037
    assert round(device.writes_per_second, 2) == 718.03
    assert round(device.utilisation, 4) == 0.9999
    assert round(device.queue_depth, 3) == 4.715
    assert round(device.write_wait_ms, 3) == 5.903
    assert round(device.service_ms, 3) == 1.386
    assert round(figures.process.write_bytes_per_second) == 76_588
    assert figures.cache == CacheFigures(
        dirty_bytes=271 * PAGE_BYTES,
        writeback_bytes=0,
        dirty_limit_bytes=1_178_718 * PAGE_BYTES,
        refault_bytes_per_second=91 * PAGE_BYTES * 1_000 / 10_001,
    )
    assert figures.pressure == PressureFigures(
        io_some=8_221_375 / 10_001_000,
        io_full=7_617_441 / 10_001_000,
        memory_some=0.0,
        memory_full=0.0,
    )
    assert round(figures.log.sync_ms, 2) == 32.97
    assert round(figures.log.syncs_per_second, 2) == 18.80


def test_cold_reads_are_a_share_of_all_reads(tmp_path):
    recording = (
        Recording("idle", tmp_path)
        .change("store", r"^at_ms .*", "at_ms 1000", when="before")
        .change("store", r"^at_ms .*", "at_ms 11000")
        .change("store", r"^reads .*", "reads 400")
        .change("store", r"^cold_reads .*", "cold_reads 100")
    )

    reads = recording.figures().reads

    assert reads == (40.0, 10.0)
    assert reads.cold_share == 0.25


def test_a_counter_that_went_back_counts_as_unchanged(tmp_path):
    recording = Recording("own_writes", tmp_path).change(
        "/proc/diskstats", r"vda .*", "vda 1 1 1 1 1 1 1 1 1 1 1"
    )

    device = recording.figures().device

    assert (device.write_bytes_per_second, device.utilisation, device.wait_ms) == (0, 0, 0)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/proc/diskstats", "device"),
        ("/proc/self/io", "process"),
        ("/proc/vmstat", "cache"),
    ],
)
def test_a_missing_file_leaves_its_figures_out_and_no_others(tmp_path, path, field):
    figures = Recording("own_writes", tmp_path).without(path).figures()

    fields = ("device", "process", "cache", "pressure", "reads", "log")
    assert [name for name in fields if getattr(figures, name) is None] == [field]


def test_without_a_file_of_pressure_the_other_one_counts(tmp_path):
    recording = Recording("own_writes", tmp_path).without("/proc/pressure/memory")

    pressure = recording.figures().pressure

    assert round(pressure.io_some, 3) == 0.739
    assert pressure.memory_some is None
    assert recording.without("/proc/pressure/io").figures().pressure is None


def test_a_device_with_another_name_has_no_figures(tmp_path):
    recording = Recording("own_writes", tmp_path).change("/proc/diskstats", "vda", "vdb")

    assert recording.figures().device is None


def test_the_time_until_the_disk_is_full_ends_at_nothing(tmp_path):
    usage = ROOMY._replace(projected_full_at_ms=WALL_MS + 5_000)
    recording = Recording("idle", tmp_path)

    assert recording.figures(usage).full_in_ms == 5_000
    assert recording.figures(usage._replace(projected_full_at_ms=WALL_MS - 1)).full_in_ms == 0
    assert recording.figures().full_in_ms is None


def device_folder(sys_folder: Path, number: str, *, name: str, partition: str = "") -> None:
    """The folders of /sys of a device, or of a partition in that of its device."""
    device = sys_folder / "devices" / name
    device.mkdir(parents=True, exist_ok=True)
    (device / "dev").write_text("7:70\n")
    if partition:
        device = device / partition
        device.mkdir()
        (device / "dev").write_text(f"{number}\n")
        (device / "partition").write_text("1\n")
    links = sys_folder / "dev" / "block"
    links.mkdir(parents=True)
    (links / number).symlink_to(device)


def test_a_partition_has_the_load_of_its_whole_device(tmp_path):
    number = os.stat(tmp_path).st_dev
    place = f"{os.major(number)}:{os.minor(number)}"
    proc_folder, sys_folder = tmp_path / "proc", tmp_path / "sys"
    proc_folder.mkdir()
    (proc_folder / "diskstats").write_text(
        f"7 70 sdx 9 0 0 0 9 0 0 0 0 0 0\n{place.replace(':', ' ')} sdx1 1 0 0 0 1 0 0 0 0 0 0\n"
    )
    files = KernelFiles(tmp_path, proc_folder=proc_folder, sys_folder=sys_folder)

    without_sys = files.read()
    device_folder(sys_folder, place, name="sdx", partition="sdx1")
    with_sys = files.read()

    assert (without_sys.device.name, without_sys.partition) == ("sdx1", None)
    assert (with_sys.device.name, with_sys.device.reads, with_sys.partition) == ("sdx", 9, "sdx1")


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("27 1 {place} / /data rw,relatime shared:1 - tmpfs none rw\n", " (tmpfs)"),
        ("nonsense\n27 1 0:999999 / / rw - ext4 /dev/vda rw\n", ""),
        ("", ""),
    ],
)
def test_a_file_system_without_a_device_says_so(tmp_path, mounts, kind):
    number = os.stat(tmp_path).st_dev
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        mounts.format(place=f"{os.major(number)}:{os.minor(number)}")
    )
    (tmp_path / "diskstats").write_text("7 99999 loop0 1 0 0 0 1 0 0 0 0 0 0\n")

    reading = KernelFiles(tmp_path, proc_folder=tmp_path, sys_folder=tmp_path).read()

    assert reading.device is None
    assert reading.no_device == (
        f"the file system of the data directory{kind} has no block device of its own"
    )


def test_nothing_to_read_at_all_is_said_too(tmp_path):
    reading = KernelFiles(tmp_path, proc_folder=tmp_path / "no", sys_folder=tmp_path).read()
    gone = KernelFiles(tmp_path / "gone", proc_folder=tmp_path, sys_folder=tmp_path).read()

    assert reading[:-1] == (None,) * 6
    assert reading.no_device == "/proc/diskstats cannot be read here"
    assert gone.no_device == "the data directory cannot be examined: No such file or directory"


def test_this_machine_is_read_without_an_error(tmp_path):
    reading = KernelFiles(tmp_path).read()

    assert (reading.device is None) == (reading.no_device is not None)


def test_the_second_reading_is_later(tmp_path):
    reading = Recording("idle", tmp_path).reading("before")

    with pytest.raises(AssertionError):
        figures_of(reading, reading, ROOMY, wall_ms=WALL_MS, page_bytes=PAGE_BYTES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(512), "512 B"),
        (size(4_096), "4.1 kB"),
        (size(180e6), "180 MB"),
        (size(2.5e9), "2.5 GB"),
        (size(12e12), "12 TB"),
        (rate(0), "0 B/s"),
        (number(0), "0"),
        (number(0.25), "0.2"),
        (number(9.96), "10"),
        (number(1_899.6), "1,900"),
        (percent(0.966), "97 %"),
        (duration(0), "0 ms"),
        (duration(5.9), "5.9 ms"),
        (duration(999), "999 ms"),
        (duration(1_500), "1.5 s"),
        (duration(59_400), "59 s"),
        (duration(59_600), "1 min"),
        (duration(150_000), "2 min 30 s"),
        (duration(19_200_000), "5 h 20 min"),
        (duration(86_400_000), "1 d"),
        (duration(183_000_000), "2 d 2 h"),
    ],
)
def test_quantities_are_written_as_a_person_does(text, expected):
    assert text == expected
