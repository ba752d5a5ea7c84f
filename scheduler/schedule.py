"""A schedule as clients see it: one delayed message, its time, and its state."""

from enum import StrEnum

import msgspec

from scheduler.marks import Cancelled, Change, Parked, shown_due_ms
from storage.message import DueEntry


class ScheduleState(StrEnum):
    SCHEDULED = "scheduled"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    PARKED = "set_aside"

    @property
    def is_finished(self) -> bool:
        return self in (ScheduleState.DELIVERED, ScheduleState.CANCELLED)


class Schedule(msgspec.Struct, frozen=True):
    schedule_id: str
    message_id: str  # this and the topic are empty where the message cannot be read any more
    topic: str  # where it is to go
    entry: DueEntry  # the last one it had in the index
    state: ScheduleState = ScheduleState.SCHEDULED
    reason: str | None = None  # why it was parked

    @property
    def due_ms(self) -> int:
        return shown_due_ms(self.entry)

    @property
    def revision(self) -> int:
        """Revision of the schedule; each change and its end add one."""
        return self.entry.revision + self.state.is_finished

    def after(self, mark: Change) -> "Schedule":
        """The schedule after a change."""
        if isinstance(mark, Cancelled):
            return msgspec.structs.replace(self, entry=mark.entry, state=ScheduleState.CANCELLED)
        (entry,) = mark.added
        if isinstance(mark, Parked):
            return msgspec.structs.replace(
                self, entry=entry, state=ScheduleState.PARKED, reason=mark.reason
            )
        return msgspec.structs.replace(
            self, entry=entry, state=ScheduleState.SCHEDULED, reason=None
        )
