"""C9: transactions against a plain model, with concurrent decisions, checks, clock jumps, kills and
power cuts.
"""

from collections import Counter
from typing import ClassVar

import pytest

from tests.fault.campaign_size import sized
from tests.fault.decide_over_http import Campaign
from tests.fault.transaction_machine import TransactionMachine
from tests.support.model import run_model
from tests.support.server import Server

pytestmark = pytest.mark.faults

EXAMPLES = sized(ci=600, full=100_000)
STEPS = 50
SHARDS = sized(ci=6, full=20)
TRANSACTIONS = sized(ci=6_000, full=1_000_000)
TRANSACTION_SHARDS = 4
KILLS = 4  # of the service, in each shard


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_sequence_of_requests_crashes_and_jumps_breaks_a_promise_about_a_transaction(shard):
    class Machine(TransactionMachine):
        tally: ClassVar[Counter[str]] = Counter()

    count = EXAMPLES // SHARDS
    run_model(Machine, shard, examples=count, steps=STEPS, shrinks=True)

    for what in (
        "power cuts",
        "kills",
        "prepared",
        "committed",
        "rolled_back",
        "begun plainly",
        "decided plainly",
    ):
        assert Machine.tally[what] > count // 10, (
            f"{Machine.tally}: too little of a campaign, it would prove nothing"
        )
    assert Machine.tally["held"] > 0


@pytest.mark.parametrize("shard", range(TRANSACTION_SHARDS))
def test_clients_that_decide_against_each_other_over_http_are_told_one_decision_each(
    shard, tmp_path
):
    count = TRANSACTIONS // TRANSACTION_SHARDS
    with Server(tmp_path / "data", environment={"ESCROWMQ_TXN__DECIDED_KEPT": "500"}) as server:
        campaign = Campaign(server, seed=shard, transactions=count, kills=KILLS)
        campaign.run()

    assert not campaign.problems, "\n".join(campaign.problems[:10])
    assert campaign.judged == count
    assert campaign.conflicts > count // 2, "nobody decided against anybody: it would prove nothing"
    assert campaign.unanswered > 0
