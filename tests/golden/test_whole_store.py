"""A data directory with every kind of table in it, written by an earlier version, opens with all of
them equal.

`closed` was stopped in order, `killed` is a copy of its files while it ran, older snapshots and all
(README.md).
"""

import json
import lzma
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.golden.whole_service import whole_service
from tests.support.clock import ManualClock

FOLDER = Path(__file__).parent / "escrowmq-1-whole"
# Fields of messages, and of the lag of a group.
ADDED_SINCE = {"transaction_id", "dead_letters", "session_timeout_ms", "queue_rooms"}
KEPT_BY_THE_ENGINE = ["consume_queues", "group_offsets", "timers"]  # written whenever it is closed

each_store = pytest.mark.parametrize("name", ["closed", "killed"])


@lru_cache
def truth() -> dict[str, Any]:
    return json.loads(lzma.decompress((FOLDER / "truth.json.xz").read_bytes()))


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "data"


def opened(data_dir: Path):
    return whole_service(data_dir, ManualClock(truth()["wall_ms"]))


def written_files(data_dir: Path) -> dict[str, int]:
    """Snapshots of tables; one that is written again is another file."""
    files = (data_dir / "store/snapshots").iterdir()
    return {file.name: file.stat().st_ino for file in files if file.name not in KEPT_BY_THE_ENGINE}


def as_then(now: Any, then: Any) -> Any:
    """The answer without the fields that the contract has had only since."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {
            name: as_then(value, then.get(name))
            for name, value in now.items()
            if name in then or name not in ADDED_SINCE
        }
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [as_then(one, other) for one, other in zip(now, then, strict=True)]
    return now


@each_store
async def test_every_question_is_answered_as_it_was_by_the_version_that_wrote_it(name, tmp_path):
    async with opened(unpacked(name, tmp_path)) as service:
        served = await service.served(truth()["request_ids"])

    assert as_then(served, truth()["served"]) == truth()["served"]
    for group in ("in-order", "pullers", "red-ones", "repliers", "workers"):
        dead = served[f"groups/{group}/dead-letters"]["items"]
        assert served[f"groups/{group}/lag"]["dead_letters"] == len(dead)


@each_store
async def test_a_request_that_is_repeated_gets_the_answer_that_it_got_then(name, tmp_path):
    async with opened(unpacked(name, tmp_path)) as service:
        await service.served(
            truth()["request_ids"]
        )  # a begin that is repeated says where messages are if a look has found them
        for request, answer in truth()["repeated"]:
            assert await service.repeat(request) == answer


async def test_a_store_that_was_closed_in_order_is_opened_without_rebuilding_anything(tmp_path):
    data_dir = unpacked("closed", tmp_path)

    with capture_logs() as lines:
        async with opened(data_dir) as service:
            store = service.services.store
            status = store.status()

    assert (
        store.recovery.was_clean,
        store.recovery.walked_bytes,
        store.recovery.replayed_records,
    ) == (True, 0, 0)
    assert (status.rebuilt_index_files, status.rebuilt_entries) == (0, 0)
    opening = {line["event"]: line["replayed"] for line in lines if "replayed" in line}
    names = ("transactions_open", "schedules_open", "groups_open", "members_open")
    assert opening == dict.fromkeys(names, 0)
    assert [line for line in lines if line["log_level"] != "info"] == []
    # That stop wrote messages of a delay level again that an earlier version had handed over less
    # well. A table that had to replay anything is written again.
    before = written_files(data_dir)
    async with opened(data_dir):
        pass
    assert written_files(data_dir) == before


@each_store
async def test_it_goes_on_where_it_ended(name, tmp_path):
    path = "/v1/topics/orders/queues/0/messages"
    async with opened(unpacked(name, tmp_path)) as service:
        end = (await service.get(path, offset=0))["max_offset"]
        await service.post(
            "/v1/topics/orders/messages", {"payload": "new", "queue_id": 0}, key="new", status=201
        )
        await service.post("/v1/transactions/first-open/commit", {})

        page = await service.get(path, offset=end)
        decided = await service.get("/v1/transactions/first-open")

    assert "new" in [message["payload"] for message in page["messages"]]
    assert page["messages"][0]["queue_offset"] == end
    assert decided["state"] == "committed"
