"""Failed syncs and unreadable pages of derived files end no service and hide no message."""

import pytest

from tests.fault.campaign_size import FULL
from tests.fault.derived_failures import DerivedFailures

pytestmark = pytest.mark.faults


def test_no_failed_sync_and_no_unreadable_page_of_a_derived_file_ends_a_life_or_hides_a_message():
    for seed in range(3_000 if FULL else 30):
        chain = DerivedFailures(seed)
        chain.run()
        assert chain.problems == []
