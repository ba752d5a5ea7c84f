"""The checkpoint on disk: noted after every flush, forced now and then.

The flush lane owns it. A reader of a live store sees the synced position in the page cache as soon as it is noted.
"""

from storage.files import durable
from storage.formats import checkpoint
from storage.formats.checkpoint import Fields, Slot
from storage.local.data_directory import DataDirectory


class CheckpointFile:
    def __init__(self, directory: DataDirectory) -> None:
        vfs, path = directory.vfs, directory.checkpoint
        page = durable.read_whole(vfs, path) or b""
        if len(page) != checkpoint.PAGE_BYTES:
            page = bytes(checkpoint.PAGE_BYTES)
            durable.replace(vfs, path, page, scratch=directory.making)
        self._file = vfs.open(path)
        self.fields = checkpoint.decode_fields(page)
        self.slot = checkpoint.newest_slot(page)

    def note(self, *, synced_offset: int, epoch: int, stored_at_ms: int, is_clean: bool = False) -> None:
        """What is known to be on disk now; in the page cache on return.

        `stored_at_ms`: of the newest record below synced_offset; 0 keeps what was noted before.
        """
        sequence = self.slot.sequence + 1 if self.slot is not None else 1
        self.slot = Slot(sequence, synced_offset, epoch, is_clean)
        self._file.write(checkpoint.SLOT_AT[sequence % 2], checkpoint.encode_slot(self.slot))
        self._note_fields(self.fields._replace(physic_ms=stored_at_ms or self.fields.physic_ms, confirm_offset=synced_offset))

    def note_queues(self, stored_at_ms: int) -> None:
        """The consume queues are on disk for records up to this store time."""
        self._note_fields(self.fields._replace(logics_ms=stored_at_ms))

    def force(self) -> None:
        """Durable on return."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _note_fields(self, fields: Fields) -> None:
        self.fields = fields
        self._file.write(0, checkpoint.encode_fields(fields))
