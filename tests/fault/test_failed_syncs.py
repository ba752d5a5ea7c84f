"""C6, for syncs: the first failure is final, so nothing is ever acknowledged that the disk
refused.
"""

import pytest

from tests.fault.failed_syncs import run_failed_sync

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("shard", range(10))
def test_nothing_is_acknowledged_that_a_failed_sync_kept_from_the_disk(shard):
    for seed in range(shard * 100, (shard + 1) * 100):
        problems = run_failed_sync(seed)
        assert not problems, "\n".join(problems)
