"""C9: transactions against a plain model, with concurrent decisions, checks, clock jumps, kills and power cuts."""

import os
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fault.transaction_machine import TransactionMachine

pytestmark = pytest.mark.faults

EXAMPLES = {"ci": 2_000, "full": 100_000}[os.environ.get("FAULTS", "ci")]
STEPS = 50
SHARDS = 20


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_sequence_of_requests_crashes_and_jumps_breaks_a_promise_about_a_transaction(shard):
    @seed(shard)
    class Machine(TransactionMachine):
        tally: ClassVar[Counter[str]] = Counter()

    count = EXAMPLES // SHARDS
    how = settings(
        max_examples=count,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=how)

    for what in ("power cuts", "kills", "prepared", "held", "committed", "rolled_back"):
        assert Machine.tally[what] > count // 10, f"{Machine.tally}: too little of a campaign, it would prove nothing"
