"""C21: the campaigns themselves.

Five well-known mistakes, each planted and each found by the campaign that is there for it.
"""

from collections.abc import Callable, Iterator

import pytest
from crc32c import crc32c

from storage.formats import scan, unit
from storage.local.append.flusher import Flusher
from storage.local.append.log_writer import LogWriter
from storage.local.recovery.recovery import _Behind
from storage.message import Durability
from tests.fault.chain import run_chain
from tests.fault.failed_syncs import run_failed_sync
from tests.fault.flips import records_of_each_kind, undetected_flips
from txn.journal import Journal

pytestmark = pytest.mark.faults

CHAINS = 40  # a hundredth of what the campaign runs


def found_by_power_cuts() -> Iterator[str]:
    """The promises that the mistake breaks. Which one comes first depends on the order of all
    events of a chain.
    """
    for seed in range(CHAINS):
        yield from run_chain(seed, 8).problems


def found_by_failed_syncs() -> Iterator[str]:
    for seed in range(200):
        yield from run_failed_sync(seed)


def test_acknowledging_before_the_sync_is_found_by_power_cuts(monkeypatch):
    publish = LogWriter._publish

    def too_early(self: LogWriter) -> None:
        safe_end, self._copies.safe_end = self._copies.safe_end, self._tail.written_end
        publish(self)
        self._copies.safe_end = safe_end

    monkeypatch.setattr(LogWriter, "_publish", too_early)

    wrong = ("lost", "it is prepared", "not known any more")
    assert any(what in found for found in found_by_power_cuts() for what in wrong)


def test_leaving_the_torn_tail_is_found_by_power_cuts(monkeypatch):
    monkeypatch.setattr(_Behind, "wipe", lambda self: 0)

    assert any("left behind the end of the log" in found for found in found_by_power_cuts())


def test_answering_a_decision_before_its_sync_is_found_by_power_cuts(monkeypatch):
    append: Callable[..., object] = Journal.append

    async def unsynced(
        self: Journal, messages: object, durability: object, **how: object
    ) -> object:
        return await append(self, messages, durability and Durability.BUFFERED, **how)  # type: ignore[misc]

    monkeypatch.setattr(Journal, "append", unsynced)

    assert any("it is prepared" in found for found in found_by_power_cuts())


def test_trying_a_failed_sync_again_is_found_by_failed_syncs(monkeypatch):
    def try_again(self: Flusher, _: Exception) -> None:
        self.is_busy = False
        self._start()

    monkeypatch.setattr(Flusher, "_failed", try_again)

    assert any("was acknowledged and is lost" in found for found in found_by_failed_syncs())


def test_a_checksum_without_the_header_is_found_by_bit_flips(monkeypatch):
    header_bytes = 88

    def without_header(data: bytes | memoryview, value: int = 0) -> int:
        return crc32c(data[header_bytes:], value)

    monkeypatch.setattr(scan, "crc32c", without_header)
    monkeypatch.setattr(
        unit,
        "crc32c",
        lambda data: without_header(data) if len(data) > header_bytes else crc32c(data),
    )

    assert undetected_flips(records_of_each_kind()["plain"])


def test_without_a_mutant_the_same_campaigns_find_nothing():
    assert [*found_by_power_cuts(), *found_by_failed_syncs()] == []
    for given in records_of_each_kind().values():
        assert undetected_flips(given) == []
