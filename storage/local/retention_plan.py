"""Which segments of the log may go, and whether the disk still takes new messages. Pure.

    the hour of deletion          segments that have expired
    the disk above clean_above    segments that have expired, at any hour
    above force_above             the same; with on_full = delete_oldest the oldest ones, expired or
                                  not
    above refuse_above            new messages are refused, until it is below force_above again

Oldest first, so many in one run, up to the first that stays, and never the last segment. A segment
has expired when its newest record is older than the retention. Source: RocketMQ
CleanCommitLogService, MappedFileQueue#deleteExpiredFileByTime.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

_HOUR_MS = 3_600_000


class OnFull(Enum):
    """The policy for messages that have not expired when the disk is nearly full."""

    KEEP = "keep"
    DELETE_OLDEST = "delete_oldest"


class RetentionPolicy(NamedTuple):
    """Ratios are of the disk's space, 0 to 1."""

    retention_ms: int
    delete_hours: frozenset[int]  # UTC, the whole hour
    batch: int
    clean_above: float
    force_above: float
    refuse_above: float
    on_full: OnFull


def plan_deletion(
    newest_ms: Sequence[int],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    used_ratio: float,
    at_any_hour: bool = False,
) -> int:
    """How many of the first segments may go.

    `newest_ms`: of each segment but the last, oldest first, a time at or behind which nothing was
    stored in it. `at_any_hour`: an operator asked for it.
    """
    is_forced = used_ratio > policy.force_above and policy.on_full is OnFull.DELETE_OLDEST
    is_time = (
        at_any_hour
        or (now_ms // _HOUR_MS) % 24 in policy.delete_hours
        or used_ratio > policy.clean_above
    )
    count = 0
    for newest in newest_ms[: policy.batch]:
        if not (is_forced or (is_time and has_expired(newest, policy, now_ms=now_ms))):
            break
        count += 1
    return count


def has_expired(newest_ms: int, policy: RetentionPolicy, *, now_ms: int) -> bool:
    """Is the newest record of a segment, stored at or before `newest_ms`, older than the
    retention?
    """
    return now_ms - newest_ms >= policy.retention_ms


def refuses(policy: RetentionPolicy, *, used_ratio: float, refused_before: bool) -> bool:
    """Whether new messages are refused. Between the two limits the last answer holds."""
    if used_ratio > policy.refuse_above:
        return True
    return refused_before and used_ratio > policy.force_above


class UsedSample(NamedTuple):
    at_ms: int
    used_bytes: int


class Growth(NamedTuple):
    """Growth of the used space from the first sample to the last; below 0 where it shrinks."""

    grown_bytes: int
    passed_ms: int

    @property
    def bytes_per_second(self) -> float:
        return self.grown_bytes * 1_000 / self.passed_ms if self.passed_ms else 0.0


def growth_of(samples: Sequence[UsedSample]) -> Growth:
    if not samples:
        return Growth(0, 0)
    first, last = samples[0], samples[-1]
    return Growth(last.used_bytes - first.used_bytes, max(0, last.at_ms - first.at_ms))


def project_full(samples: Sequence[UsedSample], *, limit_bytes: int) -> int | None:
    """When the disk reaches the limit if it fills as it did from the first sample to the last; None
    where it does not fill.
    """
    growth = growth_of(samples)
    if growth.grown_bytes <= 0 or growth.passed_ms <= 0:
        return None
    last = samples[-1]
    left_bytes = max(0, limit_bytes - last.used_bytes)
    return last.at_ms + left_bytes * growth.passed_ms // growth.grown_bytes
