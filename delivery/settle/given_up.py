"""Counting and logging of the messages that a group gave up: dead letters, and messages that are
dropped because the group keeps no dead letters.

Each message has a line in the service's log, up to a number of lines for a group and a cause in a
time: a consumer that fails each message does not fill the log. The others have one line together,
at the end of the time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from delivery.leases import retry_message
from delivery.leases.given_up import Cause
from delivery.leases.group import GroupLeases
from storage.clock import Clock
from storage.message import StoredMessage

_LINES = 20  # of a group and a cause in each period
_PERIOD_MS = 10_000

log = structlog.get_logger()


class GivenUp(NamedTuple):
    """A message that a group gave up. `attempts`: deliveries so far."""

    message: StoredMessage
    attempts: int
    cause: Cause
    is_kept: bool  # as a dead letter


class GivenUpLog:
    """Notes messages that were given up, once that is on disk. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = 0  # of the period, on the monotonic clock
        self._counts: dict[tuple[str, Cause], int] = {}  # messages in the period

    def note(self, leases: GroupLeases, found: Sequence[GivenUp]) -> None:
        """Count these messages of a group, and log them."""
        for one in found:
            if one.is_kept:
                leases.dead_lettered[one.cause] += 1
            else:
                leases.discarded += 1
            self._log(leases.group, one)

    def end_period(self, *, is_last: bool = False) -> None:
        """Log the numbers of messages without a line of their own, if the period is over, or
        `is_last`: the service stops.
        """
        if not self._counts or not (is_last or self._clock.monotonic_ms() >= self._end_ms):
            return
        counts, self._counts = self._counts, {}
        for (group, cause), count in counts.items():
            if count > _LINES:
                _writer(cause)(
                    "messages_given_up", group=group, reason=cause.value, messages=count - _LINES
                )

    def _log(self, group: str, one: GivenUp) -> None:
        if not self._counts:
            self._end_ms = self._clock.monotonic_ms() + _PERIOD_MS
        count = self._counts.get((group, one.cause), 0) + 1
        self._counts[group, one.cause] = count
        if count <= _LINES:
            _writer(one.cause)(
                "message_dead_lettered" if one.is_kept else "message_discarded",
                group=group,
                topic=retry_message.origin_of(one.message).queue.topic,
                message_id=one.message.message_id,
                attempts=one.attempts,
                reason=one.cause.value,
            )


def _writer(cause: Cause) -> Callable[..., None]:
    """The method of the log, by its level: a consumer's request is no reason for a warning."""
    write: Callable[..., None] = log.info if cause is Cause.REQUESTED else log.warning
    return write
