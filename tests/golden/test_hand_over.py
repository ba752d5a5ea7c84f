"""A store of a broker is taken over with its topics, its groups and their positions, over HTTP; and
it is given back with where they stand then.
"""

import json
import shutil
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.hand_over.broker_files import BrokerFiles
from app.life.machine import Machine
from app.life.service_life import Phase, ServiceLifecycle
from app.observability.metrics import Metrics
from app.settings import Settings
from delivery.leases.retry_message import retry_queue
from storage.formats import consumer_offsets, group_configs, names, topic_configs
from storage.formats.consumer_offsets import GroupQueue
from storage.local.options import LocalStoreOptions
from tests.golden.whole_service import WholeService, whole_service
from tests.support.builders import message
from tests.support.clock import ManualClock
from tests.support.http import ok, reached

FOLDER = Path(__file__).parent / "rocketmq-5.3.3"
LOCAL = LocalStoreOptions(
    segment_bytes=1 << 20,
    queue_file_entries=1000,
    index_slots=5_000,
    index_file_entries=20_000,
    scrub_bytes_per_second=0,
)
WALL_MS = 1_795_254_920_000  # shortly after the brokers ended
CONFIG = Path("store/config")
WORKER, PICKY, WEAK = (f"g-public-1-{name}" for name in ("worker", "picky", "weak"))


class RunningClock(ManualClock):
    """Time that begins at that of the store, and passes."""

    def wall_ms(self) -> int:
        return super().wall_ms() + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 - _BEGUN_MS


_BEGUN_MS = time.monotonic_ns() // 1_000_000 - 1_000


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A copy of the store `public-1`, as it lay on the broker's disk."""
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(FOLDER / "public-1.tar.xz") as archive:
        archive.extractall(data, filter="data")
    return data


@asynccontextmanager
async def opened(data_dir: Path, wall_ms: int = WALL_MS) -> AsyncIterator[WholeService]:
    async with whole_service(data_dir, RunningClock(wall_ms=wall_ms), LOCAL) as service:
        yield service


def offsets_of(data_dir: Path) -> dict[GroupQueue, int]:
    return consumer_offsets.read(
        (data_dir / CONFIG / consumer_offsets.FILE).read_bytes()
    ).by_queue()


def edit(data_dir: Path, name: str, **changes: Any) -> None:
    """Change a file as a broker would leave it."""
    path = data_dir / CONFIG / name
    if name == consumer_offsets.FILE:
        offsets = consumer_offsets.read(path.read_bytes())
        table = consumer_offsets.tables_of({**offsets.by_queue(), **changes["offsets"]})
        raw = consumer_offsets.encode(table, offsets.data_version)
    else:
        content = json.loads(path.read_bytes())
        for member, values in changes.items():
            for key, fields in values.items():
                content[member][key] = {**content[member].get(key, {}), **fields}
        raw = json.dumps(content).encode()
    path.write_bytes(raw.replace(b'"writtenBy":"EscrowMQ"', b'"other":0'))


async def receive(service: WholeService, group: str, count: int = 100) -> list[dict[str, Any]]:
    body = {"max_messages": count, "lease_ms": 60_000}
    return (await service.post(f"/v1/groups/{group}/receive", body))["messages"]


async def acknowledge(service: WholeService, group: str, given: list[dict[str, Any]]) -> None:
    entries = [{"receipt_handle": one["receipt_handle"]} for one in given]
    await service.post(f"/v1/groups/{group}/ack", {"entries": entries})


async def refused_start(data_dir: Path) -> list[str]:
    """Start a service that is refused; what it logs of that."""
    settings = Settings(data_dir=data_dir, local=LOCAL)
    clock = RunningClock(wall_ms=WALL_MS)
    machine = Machine(settings, clock)
    lifecycle = ServiceLifecycle(settings, Metrics(), machine, clock=clock)
    with capture_logs() as logs:
        lifecycle.start()
        await reached(lambda: lifecycle.phase is not Phase.STARTING, "the start has ended")
        await lifecycle.close()
    assert lifecycle.exit_code
    return [line["error"] for line in logs if line["event"] == "service_failed"]


