"""A store on this machine whose log is the copy of another one's: it takes units, and reads."""

from typing import ClassVar

from storage.errors import StoreClosed
from storage.local.local_store import LocalMessageStore

_PRIMARY = "primary"
END_BYTES = 64  # fewer than any record has, and all of a unit's item and seal


class LocalReplica(LocalMessageStore):
    """Follows a primary, made by `open`. Readers see what is safe and on its own disk.

    Every append is refused with StoreClosed.
    """

    _is_replica: ClassVar[bool] = True
    _takes = True

    async def read_end(self) -> tuple[int, bytes]:
        """Where the last unit ends, and its last bytes: two logs whose units end there and differ
        before it are most unlikely to be equal in them. Empty where the log has no unit.
        """
        assert self._engine.received is not None, "the engine of a replica receives"
        end = self._engine.received.units_end
        return end, await self.read_log(max(end - END_BYTES, self._log.first_offset), end)

    def safe_units_end(self) -> int:
        """Where the last unit ends that the primary has called safe, at most: a record that closes
        the segment behind it says nothing, and can be cut.
        """
        assert self._engine.received is not None, "the engine of a replica receives"
        return min(self.synced_offset(), self._engine.received.units_end)

    async def take(self, offset: int, data: bytes) -> None:
        """Store the whole units that these bytes of one segment begin with, at the end of the log,
        and the record that closes it behind them; they are in the page cache on return, and the
        log has its new end. Bytes that end within a unit are left.

        Waits for room. Raises CorruptRecord where they are not what may follow here: nothing is
        stored. Raises StorageFull, Backpressure: the same units can be taken later. Raises
        StoreClosed.
        """
        while not self._take(offset, data):
            await self._engine.wait_progress()

    def note_safe(self, safe_end: int) -> None:
        """The primary says that everything before this log offset is on enough disks."""
        self._engine.note_copy(_PRIMARY, safe_end)

    async def drop_before(self, first_offset: int) -> int:
        """Drop the segments that the primary has dropped; how many."""
        self._check_readable()
        async with self._expiring:
            return await self._retention.drop_before(first_offset)

    async def wait_on_disk(self) -> int:
        """The log offset before which everything is on the own disk, once that is all that has been
        taken. Raises FlushFailed.
        """
        await self._engine.wait_flushed()
        return self.on_disk_end()

    async def aclose(self) -> None:
        self._takes = False
        await super().aclose()

    async def promote(self, epoch: int) -> None:
        """Close it; the next start is that of a store of its own, in this epoch, later than any
        that the store it has followed comes to by starting again (EPOCHS_OF_A_PROMOTION): so the
        two logs can be compared, and this one is the newer.

        The epoch is durable on return, also on a full disk, which allows no orderly end. Raises
        FlushFailed, OSError: it may not be, and the store is closed.
        """
        try:
            await self._engine.record_epoch(epoch)
        finally:
            await self.aclose()

    async def take_back_epoch(self, epoch: int, before: int) -> None:
        """Be in the epoch `before` again, where the last one is this one of a promotion that did
        not end: no unit has it anywhere. Durable on return. Raises FlushFailed, OSError.
        """
        assert self._engine.received is not None, "the engine of a replica receives"
        is_without_units = self.epochs.last_begin >= self._engine.received.units_end
        if epoch and is_without_units and self.epochs.forget(epoch):
            await self._engine.record_epoch(before)

    def _take(self, offset: int, data: bytes) -> bool:
        self._check_readable()
        if not self._takes:
            raise StoreClosed
        received = self._engine.received
        assert received is not None, "the engine of a replica receives"
        return received.take(offset, data)
