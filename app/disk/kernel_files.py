"""Reads the counters of the kernel that concern one folder. Blocking: not on the event loop."""

import os
from pathlib import Path
from typing import NamedTuple

from app.disk import proc
from app.disk.proc import CacheCounters, DeviceCounters, PressureCounters, ProcessCounters


class KernelReading(NamedTuple):
    """Counters at one time; None where the machine does not show them."""

    device: DeviceCounters | None
    partition: str | None  # of the device, on which the folder is; None: the device as a whole
    process: ProcessCounters | None
    cache: CacheCounters | None
    io_pressure: PressureCounters | None
    memory_pressure: PressureCounters | None
    no_device: str | None = None  # why there is no device


class KernelFiles:
    """The files of /proc and /sys, and the device of a folder."""

    def __init__(
        self, folder: Path, *, proc_folder: Path = Path("/proc"), sys_folder: Path = Path("/sys")
    ) -> None:
        self._folder = folder
        self._proc = proc_folder
        self._sys = sys_folder

    def read(self) -> KernelReading:
        """Read all counters; a file that is missing or cannot be read leaves its counters out."""
        device, partition, no_device = self._device()
        return KernelReading(
            device=device,
            partition=partition,
            process=proc.process_io(self._text("self/io")),
            cache=proc.cache(self._text("vmstat")),
            io_pressure=proc.pressure(self._text("pressure/io")),
            memory_pressure=proc.pressure(self._text("pressure/memory")),
            no_device=no_device,
        )

    def _device(self) -> tuple[DeviceCounters | None, str | None, str | None]:
        """The device, the partition of it, and why there is none."""
        try:
            number = os.stat(self._folder).st_dev
        except OSError as error:
            return None, None, f"the data directory cannot be examined: {error.strerror}"
        text = self._text("diskstats")
        if not text:
            return None, None, "/proc/diskstats cannot be read here"
        place = os.major(number), os.minor(number)
        rows = proc.devices(text)
        found = rows.get(place)
        whole = rows.get(self._whole_device(place) or place) or found
        if whole is not None:
            return whole, None if found is None or found is whole else found.name, None
        kind = proc.file_system(self._text("self/mountinfo"), place)
        named = "of the data directory" if kind is None else f"of the data directory ({kind})"
        return None, None, f"the file system {named} has no block device of its own"

    def _whole_device(self, place: tuple[int, int]) -> tuple[int, int] | None:
        """The device to which a partition belongs: requests to its other partitions make it busy,
        too. None where this is no partition, or /sys does not say.
        """
        link = self._sys / "dev" / "block" / f"{place[0]}:{place[1]}"
        try:
            if not (link / "partition").exists():
                return None
            # The folder of a partition is inside that of its device.
            major, _, minor = (link.resolve().parent / "dev").read_text().strip().partition(":")
            return int(major), int(minor)
        except (OSError, ValueError):
            return None

    def _text(self, name: str) -> str:
        """The content of a file of /proc, empty where it cannot be read."""
        try:
            return (self._proc / name).read_text("utf-8", "replace")
        except OSError:
            return ""
