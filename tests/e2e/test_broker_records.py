"""A store with every kind of record that only a broker writes, over HTTP."""

import httpx
import pytest

from storage.formats import names
from tests.support.broker_log import BrokerLog, with_every_kind
from tests.support.http import ok, until
from tests.support.server import Server

SETTINGS = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 18),
    "ESCROWMQ_LOCAL__QUEUE_FILE_ENTRIES": "1000",
    "ESCROWMQ_LOCAL__RETENTION_MS": str(100 * 365 * 24 * 3_600_000),
}
BODIES = ["ordinary", "one", "two", "three", "light", "last"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("broker") / "data"
    with_every_kind(data / "store")
    with Server(data, environment=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def api(server):
    with server.client() as client:
        yield client


def test_of_the_topics_those_of_rocketmq_itself_are_not_listed(api):
    topics = [one["topic"] for one in ok(api.get("/v1/topics"))["items"]]

    assert topics == ["bills", "orders"]
    for name in ("RMQ_SYS_TRACE_TOPIC", "%25RETRY%25shop%2Borders", "OFFSET_MOVED_EVENT"):
        answer = api.get(f"/v1/topics/{name}/queues/0/messages")
        assert answer.status_code in (404, 422), answer.text


def test_a_pull_serves_the_messages_of_an_inner_batch_one_by_one(api):
    found = ok(api.get("/v1/topics/orders/queues/0/messages", params={"max_messages": 100}))

    assert [(one["queue_offset"], one["payload"]) for one in found["messages"]] == list(
        enumerate(BODIES)
    )
    assert [one.get("tag") for one in found["messages"]][1:4] == ["red", "blue", "red"]


def test_a_group_receives_them_and_its_acknowledgements_are_kept(api, server):
    """A broker's retry comes, too; what a POP consumer did not acknowledge does not."""
    ok(api.put("/v1/groups/shop", json={"topics": [{"topic": "orders"}]}), 201)

    received = []
    while len(received) < len(BODIES) + 1:
        given = ok(api.post("/v1/groups/shop/receive", json={"max_messages": 2, "wait_ms": 1_000}))
        received += given["messages"]
        entries = [{"receipt_handle": one["receipt_handle"]} for one in given["messages"]]
        ok(api.post("/v1/groups/shop/ack", json={"entries": entries}))

    assert sorted(one["payload"] for one in received) == sorted([*BODIES, "a retry"])
    assert ok(api.post("/v1/groups/shop/receive", json={"max_messages": 9}))["messages"] == []


def test_the_start_log_says_what_the_store_has(server):
    (found,) = [
        line for line in server.log_path.read_text().splitlines() if "records_of_a_broker" in line
    ]

    assert "inner_batch=1 light_queue=2 pop_progress=3 pop_retry=2" in found


@pytest.mark.parametrize(("times", "noted"), [((1 << 31) - 1, None), (0, "9" * 15), (-1, None)])
def test_a_retry_with_any_number_of_deliveries_is_delivered_once_or_more_and_then_given_up(
    tmp_path, times, noted
):
    log = BrokerLog(tmp_path / "data" / "store")
    log.append("orders", b"ordinary", {"UNIQ_KEY": "first"})
    items = {"UNIQ_KEY": "again", "RETRY_TOPIC": "orders"}
    items |= {} if noted is None else {"RECONSUME_TIME": noted}
    log.append("%RETRY%shop", b"again", items, reconsume_times=times)
    log.close()

    with Server(tmp_path / "data", environment=SETTINGS) as running, running.client() as api:
        rules = {"topics": [{"topic": "orders"}], "max_attempts": 2, "backoff_ms": [0]}
        ok(api.put("/v1/groups/shop", json=rules), 201)

        def received() -> set[str]:
            given = ok(api.post("/v1/groups/shop/receive", json={"wait_ms": 200}))["messages"]
            entries = [
                {"receipt_handle": one["receipt_handle"], "delay_ms": 0}
                for one in given
                if one["message_id"] == "again"
            ]
            if entries:
                ok(api.post("/v1/groups/shop/nack", json={"entries": entries}))
            return {one["message_id"] for one in given}

        assert received() == {"first", "again"}
        while received():
            pass
        (letter,) = ok(api.get("/v1/groups/shop/dead-letters"))["items"]
        assert letter["message"]["message_id"] == "again"


def test_a_message_that_a_broker_delayed_is_shown_while_it_waits(tmp_path):
    log = BrokerLog(tmp_path / "data" / "store")
    log.append("orders", b"ordinary", {"UNIQ_KEY": "first"})
    for name, topic in (("waits", "orders"), ("again", "%RETRY%shop")):
        real = {"REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": "4102444800000"}
        log.append(names.TIMER_TOPIC, b"later", {"UNIQ_KEY": name, **real})
    log.close()

    with Server(tmp_path / "data", environment=SETTINGS) as running, running.client() as api:
        found = ok(api.get("/v1/messages/waits"))
        trace = ok(api.get("/v1/messages/waits/trace"))
        schedule = ok(api.get(f"/v1/schedules/{found['schedule_id']}"))

        assert (found["topic"], found["payload"]) == ("orders", "later")
        assert found["deliver_at"] == schedule["deliver_at"] == trace["deliver_at"]
        assert "queue_offset" not in found
        assert api.get("/v1/messages/again").status_code == 404
        ok(api.delete(f"/v1/schedules/{found['schedule_id']}"))
        assert api.get("/v1/messages/waits").status_code == 404


def test_a_topic_that_no_client_can_name_is_not_listed_and_gets_what_waits_for_it(tmp_path):
    log = BrokerLog(tmp_path / "data" / "store")
    log.append("orders", b"ordinary", {"UNIQ_KEY": "first"})
    log.append("a|b", b"stored", {"UNIQ_KEY": "second"})
    for topic in ("a|b", "c|d"):
        real = {"REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": "1000"}
        log.append(names.TIMER_TOPIC, b"due", {"UNIQ_KEY": topic, **real})
    log.close()

    for _ in range(2):
        with Server(tmp_path / "data", environment=SETTINGS) as running, running.client() as api:
            until(lambda: not gauge(api, "escrowmq_schedules_scheduled"), "all is delivered")

            assert gauge(api, "escrowmq_schedules_set_aside") == 0
            topics = [one["topic"] for one in ok(api.get("/v1/topics"))["items"]]
            assert topics == ["orders"]
            assert running.terminate() == 0


def gauge(api: httpx.Client, name: str) -> float:
    lines = api.get("/metrics").text.splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(found)
