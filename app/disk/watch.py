"""Watches the disk: keeps readings of the last half minute, the figures between the first and the
last of them, and what they show.

Event loop only; the kernel's files are read in a thread. A diagnosis leaves a line in the log when
it begins, and one when it has not been found for a minute: a figure near its threshold cannot fill
the log.
"""

import asyncio
import mmap
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from app.disk.diagnosis import CODES, Finding, diagnose
from app.disk.figures import Figures, Reading, figures_of, reading_of
from app.disk.kernel_files import KernelReading
from storage.clock import Clock
from storage.store_admin import StoreAdmin

INTERVAL_MS = 5_000
_READINGS = 7  # the first and the last are half a minute apart
_OVER_MS = 60_000

log = structlog.get_logger()


class _Open(NamedTuple):
    """A diagnosis that has begun and not ended in the log."""

    since_ms: int  # wall
    begun_ms: int  # monotonic, as the next
    seen_ms: int


class Diagnosis(NamedTuple):
    """A finding of the newest figures, and since when there is one of its code, in wall ms."""

    finding: Finding
    since_ms: int


class DiskWatch:
    def __init__(
        self, read_kernel: Callable[[], KernelReading], admin: StoreAdmin, clock: Clock
    ) -> None:
        """`read_kernel`: blocks. `clock`: that of the machine, by which the kernel counts."""
        self._read_kernel = read_kernel
        self._admin = admin
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=_READINGS)
        self._open: dict[str, _Open] = {}
        self.figures: Figures | None = None  # None before the second reading
        self.diagnoses: list[Diagnosis] = []

    @property
    def newest(self) -> Reading | None:
        """The newest reading; None before the first."""
        return self._readings[-1] if self._readings else None

    async def run_once(self) -> None:
        """Take a reading, and judge the figures since the oldest one."""
        kernel = await asyncio.to_thread(self._read_kernel)
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        if self._readings and now_ms <= self._readings[-1].at_ms:
            return
        self._readings.append(reading_of(now_ms, kernel, self._admin.status()))
        if len(self._readings) < 2:
            return
        self.figures = figures_of(
            self._readings[0],
            self._readings[-1],
            self._admin.disk_usage(),
            wall_ms=wall_ms,
            page_bytes=mmap.PAGESIZE,
        )
        self._note(diagnose(self.figures), now_ms, wall_ms)

    def found(self) -> dict[str, bool]:
        """Whether each diagnosis that there is has been found, by its code."""
        codes = {one.finding.code for one in self.diagnoses}
        return {code: code in codes for code in CODES}

    def _note(self, findings: list[Finding], now_ms: int, wall_ms: int) -> None:
        for finding in findings:
            before = self._open.get(finding.code)
            if before is None:
                before = _Open(wall_ms, now_ms, now_ms)
                log.warning(
                    "disk_diagnosis",
                    code=finding.code,
                    message=finding.message,
                    action=finding.action,
                )
            self._open[finding.code] = before._replace(seen_ms=now_ms)
        for code, open_ in list(self._open.items()):
            if now_ms - open_.seen_ms >= _OVER_MS:
                del self._open[code]
                log.info("disk_diagnosis_over", code=code, lasted_ms=open_.seen_ms - open_.begun_ms)
        self.diagnoses = [
            Diagnosis(finding, self._open[finding.code].since_ms) for finding in findings
        ]
