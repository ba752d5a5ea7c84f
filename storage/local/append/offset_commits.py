"""Commits of a group's offset: a message in the log, and its row in the table once the message can
be read.
"""

import asyncio
from collections.abc import Callable

from storage.clock import Clock
from storage.identifiers import Identifiers
from storage.local.append.log_writer import LogWriter
from storage.local.lanes.futures import failing, resolve
from storage.local.queues import group_offsets
from storage.local.queues.consume_queue import ConsumeQueues
from storage.local.queues.group_offsets import GroupOffsets
from storage.message import Message, Placed, QueueId

_TOGETHER = 1_000  # offsets that are put back at once


class OffsetCommits:
    """Commits of offsets of groups, appended together. Event loop only."""

    def __init__(
        self,
        offsets: GroupOffsets,
        queues: ConsumeQueues,
        writer: LogWriter,
        clock: Clock,
        identifiers: Identifiers,
    ) -> None:
        self._offsets = offsets
        self._queues = queues
        self._writer = writer
        self._clock = clock
        self._identifiers = identifiers
        self._under_way: dict[tuple[str, QueueId], asyncio.Future[None]] = {}
        self._queues.grow(group_offsets.QUEUE.topic, 1)

    async def commit(self, group: str, queue: QueueId, queue_offset: int) -> None:
        """Durable on return."""
        message = group_offsets.commit_message(
            group,
            queue,
            queue_offset,
            message_id=self._identifiers.new("msg"),
            now_ms=self._clock.wall_ms(),
        )
        # In `done` and not in the caller's turn: a snapshot of the table must never miss a message
        # that can be read.
        answer = self._add(
            message, lambda place: self._offsets.set(group, queue, queue_offset, place=place)
        )
        self._under_way[group, queue] = answer

        def end(_: asyncio.Future[None]) -> None:
            if self._under_way.get((group, queue)) is answer:
                del self._under_way[group, queue]

        answer.add_done_callback(end)
        # A caller that is cancelled does not end the commit: what it says is in the log by now.
        await asyncio.shield(answer)

    async def forget(self, group: str) -> None:
        """Remove what the group has committed. Durable on return."""
        if self._offsets.queues_of(group):
            message = group_offsets.group_deletion_message(
                group, message_id=self._identifiers.new("msg"), now_ms=self._clock.wall_ms()
            )
            await asyncio.shield(self._add(message, lambda _: self._offsets.drop_group(group)))

    def _add(self, message: Message, apply: Callable[[int], None]) -> asyncio.Future[None]:
        """Append a message of the offset topic; `apply` gets its place once it can be read."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(placed: Placed) -> None:
            apply(placed.queue_offsets[0])
            resolve(answer, None)

        self._writer.add_own([message], done=done, failed=failing(answer))
        return answer

    async def put_back(self, below: int) -> None:
        """Commit again the offsets whose messages are before this place of the offset topic.

        Where a commit of the same offset is under way, that one is waited for: the last one counts.
        """
        while expiring := [
            one for one in self._offsets.below(below) if not self._queues.is_closing(one[1].topic)
        ]:
            free = [one for one in expiring if one[:2] not in self._under_way]
            if free:
                await asyncio.gather(*[self.commit(*one) for one in free[:_TOGETHER]])
            else:
                await asyncio.wait([self._under_way[one[:2]] for one in expiring])
