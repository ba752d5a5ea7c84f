"""C12: whatever the network does between clients and the service, nothing is lost and nothing is
done twice.
"""

import pytest

from tests.fault.broken_network import ASKERS, SENDERS, Campaign
from tests.fault.campaign_size import sized
from tests.support.fault_proxy import Fault
from tests.support.server import Server

pytestmark = pytest.mark.faults

SHARDS = sized(ci=1, full=60)
STEPS = 45


@pytest.mark.parametrize("shard", range(SHARDS))
def test_behind_a_broken_network_nothing_is_lost_nothing_rolled_back_is_seen_and_each_key_counts_once(
    shard, tmp_path
):
    with Server(
        tmp_path / "data", environment={"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 22)}
    ) as server:
        campaign = Campaign(server, seed=shard, steps=STEPS)
        campaign.run()
        assert server.terminate() == 0

    assert not campaign.problems, "\n".join(campaign.problems[:20])
    for fault in Fault:
        assert campaign.faults[fault] > SENDERS, f"{campaign.faults}: it would prove nothing"
    assert campaign.tally["replied"] == ASKERS * STEPS
    for what in (
        "sent",
        "sent with a key",
        "replayed",
        "committed",
        "rolled_back",
        "acknowledged",
        "unanswered",
        "attempts repeated",
    ):
        assert campaign.tally[what] > STEPS // 6, f"{campaign.tally}: it would prove nothing"
