"""`config/delayOffset.json`, by which a broker that is given the store knows what of the delay
levels has been delivered.

Without it a broker would deliver all that ever waited by level and is still in the log. It never
claims more than is durable: it is written behind the log, with the thorough rounds. Other times are
in `broker_timers.py`.
"""

from collections.abc import Mapping

from storage.clock import Clock
from storage.files import durable
from storage.formats import delay_progress
from storage.formats.config_json import MOST_BYTES
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import LevelOffsets
from storage.local.data_directory import DataDirectory
from storage.message import QueueId

_LEVELS = delay_progress.FILE


class DelayFiles:
    """The derive lane's while the store is open."""

    def __init__(self, directory: DataDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        found = (
            self._read(_LEVELS) or self._read(_LEVELS + ".bak") or LevelOffsets({}, 0, is_ours=True)
        )
        self._counter = found.counter
        # what a broker had done before the store was opened, if it was the last
        self.by_broker: Mapping[QueueId, int] | None = None
        if not found.is_ours:
            self.by_broker = {
                QueueId(SCHEDULE_TOPIC, level - 1): offset
                for level, offset in found.offsets.items()
            }

    def save(self, done_before: Mapping[QueueId, int]) -> None:
        """Durable on return."""
        self._counter += 1
        now_ms = self._clock.wall_ms()
        levels = {
            queue.number + 1: offset
            for queue, offset in done_before.items()
            if queue.topic == SCHEDULE_TOPIC
        }
        self._replace(
            _LEVELS,
            delay_progress.encode_levels(
                LevelOffsets(levels, self._counter, is_ours=True), now_ms=now_ms
            ),
        )

    def _replace(self, name: str, data: bytes) -> None:
        directory = self._directory
        durable.replace(directory.vfs, directory.config / name, data, scratch=directory.making)

    def _read(self, name: str) -> LevelOffsets | None:
        path = self._directory.config / name
        raw = durable.read_whole(self._directory.vfs, path, most_bytes=MOST_BYTES)
        return None if raw is None else delay_progress.decode_levels(raw)
