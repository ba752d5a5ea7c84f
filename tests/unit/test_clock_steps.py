"""Jumps of the wall clock are distinguished from time that passes."""

import pytest
import structlog

from app.clock_steps import ClockSteps
from tests.support.clock import ManualClock

DAY_MS = 86_400_000


def ahead_after(*steps_ms: int) -> int:
    """How far the clock is seen ahead after these jumps, an hour apart."""
    clock = ManualClock()
    steps = ClockSteps(clock)
    for step_ms in steps_ms:
        clock.advance(3_600_000)
        clock.jump(step_ms)
        steps.ahead_ms()
    clock.advance(DAY_MS)
    return steps.ahead_ms()


@pytest.mark.parametrize(
    ("steps_ms", "ahead_ms"),
    [
        ([], 0),
        ([5 * DAY_MS], 5 * DAY_MS),
        ([5 * DAY_MS, -5 * DAY_MS], 0),
        ([5 * DAY_MS, -DAY_MS], 4 * DAY_MS),
        ([2 * DAY_MS, 3 * DAY_MS], 5 * DAY_MS),
        ([-5 * DAY_MS], 0),
        ([-5 * DAY_MS, 5 * DAY_MS], 0),
        ([500] * 1_000, 0),
    ],
    ids=["none", "one", "corrected", "partly", "two", "back", "back and right", "slewed"],
)
def test_the_jumps_since_the_start_are_added_up(steps_ms, ahead_ms):
    assert ahead_after(*steps_ms) == ahead_ms


def test_a_jump_is_logged_once_and_given_as_the_reason_why_nothing_expires():
    clock = ManualClock()
    steps = ClockSteps(clock)
    assert steps.reason() is None
    clock.jump(5 * DAY_MS)

    with structlog.testing.capture_logs() as logs:
        reasons = [steps.reason(), steps.reason()]

    assert logs == [
        {
            "event": "clock_jumped",
            "log_level": "warning",
            "by_ms": 5 * DAY_MS,
            "ahead_ms": 5 * DAY_MS,
        }
    ]
    assert reasons[0] == reasons[1]
    assert "432000 s ahead" in str(reasons[0])
