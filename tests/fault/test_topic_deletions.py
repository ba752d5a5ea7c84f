"""C23: kill -9 amid the deletion of a topic: it has happened as a whole or not at all, and other
topics lose nothing.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.campaign_size import sized

pytestmark = pytest.mark.faults

LIVES = sized(ci=4, full=1_000)
REPOSITORY = Path(__file__).parents[2]


def test_a_deletion_that_is_killed_has_happened_as_a_whole_or_not_at_all_for_every_observer(
    tmp_path,
):
    command = [
        sys.executable,
        "-m",
        "tests.fault.topic_deletions",
        "--lives",
        str(LIVES),
        "--seed",
        "1",
    ]

    ended = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    kills, failpoints, broken = map(int, re.findall(r"\d+", ended.stdout.splitlines()[-1]))
    assert broken == 0
    assert kills >= LIVES // 2, "too few lives were killed amid a deletion: it would prove nothing"
    assert failpoints >= sized(ci=1, full=40)
