"""The units of a log that comes piece by piece, each checked by its checksum."""

from collections.abc import Iterator
from typing import NamedTuple

from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.scan import Stop


class Walked(NamedTuple):
    """Bytes of the log from `offset` on, and the units from `begin` on that are whole in them."""

    window: bytes
    offset: int
    begin: int
    segment_end: int
    found: scan.Scan

    def last_stored_ms(self) -> int:
        """When the last record was stored, in wall-clock milliseconds; 0 if there is none."""
        if not len(self.found.record_offsets):
            return 0
        return self._stored_ms(int(self.found.record_offsets[-1]) - self.offset)

    def ends(self, epoch: int) -> Iterator[tuple[int, int]]:
        """(log offset behind it, when its last record was stored) of each unit.

        `epoch`: of the units before.
        """
        at = self.begin
        while at < self.found.end:
            step = scan.judge(
                self.window, at - self.offset, self.offset, segment_end=self.segment_end,
                epoch=epoch
            )  # fmt: skip
            assert isinstance(step, scan.Unit), "the scan has found it whole"
            at = self.offset + step.end
            yield at, self._stored_ms(step.records[-1][0])

    def _stored_ms(self, position: int) -> int:
        return records.decode(self.window, position).stored_at_ms


class UnitWalk:
    """`end`: log offset behind the last whole unit, or the end of its segment. `damage`: why there
    is no unit; the walk ends with it.
    """

    def __init__(self, begin: int, segment_bytes: int) -> None:
        """`begin`: where a unit begins."""
        self.end = begin
        self.epoch = 0
        self.damage = ""
        self._segment_bytes = segment_bytes
        self._rest = b""

    def feed(self, begin: int, data: bytes) -> Walked | None:
        """Walk the next bytes of the log, of one segment. None if they are behind the last unit of
        their segment.
        """
        if self.damage or begin + len(data) <= self.end:
            return None
        window = self._rest + data
        offset = begin - len(self._rest)
        if padding := offset % unit.ALIGNMENT:
            # The search for units goes by their alignment.
            window, offset = bytes(padding) + window, offset - padding
        walked_from = self.end
        segment_end = begin - begin % self._segment_bytes + self._segment_bytes
        found = scan.scan(
            window, offset, begin=walked_from, segment_end=segment_end, epoch=self.epoch
        )
        self.epoch = max(self.epoch, found.epoch)
        self.end, self._rest = found.end, b""
        if found.stop is Stop.END_OF_FILE:
            self.end = segment_end
        elif found.stop is Stop.WINDOW_END:
            self._rest = window[found.end - offset :]
        elif found.end < begin + len(data):
            self.damage = found.reason or "zeros where a unit was"
        return Walked(window, offset, walked_from, segment_end, found)

    def finish(self, end: int) -> None:
        """The log ends here."""
        if not self.damage and self.end < end:
            self.damage = "a unit that is not whole"