async def receive_all(service: WholeService, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while more := await receive(service, group):
        found += more
    return found


# --------------------------------------------------------------------------------------------------
# topics, groups


async def test_topics_have_the_queues_that_the_broker_says(data_dir):
    edit(data_dir, topic_configs.FILE, topicConfigTable={
        "orders": {"readQueueNums": 6, "writeQueueNums": 6},
        "empty": {"topicName": "empty", "readQueueNums": 8, "writeQueueNums": 8},
    })  # fmt: skip
    async with opened(data_dir) as service:
        topics = (await service.get("/v1/topics"))["items"]

    assert {one["topic"]: one["queues"] for one in topics} == {
        "orders": 6, "payments": 4, "stock-moves": 4, "empty": 8
    }  # fmt: skip
    assert {one["revision"] for one in topics} == {1}


async def test_the_groups_of_the_broker_are_listed_with_their_topics_and_attempts(data_dir):
    edit(data_dir, group_configs.FILE, subscriptionGroupTable={PICKY: {"retryMaxTimes": 3}})
    async with opened(data_dir) as service:
        groups = {one["group"]: one for one in (await service.get("/v1/groups"))["items"]}

    assert sorted(groups) == [PICKY, WEAK, WORKER, "golden-reader"]
    assert [one["topic"] for one in groups[WORKER]["topics"]] == ["orders", "payments"]
    assert groups[WORKER]["max_attempts"] == 17  # 16 retries, and the first delivery
    assert groups[PICKY]["max_attempts"] == 4
    assert groups["golden-reader"]["topics"] == []


async def test_a_filter_of_the_broker_is_the_filter_of_the_group(data_dir):
    data = {"consumerGroup": WORKER, "topic": "orders", "expression": "a > 5",
            "expressionType": "SQL92", "bornTime": 1}  # fmt: skip
    (data_dir / CONFIG / "consumerFilter.json").write_text(json.dumps(
        {"filterDataByTopic": {"orders": {"topic": "orders", "groupFilterData": {WORKER: data}}}}
    ))  # fmt: skip
    async with opened(data_dir) as service:
        group = await service.get(f"/v1/groups/{WORKER}")

    assert {one["topic"]: one["filter"] for one in group["topics"]} == {
        "orders": {"kind": "sql92", "expression": "a > 5"},
        "payments": {"kind": "tag", "expression": "*"},
    }


async def test_what_is_not_kept_is_named(data_dir):
    edit(data_dir, topic_configs.FILE, topicConfigTable={
        "orders": {"perm": 4}, "a|b": {"topicName": "a|b"}, "stock-moves": {"order": True},
    })  # fmt: skip
    edit(data_dir, group_configs.FILE, subscriptionGroupTable={
        WEAK: {"consumeEnable": False, "attributes": {"lite.bind.topic": "orders"}},
    })  # fmt: skip
    offsets = {
        GroupQueue(PICKY, "payments", 0): 1_000, GroupQueue(PICKY, "payments", 40): 1,
        GroupQueue(PICKY, "gone", 0): 1,
    }  # fmt: skip
    edit(data_dir, consumer_offsets.FILE, offsets=offsets)
    async with opened(data_dir) as service:
        report = service.services.take_over.report
        assert report is not None
        notes = [f"{note.name}: {note.what}" for note in report.notes]

    for begin in (
        "orders: no permission to write",
        "a|b: a name that no client",
        "stock-moves: an ordered topic",
        f"{WEAK}: disabled",
        f"{WEAK}: the attribute lite.bind.topic=orders",
        "golden-reader: no offset in the store, as of a group that broadcasts or has not consumed "
        "yet: it reads no topic until PUT",
        f"{PICKY}: the offset 1000 of payments/0, which has 0 to 32: it goes on at 32",
        f"{PICKY}: an offset in payments/40, a queue that does not exist",
        f"{PICKY}: an offset in gone, which is no topic",
    ):
        assert [note for note in notes if note.startswith(begin)], (begin, notes)
    assert [note for note in notes if "a name that no client" in note][1].startswith(
        "g-public-1-ef"
    )
    assert len(notes) == 10


# --------------------------------------------------------------------------------------------------
# positions


async def test_each_group_goes_on_at_the_offsets_of_the_broker(data_dir):
    before = offsets_of(data_dir)
    async with opened(data_dir) as service:
        for group in (WORKER, PICKY, WEAK):
            for one in (await service.get(f"/v1/groups/{group}/offsets"))["items"]:
                place = GroupQueue(group, one["topic"], one["queue_id"])
                assert one["offset"] == before[place]
        assert await receive_all(service, WORKER) == []


async def test_only_new_messages_and_retries_behind_the_offset_are_received(data_dir):
    """Of ten retries the broker's group had done seven."""
    place = GroupQueue(PICKY, names.retry_topic(PICKY), 0)
    assert offsets_of(data_dir)[place] == 10
    edit(data_dir, consumer_offsets.FILE, offsets={place: 7})
    async with opened(data_dir) as service:
        await service.post("/v1/topics/payments/messages", {"payload": "new"}, status=201)
        given = await receive_all(service, PICKY)

    retried = [one for one in given if one["attempt"] > 1]
    assert len(retried) == 3
    assert {one["topic"] for one in retried} == {"payments"}
    assert [one["payload"] for one in given if one["attempt"] == 1] == ["new"]


async def test_retries_of_a_group_whose_name_ends_with_a_topic_are_its_own(data_dir):
    """They are in a topic in which a broker could keep another group's retries by POP."""
    other = f"{PICKY}_payments"
    async with opened(data_dir) as service:
        store, queue = service.services.store, retry_queue(other)
        await store.create_topic(queue.topic, queue_count=1)
        system = {"RETRY_TOPIC": "payments"}
        await store.append([message(b"body", queue=queue, message_id="own", system=system)])
    edit(data_dir, group_configs.FILE, subscriptionGroupTable={other: {"groupName": other}})
    edit(data_dir, consumer_offsets.FILE, offsets={GroupQueue(other, "payments", 0): 32})

    async with opened(data_dir) as service:
        assert await receive_all(service, PICKY) == []
        given = [one["message_id"] for one in await receive_all(service, other)]

    assert given.count("own") == 1


async def test_a_store_that_was_killed_is_taken_over_too(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(FOLDER / "public-2.tar.xz") as archive:
        archive.extractall(data, filter="data")
    before = offsets_of(data)
    async with opened(data) as service:
        found = await service.get("/v1/groups/g-public-2-worker/offsets")

    assert {(one["topic"], one["queue_id"]): one["offset"] for one in found["items"]} == {
        place[1:]: offset
        for place, offset in before.items()
        if place.group == "g-public-2-worker" and not place.topic.startswith("%")
    }


async def test_a_broker_that_was_killed_and_lost_its_progress_goes_on_where_it_was(data_dir):
    place = GroupQueue(names.ASKING_GROUP, names.HALF_TOPIC, 0)
    before = offsets_of(data_dir)[place]
    edit(data_dir, consumer_offsets.FILE, offsets={place: 1})
    async with opened(data_dir):
        pass

    assert offsets_of(data_dir)[place] == before


async def test_a_second_start_takes_nothing_over(data_dir):
    async with opened(data_dir) as service:
        ok(await service.api.post(
            f"/v1/groups/{WORKER}/offsets/reset",
            json={"topic": "orders", "to": "earliest"},
        ))  # fmt: skip
    async with opened(data_dir) as service:
        assert service.services.take_over.report is None
        assert len(await receive_all(service, WORKER)) == 24 + 20 + 18 + 28


async def test_a_take_over_that_was_cut_off_is_done_again_without_harm(data_dir, monkeypatch):
    async def cut_off(_: BrokerFiles) -> None:
        raise OSError("cut off")

    async def save_nothing(_: BrokerFiles) -> int:
        return 0

    before = offsets_of(data_dir)
    with monkeypatch.context() as patched:
        patched.setattr(BrokerFiles, "write_now", cut_off)
        patched.setattr(BrokerFiles, "save", save_nothing)
        await refused_start(data_dir)
    assert offsets_of(data_dir) == before

    async with opened(data_dir) as service:
        report = service.services.take_over.report
        assert report is not None
        assert report.groups == []  # they exist
        assert await receive_all(service, WORKER) == []


async def test_what_either_side_settled_stays_settled(data_dir):
    """EscrowMQ leaves out-of-order acknowledgements; the broker goes on; EscrowMQ goes on."""
    async with opened(data_dir) as service:
        for number in range(8):
            body = {"payload": f"{number}", "queue_id": 0}
            await service.post("/v1/topics/payments/messages", body, status=201)
        given = await receive_all(service, PICKY)
        await acknowledge(service, PICKY, [one for one in given if one["payload"] in ("2", "5")])
    place = GroupQueue(PICKY, "payments", 0)
    assert offsets_of(data_dir)[place] == 32
    edit(data_dir, consumer_offsets.FILE, offsets={place: 36})

    async with opened(data_dir, WALL_MS + 120_000) as service:
        await service.services.delivery.run_once()
        offsets = (await service.get(f"/v1/groups/{PICKY}/offsets"))["items"]
        lag = await service.get(f"/v1/groups/{PICKY}/lag")

    assert next(one["offset"] for one in offsets if one["topic"] == "payments") == 36
    assert lag["messages_ready"] + lag["messages_leased"] + lag["messages_waiting"] == 3  # 4, 6, 7


# --------------------------------------------------------------------------------------------------
# for a broker


async def test_a_stop_leaves_the_files_by_which_a_broker_goes_on(data_dir):
    before = offsets_of(data_dir)
    topics_before = json.loads((data_dir / CONFIG / topic_configs.FILE).read_bytes())
    groups_before = json.loads((data_dir / CONFIG / group_configs.FILE).read_bytes())
    async with opened(data_dir) as service:
        await service.post("/v1/topics", {"topic": "fresh", "queues": 2}, status=201)
        ok(await service.api.put("/v1/groups/new", json={"topics": [{"topic": "fresh"}]}), 201)
        for number in range(5):
            body = {"payload": f"{number}", "queue_id": 0}
            await service.post("/v1/topics/fresh/messages", body, status=201)
        given = await receive(service, "new")
        await acknowledge(service, "new", [given[at] for at in (0, 1, 3)])
        await service.services.broker_files.save()

    topics = json.loads((data_dir / CONFIG / topic_configs.FILE).read_bytes())
    assert topics["writtenBy"] == "EscrowMQ"
    table = topics["topicConfigTable"]
    assert table["fresh"]["readQueueNums"] == table["fresh"]["writeQueueNums"] == 2
    assert table["%RETRY%new"]["readQueueNums"] == 1
    assert table | topics_before["topicConfigTable"] == table  # all of the broker's stay
    groups = json.loads((data_dir / CONFIG / group_configs.FILE).read_bytes())
    assert groups["subscriptionGroupTable"]["new"]["retryMaxTimes"] == 16
    table = groups["subscriptionGroupTable"]
    assert table | groups_before["subscriptionGroupTable"] == table
    after = offsets_of(data_dir)
    assert {place: offset for place, offset in after.items() if place in before} == before
    assert after[GroupQueue("new", "fresh", 0)] == 2
    assert after[GroupQueue("new", "fresh", 1)] == 0
    assert after[GroupQueue("new", "%RETRY%new", 0)] == 0


async def test_a_deleted_group_and_a_deleted_topic_are_in_no_file(data_dir):
    async with opened(data_dir) as service:
        assert (await service.api.delete(f"/v1/groups/{WEAK}")).status_code == 204
        path = "/v1/topics/stock-moves?force=true"
        assert (await service.api.delete(path)).status_code < 300

    for name in (topic_configs.FILE, group_configs.FILE, consumer_offsets.FILE):
        text = (data_dir / CONFIG / name).read_text()
        assert "stock-moves" not in text
        assert name == topic_configs.FILE or WEAK not in text


async def test_files_that_would_say_the_same_are_not_written(data_dir):
    async with opened(data_dir):
        pass
    files = [data_dir / CONFIG / name for name in (
        topic_configs.FILE, group_configs.FILE, consumer_offsets.FILE, "consumerFilter.json"
    )]  # fmt: skip
    before = [(path.stat().st_ino, path.read_bytes()) for path in files]
    async with opened(data_dir, WALL_MS + 1_000):
        pass

    assert [(path.stat().st_ino, path.read_bytes()) for path in files] == before


async def test_a_broken_file_of_a_broker_refuses_the_start_and_is_named(data_dir):
    (data_dir / CONFIG / "topics.json").write_text("{")
    shutil.copy(data_dir / CONFIG / "topics.json", data_dir / CONFIG / "topics.json.bak")

    (error,) = await refused_start(data_dir)

    assert "store/config/topics.json" in error
