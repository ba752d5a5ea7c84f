"""The optional part of a storage engine: its files as operators see them, in one Protocol.

`MessageStore.admin` returns it, or None. Only `app` asks for it: transactions, schedules and
delivery work on an engine without it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from storage.message import QueueId
from storage.store_status import (
    DiskUsage,
    RecoveryReport,
    ScrubStatus,
    SegmentInfo,
    StoreStatus,
    VerifyStep,
)

PutBack = Callable[[Mapping[QueueId, int]], Awaitable[None]]
"""Called with the first offset of each queue that stays; appends again, durably, the earlier
messages that are still needed.
"""


class RunningVerification(Protocol):
    """A verification whose steps run beside the owner's thread."""

    @property
    def total_bytes(self) -> int:
        """Bytes to read, as far as known."""

    async def step(self) -> VerifyStep | None:
        """Do the next step; None at the end. Raises OSError, StoreClosed."""

    async def aclose(self) -> None:
        """Release its files."""


class StoreAdmin(Protocol):
    """An engine that keeps its log in files of its own, and drops old ones: 11 methods."""

    # ----------------------------------------------------------------------------------------------
    # state

    def status(self) -> StoreStatus:
        """Return the numbers as they are now."""

    @property
    def recovery(self) -> RecoveryReport:
        """The report of this start."""

    @property
    def earlier_recoveries(self) -> Sequence[RecoveryReport]:
        """Reports of the starts before, the newest first."""

    async def segments(self) -> list[SegmentInfo]:
        """The pieces of the log, in log order. Raises StoreClosed."""

    # ----------------------------------------------------------------------------------------------
    # retention

    def disk_usage(self) -> DiskUsage:
        """Return the usage as it was when `expire` was last called."""

    async def expire(
        self,
        now_ms: int,
        put_back: PutBack,
        *,
        keep_ms: int = 0,
        ahead_ms: int = 0,
        at_any_hour: bool = False,
    ) -> int:
        """Drop some of the expired segments, if it is time or `at_any_hour`; return how many.

        Calls wait for each other.

        Messages younger than `keep_ms` have not expired, however short the engine's own retention
        is. `ahead_ms`: of `now_ms`, which have not passed; the clock was set ahead by so much while
        the store was open.

        `put_back` is called before anything is dropped. If it raises, the error is raised here, and
        nothing was dropped.
        """

    async def expired_segments(
        self, now_ms: int, *, keep_ms: int = 0, ahead_ms: int = 0
    ) -> list[SegmentInfo]:
        """Segments that `expire` may drop at any hour, the oldest first; it may take several calls
        to drop them all.
        """

    async def oldest_stored_at_ms(self) -> int | None:
        """When the oldest remaining message was stored; None where none has been dropped, or it
        cannot be read.
        """

    # ----------------------------------------------------------------------------------------------
    # verification

    async def begin_verification(self) -> RunningVerification:
        """Begin to verify every file of the store. Raises OSError, StoreClosed."""

    async def scrub(self) -> int:
        """Verify more of the old log, as far as the rate allows; return the number of bytes read.

        Raises OSError, StoreClosed.
        """

    def scrub_status(self) -> ScrubStatus:
        """The progress of `scrub`, and its findings."""
