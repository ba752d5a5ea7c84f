"""C11: the wall clock jumps under a service that works."""

import pytest

from tests.fault.campaign_size import sized
from tests.fault.clock_jumps import ANSWERS_BETWEEN_JUMPS, JUMPS_MS, Campaign
from tests.support.moved_clock import MovedClockServer

pytestmark = pytest.mark.faults

JUMPS = len(JUMPS_MS) * sized(ci=3, full=200)


def test_a_clock_that_jumps_under_load_loses_doubles_and_hastens_nothing(tmp_path):
    with MovedClockServer(tmp_path / "data") as server:
        campaign = Campaign(server, seed=0, jumps=JUMPS)
        campaign.run()
        assert server.terminate() == 0

    assert not campaign.problems, "\n".join(campaign.problems[:20])
    assert "level=error" not in server.log()
    assert campaign.jumps >= JUMPS
    for what in (campaign.delayed, campaign.decided_by_check):
        assert what > JUMPS * ANSWERS_BETWEEN_JUMPS / 20, (
            "too little of a campaign: it would prove nothing"
        )
    assert campaign.delivered > JUMPS * ANSWERS_BETWEEN_JUMPS / 2
