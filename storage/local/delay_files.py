"""The files in `config/` by which a broker that is given the store knows what of the delay queues
has been delivered.

Without `delayOffset.json` it would deliver all that ever waited by level and is still in the log,
without `timercheck` all that waited for another time. They never claim more than is durable: they
are written behind the log, with the thorough rounds.
"""

from collections.abc import Mapping

from storage.clock import Clock
from storage.files import durable
from storage.formats import delay_progress, names
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import LevelOffsets
from storage.local.data_directory import DataDirectory
from storage.message import QueueId

_LEVELS = "delayOffset.json"
_TIMERS = "timercheck"


class DelayFiles:
    """The derive lane's while the store is open."""

    def __init__(self, directory: DataDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        # Beside a wheel of a broker's own we say nothing of timers: what that holds and what we say
        # would not go together.
        self._has_wheel = directory.vfs.exists(directory.root / "timerwheel")
        found = (
            self._read(_LEVELS) or self._read(_LEVELS + ".bak") or LevelOffsets({}, 0, is_ours=True)
        )
        self._counter = found.counter
        # what a broker had done before the store was opened, if it was the last
        self.by_broker: Mapping[QueueId, int] = {}
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
        timers = done_before.get(QueueId(names.TIMER_TOPIC, 0))
        if timers is not None and not self._has_wheel:
            self._replace(
                _TIMERS,
                delay_progress.encode_timercheck(timers, counter=self._counter, now_ms=now_ms),
            )

    def _replace(self, name: str, data: bytes) -> None:
        directory = self._directory
        durable.replace(directory.vfs, directory.config / name, data, scratch=directory.making)

    def _read(self, name: str) -> LevelOffsets | None:
        raw = durable.read_whole(self._directory.vfs, self._directory.config / name)
        return None if raw is None else delay_progress.decode_levels(raw)
