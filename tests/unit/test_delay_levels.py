"""When a message that waits under one of RocketMQ's levels is due."""

import pytest

from storage.formats.delay_levels import deliver_at_ms

STORED_AT_MS = 1_700_000_000_000
SECONDS = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


@pytest.mark.parametrize(("level", "seconds"), list(enumerate(SECONDS, 1)))
def test_each_of_the_eighteen_levels_has_its_delay(level, seconds):
    assert deliver_at_ms(str(level), STORED_AT_MS) == STORED_AT_MS + seconds * 1000


@pytest.mark.parametrize("level", ["19", "99", "2147483647"])
def test_a_higher_level_is_the_highest(level):
    assert deliver_at_ms(level, STORED_AT_MS) == STORED_AT_MS + 7200 * 1000


@pytest.mark.parametrize(
    "level",
    ["", "0", "-1", "1.5", " 1", "x", "²", "\u0663", "1\n", "9" * 30_000],
    ids=lambda level: ascii(level[:9]),
)
def test_what_is_no_level_delays_by_a_second(level):
    assert deliver_at_ms(level, STORED_AT_MS) == STORED_AT_MS + 1000
