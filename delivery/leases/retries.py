"""Retries of a group that wait outside its topics: their number by queue, and those that a reset
has ended. Pure.

A retry belongs to the generation of its group at the time of the rejection. A reset, or the
deletion of the group, begins a new generation and makes earlier retries void: they are skipped when
they arrive.
"""

from collections.abc import Iterable, Mapping


class Retries:
    """The retries of a group that wait in the retry topic. `start`: offset at which the retry topic
    begins for this group.
    """

    def __init__(self, *, generation: int = 0, void_before: int = 0, start: int = 0) -> None:
        self.generation = generation
        self.void_before = void_before
        self.void_before_of: dict[str, int] = {}  # by queue ("orders/2"), or topic
        self.start = start
        self.waiting: dict[str, int] = {}  # messages delayed, by queue ("orders/2"), or topic

    def is_void(self, queue: str, generation: int) -> bool:
        """Whether a retry of a message of this queue was ended by a reset, or belongs to a deleted
        group of the same name.
        """
        ended = self.void_before_of
        return generation < max(
            self.void_before, ended.get(queue.partition("/")[0], 0), ended.get(queue, 0)
        )

    def end(self, queues: Iterable[str], generation: int) -> None:
        """Make the retries of these queues from before this generation void."""
        for queue in queues:
            self.void_before_of[queue] = generation
            self.waiting.pop(queue, None)

    def note_delayed(self, waiting: Mapping[str, int], generation: int | None) -> None:
        """Add waiting retries by queue, without those of a generation that a reset has already
        ended.
        """
        known = self.generation if generation is None else generation
        self.note_waiting(
            {queue: count for queue, count in waiting.items() if not self.is_void(queue, known)}
        )

    def note_waiting(self, waiting: Mapping[str, int]) -> None:
        for queue, count in waiting.items():
            self.waiting[queue] = self.waiting.get(queue, 0) + count

    def note_arrived(self, arrived: Mapping[str, int]) -> None:
        """Subtract retries by queue that have arrived in the retry topic and were read there."""
        for queue, count in arrived.items():
            # What an earlier version delayed is counted by topic.
            for counted in (queue, queue.partition("/")[0]):
                known = min(count, self.waiting.get(counted, 0))
                if known:
                    self.waiting[counted] -= known
                    count -= known
