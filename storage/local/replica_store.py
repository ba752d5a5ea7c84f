"""A store on this machine whose log is the copy of another one's: it takes units, and reads."""

from typing import ClassVar

from storage.errors import StoreClosed
from storage.formats.epochs import EpochHistory
from storage.local.local_store import LocalMessageStore

_PRIMARY = "primary"
_MOST_HIDDEN_BYTES = 32 << 20  # of units that are stored and not safe yet: they wait in memory


class LocalReplica(LocalMessageStore):
    """Follows a primary, made by `open`. Readers see what is safe and on its own disk.

    Every append is refused with StoreClosed.
    """

    _is_replica: ClassVar[bool] = True
    _takes = True

    @property
    def epochs(self) -> EpochHistory:
        """Of the log, as far as it is stored."""
        return self._files.recovered.epochs

    async def take(self, offset: int, data: bytes) -> None:
        """Store whole units of one segment at the end of the log, or the record that closes it, or
        both; they are in the page cache on return.

        Waits for room. Raises CorruptRecord where they are not what may follow here: nothing is
        stored. Raises StorageFull, Backpressure: the same units can be taken later. Raises
        StoreClosed.
        """
        while not self._take(offset, data):
            await self._engine.wait_progress()

    def note_safe(self, safe_end: int) -> None:
        """The primary says that everything before this log offset is on enough disks."""
        self._engine.note_copy(_PRIMARY, safe_end)

    async def wait_on_disk(self) -> int:
        """The log offset before which everything is on the own disk, once that is all that has been
        taken. Raises FlushFailed.
        """
        await self._engine.wait_flushed()
        return self._flusher.durable_end

    async def aclose(self) -> None:
        self._takes = False
        await super().aclose()

    def _take(self, offset: int, data: bytes) -> bool:
        self._check_readable()
        if not self._takes:
            raise StoreClosed
        received = self._engine.received
        assert received is not None, "the engine of a replica receives"
        return received.hidden_bytes < _MOST_HIDDEN_BYTES and received.take(offset, data)
