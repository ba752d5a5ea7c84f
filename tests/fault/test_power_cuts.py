"""C1: the real store and the real coordinator on a disk that loses power, is killed and closes,
thousands of times.
"""

import pytest

from tests.fault.campaign_size import sized
from tests.fault.chain import run_chain

pytestmark = pytest.mark.faults

LIVES = 8
CHAINS = sized(ci=400, full=200_000)  # five cuts each
SHARDS = 20


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_promise_is_broken_by_any_power_cut_or_kill(shard, record_property):
    per_shard = CHAINS // SHARDS
    cuts = messages = 0
    for seed in range(shard * per_shard, (shard + 1) * per_shard):
        outcome = run_chain(seed, LIVES)
        assert not outcome.problems, "\n".join(outcome.problems)
        cuts += outcome.cuts
        messages += outcome.messages

    record_property("cuts", cuts)
    assert cuts > 3 * per_shard, "too few cuts for a campaign: it would prove nothing"
    assert messages > 0
