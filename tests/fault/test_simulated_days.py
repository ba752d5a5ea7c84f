"""C10: days of all timers on a virtual clock that jumps: nothing early, lost or twice, nobody
forgotten, no loop that spins.
"""

import pytest

from tests.fault.campaign_size import sized
from tests.fault.simulated_day import DAY_SECONDS, Day

pytestmark = pytest.mark.faults

DAYS = sized(ci=10, full=2_000)
SHARDS = sized(ci=10, full=25)
_MOST_TURNS_A_SECOND = 10


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_timer_is_early_lost_or_doubled_whatever_the_clock_does(shard):
    for seed in range(shard, DAYS, SHARDS):
        day = Day(seed)
        day.run()

        assert day.turns < _MOST_TURNS_A_SECOND * DAY_SECONDS, (
            f"seed {seed}: {day.turns} turns of the loop in a day"
        )
        assert day.delivered > 100, f"seed {seed}: too little of a campaign, it would prove nothing"
        assert len(day.decided) > 50
        assert day.jumps or not day.jumps_allowed
