"""`config/delayOffset.json`, by which a broker that is given the store knows what of the delay
levels has been delivered.

Without it a broker would deliver all that ever waited by level and is still in the log. It never
claims more than is durable: it is written behind the log, with the thorough rounds. Other times are
in `broker_timers.py`.
"""

from collections.abc import Mapping

from storage.clock import Clock
from storage.files import durable
from storage.files.unreadable import read_derived
from storage.formats import delay_progress
from storage.formats.config_json import MOST_BYTES
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import LevelOffsets
from storage.local.data_directory import DataDirectory
from storage.message import QueueId

_LEVELS = delay_progress.FILE


class DelayFiles:
    """Writes and reads the delay offsets of a broker. Derive lane only while the store is open."""

    def __init__(self, directory: DataDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        found = (
            self._read(_LEVELS) or self._read(_LEVELS + ".bak") or LevelOffsets({}, 0, is_ours=True)
        )
        self._counter = found.counter
        # what a broker had done before the store was opened, if it was the last
        self.by_broker: Mapping[QueueId, int] | None = None if found.is_ours else _by_queue(found)
        self._found = found

    def note_broker(self) -> None:
        """A broker was the last to have the store, and was killed before it wrote the file, which
        it does every ten seconds. Durable on return: it is known until the next `save`.
        """
        if self._found.is_ours:
            self._found = self._found._replace(is_ours=False)
            self.by_broker = _by_queue(self._found)
            self._write(self._found)

    def save(self, done_before: Mapping[QueueId, int]) -> None:
        """Durable on return."""
        self._counter += 1
        levels = {
            queue.number + 1: offset
            for queue, offset in done_before.items()
            if queue.topic == SCHEDULE_TOPIC
        }
        self._write(LevelOffsets(levels, self._counter, is_ours=True))

    def _write(self, levels: LevelOffsets) -> None:
        directory = self._directory
        data = delay_progress.encode_levels(levels, now_ms=self._clock.wall_ms())
        durable.replace(directory.vfs, directory.config / _LEVELS, data, scratch=directory.making)

    def _read(self, name: str) -> LevelOffsets | None:
        vfs, path = self._directory.vfs, self._directory.config / name
        raw = read_derived(vfs, path, lambda: durable.read_whole(vfs, path, most_bytes=MOST_BYTES))
        return None if raw is None else delay_progress.decode_levels(raw)


def _by_queue(levels: LevelOffsets) -> Mapping[QueueId, int]:
    return {QueueId(SCHEDULE_TOPIC, level - 1): offset for level, offset in levels.offsets.items()}
