"""Retries of a group, which wait outside its topics: how many wait, of which queue, and which of
them a reset has ended. Pure.

A retry is put off in a generation of its group. A reset, or the deletion of the group, begins a new
one and makes those of before void: they are passed over when they come.
"""

from collections.abc import Iterable, Mapping


class Retries:
    """`start`: where the retry topic begins for this group."""

    def __init__(self, *, generation: int = 0, void_before: int = 0, start: int = 0) -> None:
        self.generation = generation
        self.void_before = void_before
        self.void_before_of: dict[str, int] = {}  # by queue ("orders/2"), or topic
        self.start = start
        self.waiting: dict[str, int] = {}  # messages put off, by queue ("orders/2"), or topic

    def is_void(self, queue: str, generation: int) -> bool:
        """Was a retry of a message of this queue ended by a reset, or with an earlier group of the
        name?
        """
        ended = self.void_before_of
        return generation < max(
            self.void_before, ended.get(queue.partition("/")[0], 0), ended.get(queue, 0)
        )

    def end(self, queues: Iterable[str], generation: int) -> None:
        """Those of these queues from before this generation are void."""
        for queue in queues:
            self.void_before_of[queue] = generation
            self.waiting.pop(queue, None)

    def note_put_off(self, waiting: Mapping[str, int], generation: int | None) -> None:
        """So many of each queue wait; what was put off in an older generation than a reset's is
        void already.
        """
        known = self.generation if generation is None else generation
        self.note_waiting(
            {queue: count for queue, count in waiting.items() if not self.is_void(queue, known)}
        )

    def note_waiting(self, waiting: Mapping[str, int]) -> None:
        for queue, count in waiting.items():
            self.waiting[queue] = self.waiting.get(queue, 0) + count

    def note_arrived(self, arrived: Mapping[str, int]) -> None:
        """So many of each queue have come to the retry topic and were met there."""
        for queue, count in arrived.items():
            # What was put off by an earlier version is counted by topic.
            for counted in (queue, queue.partition("/")[0]):
                known = min(count, self.waiting.get(counted, 0))
                if known:
                    self.waiting[counted] -= known
                    count -= known
