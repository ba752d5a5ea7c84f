"""C26: members of a group that are paused for longer than their locks hold, and a service that is
killed: no message of an ordered queue is processed by two of them.
"""

import pytest

from tests.fault.campaign_size import sized
from tests.fault.group_members import ENVIRONMENT, QUEUES, Campaign
from tests.support.server import Server

pytestmark = pytest.mark.faults

SHARDS = 2
FAULTS = sized(ci=60, full=2_000)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_message_of_an_ordered_queue_is_processed_by_two_members(shard, tmp_path):
    with Server(tmp_path / "data", dev=False, environment=ENVIRONMENT) as server:
        campaign = Campaign(server, seed=shard, faults=FAULTS // SHARDS)
        campaign.run()
        problems = campaign.problems()

    assert problems == []
    assert campaign.kills > 0
    assert campaign.fenced > 0
    assert sum(campaign.owners.values()) > QUEUES
    assert len(campaign.owners) == QUEUES
