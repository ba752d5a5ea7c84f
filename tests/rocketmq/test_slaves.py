"""A slave of RocketMQ follows EscrowMQ, and serves its messages to RocketMQ's consumers: one story.

It starts on the files that a command writes, copies the log, is stopped, and goes on from there
when it starts again; then the service moves. At last that is gone, and consumers read at the slave.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import keys
from tests.rocketmq.service import Service, entry
from tests.rocketmq.stage import Stage
from tests.rocketmq.store_commands import slave_folder
from tests.support.http import until
from tests.support.server import reserved_port

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("slaves")]

SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    with Stage(driver, tmp_path_factory.mktemp("slaves")) as stage, ExitStack() as ports:
        store = stage.folder / "slave"
        # the second one is the first one again, on another port
        slaves = [stage.new_broker(store, **SLAVE) for _ in range(2)]
        told = SimpleNamespace(problems=[])

        def serve() -> Service:
            """On a port for replicas that no service had before."""
            ha_port = ports.enter_context(reserved_port()).getsockname()[1]
            peers = [f"127.0.0.1:{slave.port}" for slave in slaves]
            return stage.service(
                ESCROWMQ_REPLICA__HA_HOST="127.0.0.1",
                ESCROWMQ_REPLICA__HA_PORT=str(ha_port),
                ESCROWMQ_REPLICA__ROCKETMQ_PEERS=json.dumps(peers),
            )

        service = serve()
        write(service, told)
        told.folder = slave_folder(stage.data, store)
        with slaves[0] as slave:
            told.first = follow(service, slave, told)
            slave.stop()
        service.send("orders", b"while the slave was away", key="later")
        with slaves[1] as slave:
            told.second = follow(service, slave, told)
            service.stop()
            service = serve()
            service.send("orders", b"where the slave has not been", key="elsewhere")
            told.third = follow(service, slave, told)
            service.stop()
            told.logs = [log_of(stage.data / "store"), log_of(store)]
            told.consumed = consume(slave)
            told.problems += slave.problems()
        yield told


def write(service: Service, told: SimpleNamespace) -> None:
    """More than two segments of a megabyte, and a record of each kind."""
    service.post("topics", {"topic": "orders", "queues": 2}, 201)
    service.put("groups/billing", {"topics": [{"topic": "orders"}]})
    for number in range(30):
        body = f"{number}".encode() * 45_000
        service.send("orders", body, key=f"k{number}", tag="even")
    for name, decision in (("bought", "commit"), ("left", "rollback"), ("open", "")):
        service.begin("shop", name, entry("orders", b"x", key=name))
        if decision:
            service.decide(name, decision)
    service.send("orders", b"much later", key="delayed", delay_ms=3_600_000)
    received = service.receive_once("billing", max_messages=10)
    service.ack("billing", *received)
    told.acknowledged = [one["key"] for one in received]
    file = service.server.data_dir / "store/config/consumerOffset.json"
    until(lambda: file.exists() and "billing" in file.read_text(), "offsets for a broker")


def follow(service: Service, slave: Broker, told: SimpleNamespace) -> dict[str, int | str]:
    """How the service sees the slave once it has all that there is."""

    def has_all() -> dict[str, int | str] | None:
        state = service.get("admin/replicas")
        found = [one for one in state["rocketmq_slaves"] if not one["behind_bytes"]]
        return found[0] if found and state["safe_offset"] == found[0]["stored_offset"] else None

    found = until(has_all, "the slave has the log", seconds=60)
    told.problems += slave.problems()
    return found


def log_of(store: Path) -> bytes:
    segments = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return b"".join(path.read_bytes() for path in segments).rstrip(b"\0")


def consume(slave: Broker) -> list[str]:
    slave.run("consume", group="billing", topics={"orders": "*"})
    slave.run("consume", group="new", topics={"orders": "*"})
    new = slave.deliveries("new", lambda found: len(found) >= 33)
    billing = slave.deliveries("billing", lambda found: len(found) >= 23)
    return [keys(new), keys(billing)]


def test_a_slave_has_the_log_byte_for_byte(story):
    assert story.logs[0] == story.logs[1]
    assert len(story.logs[0]) > 2 << 20


def test_a_slave_that_comes_back_goes_on_where_its_log_ends(story):
    assert story.second["stored_offset"] > story.first["stored_offset"]


def test_a_slave_follows_a_service_that_is_elsewhere_now(story):
    assert story.third["stored_offset"] > story.second["stored_offset"]


def test_consumers_read_at_the_slave_what_was_committed(story):
    new, _ = story.consumed
    assert sorted(new) == sorted(
        [*[f"k{number}" for number in range(30)], "bought", "later", "elsewhere"]
    )


def test_a_group_goes_on_at_the_slave_where_it_is_at_the_service(story):
    _, billing = story.consumed
    assert not {*billing} & {*story.acknowledged}
    assert len(billing) == 33 - len(story.acknowledged)


def test_the_slave_has_no_trouble_with_the_log(story):
    assert story.problems == []
