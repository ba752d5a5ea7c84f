"""Logs in which our units and a broker's records lie behind one another, and the plain walk that
the fast one must match.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from storage.formats import properties, queue_entry, scan
from storage.formats import record as records
from storage.formats.record import Record
from storage.formats.scan import Halt, Scan, Unit
from storage.message import Message
from tests.support.builders import encoded, messages

BROKER_HOST = bytes([10, 0, 0, 7]) + (10911).to_bytes(4, "big")


def walk_plainly(
    window: bytes, window_offset: int, *, begin: int, segment_end: int, epoch: int = 0
) -> Scan:
    """What `scan.scan` promises, one judgement after another."""
    at, synced_offset, found = begin - window_offset, 0, []
    epoch_begins = []
    while True:
        step = scan.judge(window, at, window_offset, segment_end=segment_end, epoch=epoch)
        if isinstance(step, Halt):
            return Scan(
                [window_offset + place for place, _ in found],
                [length for _, length in found],
                window_offset + at,
                step.stop,
                step.reason,
                epoch,
                synced_offset,
                tuple(epoch_begins),
            )
        found += step.records
        if step.item is not None and step.item.first_offset == window_offset + at:
            if step.item.epoch > epoch:
                epoch_begins.append((step.item.epoch, window_offset + at))
            epoch, synced_offset = step.item.epoch, step.item.synced_offset
        at = step.end


def walk(
    window: bytes,
    window_offset: int = 0,
    *,
    begin: int | None = None,
    segment_end: int,
    epoch: int = 0,
) -> Scan:
    """The walk, as lists; all ways of doing it must have found the same."""
    where = {
        "begin": window_offset if begin is None else begin,
        "segment_end": segment_end,
        "epoch": epoch,
    }
    with many_at_a_time():
        fast = as_lists(scan.scan(window, window_offset, **where))
    with many_at_a_time(are_short=False):
        assert fast == as_lists(scan.scan(window, window_offset, **where))
    assert fast == as_lists(scan.scan(window, window_offset, **where))
    assert fast == walk_plainly(window, window_offset, **where)
    return fast


@contextmanager
def many_at_a_time(*, are_short: bool = True) -> Iterator[None]:
    """Units are checked together however few there are, with one sum of all where they count as
    short ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_LEAST_RUN_BYTES", 0)
        patch.setattr(scan, "_SHORT_UNIT_BYTES", 1 << 40 if are_short else 0)
        patch.setattr(scan, "_COPIED_BYTES", 1_000)  # several copies, of a few units each
        yield


def as_lists(found: Scan) -> Scan:
    return found._replace(
        record_offsets=found.record_offsets.tolist(), record_bytes=found.record_bytes.tolist()
    )


def broker_record(
    offset: int,
    body: bytes = b"a broker's",
    *,
    properties: bytes = b"WAIT\x01true\x02",
    host: bytes = BROKER_HOST,
    **fields,
) -> bytes:
    """One record as a broker stores it; nothing in it says that a unit begins here."""
    record = Record(
        magic=records.MAGIC_V1,
        body_crc=records.body_crc(body),
        queue_number=0,
        flag=0,
        queue_offset=0,
        physical_offset=offset,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        born_host=BROKER_HOST,
        stored_at_ms=1_700_000_000_100,
        store_host=host,
        reconsume_times=0,
        prepared_offset=0,
        body=body,
        topic="orders",
        properties=properties,
    )
    return records.encode(record._replace(**fields))


class Log:
    """Bytes of a log, built piece by piece from `first_offset` on."""

    def __init__(self, first_offset: int = 0) -> None:
        self.first_offset = first_offset
        self.data = b""
        self.places: list[int] = []  # of the records
        self.sizes: list[int] = []
        self.borders: list[int] = [first_offset]  # of units and of a broker's records

    @property
    def end(self) -> int:
        return self.first_offset + len(self.data)

    def ours(
        self, given: int | Sequence[Message] = 1, *, epoch: int = 1, synced_offset: int = 0
    ) -> "Log":
        """One unit of ours."""
        of_unit = messages(given) if isinstance(given, int) else given
        made = encoded(of_unit, first_offset=self.end, synced_offset=synced_offset, epoch=epoch)
        self.places += made.places
        self.sizes += [queue_entry.decode(entry).record_bytes for entry in made.entries]
        return self._add(made.data)

    def brokers(self, *bodies: bytes, **fields) -> "Log":
        """A record of a broker's for each body."""
        for body in bodies:
            raw = broker_record(self.end, body, **fields)
            self.places.append(self.end)
            self.sizes.append(len(raw))
            self._add(raw)
        return self

    def end_of_file(self, segment_end: int) -> "Log":
        self.data += records.encode_end_of_file(segment_end - self.end)
        return self

    def _add(self, raw: bytes) -> "Log":
        self.data += raw
        self.borders.append(self.end)
        return self

    def filled(self, segment_end: int) -> bytes:
        """The whole segment: zeros behind what was written."""
        return self.data + bytes(segment_end - self.end)

    def records_before(self, end: int) -> tuple[list[int], list[int]]:
        """(places, sizes) of the records that lie before a border."""
        count = sum(place < end for place in self.places)
        return self.places[:count], self.sizes[:count]


def step_at(window: bytes, offset: int = 0) -> Unit | Halt:
    """What is judged to lie at the beginning of these bytes, which are a whole segment from
    `offset` on.
    """
    return scan.judge(window, 0, offset, segment_end=offset + len(window))


def reordered(raw: bytes, *, offset: int, host: bytes) -> bytes:
    """A broker's copy of a record: its properties go through a hash map, padding is lost, the place
    is another one.
    """
    record = records.decode(raw)
    items = sorted(properties.decode(record.properties).items(), key=lambda item: item[0][::-1])
    return records.encode(
        record._replace(
            physical_offset=offset, store_host=host, properties=properties.encode(items)
        )
    )
