"""What is to fire now: as a table of what was missed and what the schedule says of it."""

import pytest

from scheduler.cron_line import CronLine
from scheduler.cron_schedule import MOST_AT_ONCE, CatchUp, Plan, plan

MINUTE = 60_000
GRACE_MS = 60_000
EVERY_MINUTE = CronLine("* * * * *", "UTC")
NOON = 1_800_014_400_000
assert NOON % (12 * 60 * MINUTE) == 0


def planned(catch_up: CatchUp, *, first_ms: int, now_ms: int) -> Plan:
    return plan(EVERY_MINUTE, catch_up, first_ms=first_ms, now_ms=now_ms, grace_ms=GRACE_MS)


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("late_ms", [0, 1, GRACE_MS])
def test_what_is_due_fires_whatever_is_said_of_missed_ones(catch_up, late_ms):
    assert planned(catch_up, first_ms=NOON, now_ms=NOON + late_ms) == Plan(None, [NOON])


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (CatchUp.SKIP, Plan((NOON, NOON + 2 * MINUTE - 1), [])),  # what is not too late fires next
        (CatchUp.ONCE, Plan((NOON, NOON + 3 * MINUTE - 1), [NOON + 3 * MINUTE])),
        (CatchUp.ALL, Plan(None, [NOON, NOON + MINUTE, NOON + 2 * MINUTE, NOON + 3 * MINUTE])),
    ],
)
def test_what_was_missed_is_left_out_or_made_up_for_as_the_schedule_says(catch_up, expected):
    assert planned(catch_up, first_ms=NOON, now_ms=NOON + 3 * MINUTE) == expected


def test_the_one_that_is_made_up_for_may_be_the_only_one():
    yearly = CronLine("@yearly", "UTC")
    (first_ms,) = yearly.upcoming(NOON, 1)

    for catch_up in (CatchUp.ONCE, CatchUp.ALL):
        made_up = plan(
            yearly, catch_up, first_ms=first_ms, now_ms=first_ms + 99 * MINUTE, grace_ms=GRACE_MS
        )
        assert made_up == Plan(None, [first_ms])


def test_no_more_than_a_hundred_are_made_up_for_the_last_ones():
    now_ms = NOON + 7 * 24 * 60 * MINUTE

    skipped, fire = planned(CatchUp.ALL, first_ms=NOON, now_ms=now_ms)

    assert list(fire) == [now_ms - back * MINUTE for back in range(MOST_AT_ONCE)][::-1]
    assert skipped == (NOON, fire[0] - 1)
