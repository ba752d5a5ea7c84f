"""C5: kill -9 under load, of the store alone and of the whole service: nothing is lost, nothing
rolled back is seen.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.campaign_size import sized
from tests.fault.kill_service import Campaign
from tests.support.server import Server

pytestmark = pytest.mark.faults

STORE_CYCLES = sized(ci=300, full=20_000)
STORE_SHARDS = 20
SERVICE_CYCLES = sized(ci=20, full=2_000)
SERVICE_SHARDS = 2
KILLS_BETWEEN = sized(ci=1, full=50)  # at each failpoint
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("shard", range(STORE_SHARDS))
def test_a_store_that_is_killed_keeps_every_promise(shard, tmp_path):
    cycles = STORE_CYCLES // STORE_SHARDS
    command = [
        sys.executable,
        "-m",
        "tests.fault.kill_store",
        "--cycles",
        str(cycles),
        "--seed",
        str(shard),
    ]

    ended = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    kills, answered, broken = map(int, re.findall(r"\d+", ended.stdout.splitlines()[0]))
    assert broken == 0
    assert kills >= cycles
    assert answered > 5 * cycles, "too little was going on for a campaign: it would prove nothing"


@pytest.mark.parametrize("shard", range(SERVICE_SHARDS))
def test_a_service_that_is_killed_under_load_loses_nothing_and_shows_nothing_it_should_not(
    shard, tmp_path
):
    environment = {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 20),
        "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "500",
    }
    with Server(tmp_path / "data", environment=environment) as server:
        campaign = Campaign(server, seed=shard, cycles=SERVICE_CYCLES // SERVICE_SHARDS)
        campaign.run()

    assert not campaign.problems, "\n".join(campaign.problems[:20])
    assert campaign.kills == SERVICE_CYCLES // SERVICE_SHARDS
    assert campaign.acknowledged > 20 * campaign.kills, (
        "too little was going on for a campaign: it would prove nothing"
    )
    assert campaign.consumed > 5 * campaign.kills
    assert campaign.committed > campaign.kills
    assert campaign.served > campaign.acknowledged // 2, "consumers that read nothing prove nothing"


def test_a_commit_that_is_killed_at_any_call_on_the_disk_is_neither_lost_nor_done_twice(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.fault.kill_between",
        "--kills",
        str(KILLS_BETWEEN),
        "--directory",
        str(tmp_path),
    ]

    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    kills, failpoints, broken = map(int, re.findall(r"\d+", ended.stdout.splitlines()[-1]))
    assert broken == 0
    assert failpoints >= 10, ended.stdout
    assert kills >= failpoints * KILLS_BETWEEN * 0.8, ended.stdout
