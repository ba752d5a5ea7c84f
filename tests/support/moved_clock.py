"""A service whose wall clock can be moved from outside while it runs, as an administrator or NTP
would; the other one stays.

`time.time` and `time.time_ns` of its process are moved by what stands in a shared file: 8 bytes,
nanoseconds, signed.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path

from tests.support.server import Server

_PLACE = "MOVED_CLOCK"
_MOVED = struct.Struct("<q")


class MovedClockServer(Server):
    def __init__(
        self, data_dir: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self._place = data_dir.with_suffix(".clock")
        self._place.write_bytes(_MOVED.pack(0))
        # Not forked: what the command imports must find the moved clock.
        super().__init__(
            data_dir,
            *arguments,
            environment={_PLACE: str(self._place), **(environment or {})},
            forked=False,
        )
        self.moved_ms = 0

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", __name__, *super().command[1:]]

    def move(self, by_ms: int) -> int:
        """Move the clock ahead, or back. The process sees it with its next look at the clock.

        Returns the latest that the clock can have shown before.
        """
        before_ms = self.moved_ms
        self.moved_ms += by_ms
        with self._place.open("r+b") as file:
            file.write(_MOVED.pack(self.moved_ms * 1_000_000))
        return time.time_ns() // 1_000_000 + before_ms

    def wall_ms(self) -> int:
        """What the service's clock says."""
        return time.time_ns() // 1_000_000 + self.moved_ms


def _serve() -> None:
    with Path(os.environ.pop(_PLACE)).open("rb") as file:
        moved = mmap.mmap(file.fileno(), _MOVED.size, prot=mmap.PROT_READ)
    time_ns = time.time_ns
    time.time_ns = lambda: time_ns() + _MOVED.unpack_from(moved)[0]
    time.time = lambda: time.time_ns() / 1e9

    from cli.main import main

    main()


if __name__ == "__main__":
    _serve()
