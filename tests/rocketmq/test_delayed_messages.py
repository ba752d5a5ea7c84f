"""Delayed messages when a store goes from EscrowMQ to a broker and back: each is delivered once, at
its time by now, by whichever side has the store then.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rocketmq.driver import keys
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage
from tests.rocketmq.store_commands import hand_over
from tests.support.http import ok, until

pytestmark = pytest.mark.rocketmq

SOON_MS = 9_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEVEL_3 = {"delay_level": 3}  # ten seconds
HERE = ["done"]
BY_BROKER = ["early", "waits", "moved", "level", "level-later"]
LATER = ["far", "moved-away", "moved-far"]


def test_each_delayed_message_is_delivered_once_by_whichever_side_has_the_store(stage):
    service = stage.service()
    service.put("topics/orders", {"queues": 1})
    service.put("topics/empty", {"queues": 1})
    put_off(service)
    service.stop()
    know_topics(stage)

    broker = stage.broker()
    until(lambda: set(BY_BROKER) <= set(keys(broker.pull("orders"))), "all that is due has come")
    assert sorted(keys(broker.pull("orders"))) == sorted([*HERE, *BY_BROKER])
    assert broker.problems() == []
    broker.kill()

    service = stage.service()
    assert sorted(waiting(service).values()) == sorted(LATER)
    assert sorted(one["key"] for one in service.pull("orders")) == sorted([*HERE, *BY_BROKER])
    for schedule_id, key in waiting(service).items():
        service.deliver_now({"schedule_id": schedule_id})
        until(lambda key=key: key in [one["key"] for one in service.pull("orders")], f"{key} comes")
    everything = [*HERE, *BY_BROKER, *LATER]
    assert sorted(one["key"] for one in service.pull("orders")) == sorted(everything)


@pytest.mark.parametrize("is_imported", [False, True])
def test_what_a_broker_delivered_before_it_wrote_its_own_files_is_not_delivered_again(
    stage, tmp_path, is_imported
):
    service = stage.service()
    service.put("topics/orders", {"queues": 1})
    service.send("orders", b"x", key="early", delay_ms=2_500)
    service.send("orders", b"x", key="level", delay_level=2)
    service.send("orders", b"x", key="far", delay_ms=DAY_MS)
    service.stop()
    know_topics(stage)
    config = stage.data / "store" / "config"
    before = {name: (config / name).read_bytes() for name in ("delayOffset.json", "timercheck")}

    broker = stage.broker()
    until(lambda: {"early", "level"} <= set(keys(broker.pull("orders"))), "what is due has come")
    broker.kill()
    for name, content in before.items():
        (config / name).write_bytes(content)

    if is_imported:
        hand_over("import", stage.data / "store", tmp_path / "imported")
        stage.data = tmp_path / "imported"
    service = stage.service()
    assert list(waiting(service).values()) == ["far"]
    assert sorted(one["key"] for one in service.pull("orders")) == ["early", "level"]


def put_off(service: Service) -> None:
    ids = {}
    for key, delay in {
        "done": {"delay_ms": 1},
        "far": {"delay_ms": 10 * DAY_MS},
        "moved-far": {"delay_ms": SOON_MS},
        "moved": {"delay_ms": HOUR_MS},
        "moved-away": {"delay_ms": SOON_MS},
        "cancelled": {"delay_ms": SOON_MS},
        "waits": {"delay_ms": SOON_MS},
        "level": LEVEL_3,
        "level-cancelled": LEVEL_3,
        "level-later": LEVEL_3,
        "early": {"delay_ms": 2_500},
    }.items():
        ids[key] = service.send("orders", b"x", key=key, **delay)["schedule_id"]
    until(lambda: [one["key"] for one in service.pull("orders")] == HERE, "the first one has come")
    for key, delay_ms in {"moved": 11_000, "moved-away": HOUR_MS, "moved-far": 12 * DAY_MS}.items():
        move(service, ids[key], delay_ms)
    for key in ("cancelled", "level-cancelled"):
        service.cancel({"schedule_id": ids[key]})


def move(service: Service, schedule_id: str, delay_ms: int) -> None:
    at = datetime.now(UTC) + timedelta(milliseconds=delay_ms)
    body = {"deliver_at": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"}
    ok(service.client.patch(f"/v1/schedules/{schedule_id}", json=body))


def waiting(service: Service) -> dict[str, str]:
    """The keys of the messages that wait, by schedule."""
    return {
        one["schedule_id"]: service.get(f"messages/{one['message_id']}")["key"]
        for one in service.schedules()
    }


def know_topics(stage: Stage) -> None:
    """A broker serves only topics that its file names."""
    path = Path(stage.data / "store" / "config" / "topics.json")
    if not path.exists():
        one = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        table = {name: {"topicName": name, **one} for name in ("orders", "empty")}
        path.write_text(json.dumps({"topicConfigTable": table}))
