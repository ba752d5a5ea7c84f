"""C10: the power goes at each operation of dropping segments and writing again what must outlive
them.
"""

import pytest

from tests.fault.campaign_size import sized
from tests.fault.retention_cuts import count_operations, expired_store, problems_of_cut

pytestmark = pytest.mark.faults

SEEDS = sized(ci=1, full=30)


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_power_cut_at_any_operation_of_retention_loses_nothing_that_counts(seed):
    base, expected, wall_ms = expired_store()
    operations = count_operations(base, expected, wall_ms, seed)
    assert operations > 100, "there is something to cut"

    problems = {
        cut: found
        for cut in range(operations)
        if (found := problems_of_cut(base, expected, wall_ms, seed, cut))
    }

    assert problems == {}
