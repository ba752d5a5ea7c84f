"""Recorded counters of a machine and of a store: two readings, as `tail -n +1` prints files.

Each file of the folder is one load. A recording may be changed: a missing file, other numbers.
"""

import os
import re
import shutil
from pathlib import Path

from app.disk.figures import Figures, Reading, figures_of
from app.disk.kernel_files import KernelFiles
from storage.store_status import DiskUsage, ReadStatistics

FOLDER = Path(__file__).parent.parent / "golden" / "disk"
PAGE_BYTES = 4_096
WALL_MS = 1_800_000_000_000
ROOMY = DiskUsage(
    used_ratio=0.27,
    clean_above=0.75,
    force_above=0.85,
    refuse_above=0.90,
    is_writable=True,
    projected_full_at_ms=None,
    growth_bytes_per_second=0.0,
    growth_window_ms=0,
    segments_dropped=0,
    segments_dropped_unexpired=0,
)
_HEAD = re.compile(r"^==> (before|after): (\S+) <==\n", re.MULTILINE)


class Recording:
    """Two readings of the counters; `folder` is where the store's files would be."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        self._root = tmp_path / name
        parts = _HEAD.split((FOLDER / f"{name}.txt").read_text())[1:]
        self.files = {
            (when, path): text
            for when, path, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        }
        self.folder = tmp_path
        number = os.stat(tmp_path).st_dev
        self._place = f"{os.major(number)} {os.minor(number)}"

    def change(self, path: str, pattern: str, text: str, *, when: str = "after") -> "Recording":
        """Replace part of one file of a reading."""
        changed, count = re.subn(pattern, text, self.files[when, path], flags=re.MULTILINE)
        assert count, f"{path} has no {pattern}"
        self.files[when, path] = changed
        return self

    def without(self, path: str) -> "Recording":
        """Remove a file from both readings, as a container or another kernel has none."""
        for when in ("before", "after"):
            del self.files[when, path]
        return self

    def reading(self, when: str) -> Reading:
        kernel = KernelFiles(
            self.folder, proc_folder=self.proc_folder(when), sys_folder=self._root / "sys"
        ).read()
        store = dict(line.split() for line in self.files[when, "store"].splitlines() if line)
        numbers = {name: int(value) for name, value in store.items()}
        reads = ReadStatistics(numbers.pop("reads"), numbers.pop("cold_reads"))
        return Reading(kernel=kernel, reads=reads, **numbers)

    def figures(self, usage: DiskUsage = ROOMY) -> Figures:
        return figures_of(
            self.reading("before"),
            self.reading("after"),
            usage,
            wall_ms=WALL_MS,
            page_bytes=PAGE_BYTES,
        )

    def proc_folder(self, when: str) -> Path:
        """A folder with the files of /proc of one reading.

        The recorded device, 254:0, has the numbers of the device of this folder.
        """
        folder = self._root / when
        shutil.rmtree(folder, ignore_errors=True)
        for (at, path), text in self.files.items():
            if at == when and path.startswith("/proc/"):
                target = folder / path.removeprefix("/proc/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(
                    re.sub(r"^ *254 +0 ", f"{self._place} ", text, flags=re.MULTILINE)
                )
        return folder
