"""The checkpoint on disk: noted after every flush, forced now and then.

The flush lane owns it. A reader of a live store sees the synced position in the page cache as soon
as it is noted.
"""

from storage.files import durable
from storage.files.unreadable import read_derived
from storage.files.vfs import File
from storage.formats import checkpoint
from storage.formats.checkpoint import Fields, Slot
from storage.local.data_directory import DataDirectory


class CheckpointFile:
    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        vfs, path = directory.vfs, directory.checkpoint
        page = read_derived(vfs, path, lambda: durable.read_whole(vfs, path)) or b""
        # None until the first write: a start that is refused leaves what may be given back later
        self._file: File | None = None
        if len(page) == checkpoint.PAGE_BYTES:
            self._file = vfs.open(path)
        else:
            page = bytes(checkpoint.PAGE_BYTES)
        self._page = bytearray(page)
        self.fields = checkpoint.decode_fields(page)
        self.slot = checkpoint.newest_slot(page)

    def note(
        self,
        *,
        synced_offset: int,
        epoch: int,
        stored_at_ms: int,
        is_clean: bool = False,
        first_offset: int | None = None,
        confirm_offset: int | None = None,
    ) -> None:
        """Write how far the log is known to be on disk; in the page cache on return.

        `stored_at_ms`: of the newest record below synced_offset; 0 keeps what was noted before.
        `first_offset`: where the log begins; None keeps what was noted before. `confirm_offset`:
        what is on as many disks as must have it; None where this one is enough.
        """
        if first_offset is None and self.slot is not None:
            first_offset = self.slot.first_offset
        self._set_slot(synced_offset, epoch, first_offset, is_clean=is_clean)
        physic_ms, logics_ms, index_ms, master_flushed, _ = self.fields
        confirmed = synced_offset if confirm_offset is None else confirm_offset
        self._set_fields(
            Fields(stored_at_ms or physic_ms, logics_ms, index_ms, master_flushed, confirmed)
        )
        self._write()

    def confirm(self, confirm_offset: int) -> None:
        """Other disks have what the own one has had; in the page cache on return."""
        self._set_fields(self.fields._replace(confirm_offset=confirm_offset))
        self._write()

    def is_cached(self) -> bool:
        """Whether the page cache has the page that was just noted; False where the file system
        cannot tell what the page cache has.
        """
        return self._written.read_cached(0, checkpoint.PAGE_BYTES) is not None

    def record_beginning(self, first_offset: int) -> None:
        """Record that the log may begin here, and not later; durable on return.

        Into both slots: either may be read alone.
        """
        assert self.slot is not None, "a start notes the first one"
        _, synced_offset, epoch, is_clean, _ = self.slot
        for _ in checkpoint.SLOT_AT:
            self._set_slot(synced_offset, epoch, first_offset, is_clean=is_clean)
        self._write()
        self.force()

    def record_epoch(self, epoch: int) -> None:
        """Record that the next start continues in this epoch, or a later one; durable on return.
        Written in place, so a full disk has the space for it.
        """
        assert self.slot is not None, "a start notes the first one"
        self._set_slot(self.slot.synced_offset, epoch, self.slot.first_offset, is_clean=False)
        self._write()
        self.force()

    def note_queues(self, stored_at_ms: int) -> None:
        """The consume queues are on disk for records up to this store time."""
        self._set_fields(self.fields._replace(logics_ms=stored_at_ms))
        self._write()

    def force(self) -> None:
        """Durable on return."""
        self._written.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _written(self) -> File:
        assert self._file is not None, "a start notes the first one"
        return self._file

    def _set_slot(
        self, synced_offset: int, epoch: int, first_offset: int | None, *, is_clean: bool
    ) -> None:
        """Put a newer slot in place of the older one."""
        sequence = self.slot.sequence + 1 if self.slot is not None else 1
        self.slot = Slot(sequence, synced_offset, epoch, is_clean, first_offset)
        encoded, at = checkpoint.encode_slot(self.slot), checkpoint.SLOT_AT[sequence % 2]
        self._page[at : at + len(encoded)] = encoded

    def _set_fields(self, fields: Fields) -> None:
        self.fields = fields
        self._page[: checkpoint.FIELDS_BYTES] = checkpoint.encode_fields(fields)

    def _write(self) -> None:
        """Write fields and slots at once; a slot that is the same as before is not in danger."""
        if self._file is None:
            vfs, path = self._directory.vfs, self._directory.checkpoint
            durable.replace(vfs, path, bytes(self._page), scratch=self._directory.making)
            self._file = vfs.open(path)
        else:
            self._file.write(0, bytes(self._page[: checkpoint.USED_BYTES]))
