"""Slaves of RocketMQ at a service: who is let in, what they are sent, and that none is a copy. A
real one is in `tests/rocketmq/`.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, of
from tests.support.rocketmq_slave import Following, ScriptedSlave

SEGMENT_BYTES = 1 << 20
SEGMENTS = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES)}


@pytest.fixture
def slave() -> Iterator[ScriptedSlave]:
    with ScriptedSlave() as listening:
        yield listening


@contextmanager
def master_of(data: Path, *peers: str, **settings: str) -> Iterator[Primary]:
    environment = {
        **SEGMENTS,
        "ESCROWMQ_REPLICA__ROCKETMQ_PEERS": json.dumps(peers),
        **{f"ESCROWMQ_REPLICA__{name}": value for name, value in settings.items()},
    }
    with Primary(data, environment=environment) as running:
        yield running


def send(master: Primary, count: int, *, payload: str = "x" * 50_000) -> None:
    with master.client() as api:
        for _ in range(count):
            ok(api.post("/v1/topics/orders/messages", json={"payload": payload}), 201)


def replicas(master: Primary) -> Any:
    with master.client() as api:
        return ok(api.get("/v1/admin/replicas"))


def slaves(master: Primary) -> list[dict[str, int | str]]:
    found: list[dict[str, int | str]] = replicas(master)["rocketmq_slaves"]
    return found


def safe_offset(master: Primary) -> int:
    return int(replicas(master)["safe_offset"])


def test_a_slave_is_told_where_the_service_is_and_gets_its_log_from_the_begin(tmp_path, slave):
    with master_of(tmp_path / "a", slave.address) as master:
        send(master, 50)
        end = safe_offset(master)
        told = slave.wait_until_invited()
        assert told["masterHaAddress"] == f"127.0.0.1:{master.ha_port}"
        with Following(master.ha_port, 0) as following:
            log = b""
            while len(log) < end:
                offset, data = following.block()
                assert offset == len(log), "a slave takes what joins its end, and nothing else"
                assert offset // SEGMENT_BYTES == (offset + len(data) - 1) // SEGMENT_BYTES
                log += data
                following.report(len(log))
        assert len(log) > 2 * SEGMENT_BYTES
        folder = tmp_path / "a/store/commitlog"
        segments = sorted(path for path in folder.iterdir() if path.name.isdigit())
        assert log == b"".join(path.read_bytes() for path in segments)[: len(log)]


def test_a_slave_gets_new_messages_and_the_service_says_how_far_it_is(tmp_path, slave):
    with master_of(tmp_path / "a", slave.address) as master:
        slave.wait_until_invited()
        send(master, 1)
        begin = safe_offset(master)
        with Following(master.ha_port, begin) as following:
            send(master, 1, payload="new")
            data = b""
            while b"new" not in data:
                offset, data = following.block()
            end = offset + len(data)
            (found,) = slaves(master)
            assert (found["stored_offset"], found["behind_bytes"]) == (begin, end - begin)
            following.report(end)
            until(lambda: slaves(master)[0]["stored_offset"] == end, "its report is noted")
            assert slaves(master)[0]["behind_bytes"] == 0
        until(lambda: not slaves(master), "it is gone")


def test_a_slave_is_never_one_of_the_copies(tmp_path, slave):
    with master_of(tmp_path / "a", slave.address, COPIES="2") as master, master.client() as api:
        slave.wait_until_invited()
        with Following(master.ha_port, 0) as following:
            _, data = following.block()
            following.report(len(data))
            until(lambda: slaves(master), "the slave follows")
            refused = api.post("/v1/topics/orders/messages", json={"payload": "x"})
            assert_problem(refused, 503, "not_enough_copies")


def test_a_slave_gets_nothing_that_too_few_machines_have(tmp_path, slave):
    message = {"payload": "unsafe", "require_durability": "buffered"}
    with (
        master_of(tmp_path / "a", slave.address, COPIES="2") as master,
        Replica(tmp_path / "b", of(master.ha_port), environment=SEGMENTS) as replica,
        master.client() as api,
    ):
        slave.wait_until_invited()
        until(lambda: not replicas(master)["lacks_copies"], "a replica follows")
        send(master, 1)
        master.wait_until_copied()
        end = safe_offset(master)
        with Following(master.ha_port, end) as following:
            assert following.block() == (end, b"")
            os.kill(replica.pid, signal.SIGSTOP)
            ok(api.post("/v1/topics/orders/messages", json=message), 201)
            # of the time without a word from the replica, which is still one of the copies
            assert following.block() == (end, b"")
            assert safe_offset(master) == end
            os.kill(replica.pid, signal.SIGCONT)
            offset, data = following.block()
            assert offset == end
            assert b"unsafe" in data


@pytest.mark.parametrize("peers", [(), ("127.0.0.2:1",)], ids=["none", "another"])
def test_a_slave_whose_address_is_not_in_the_settings_gets_nothing(tmp_path, peers):
    with master_of(tmp_path / "a", *peers) as master:
        send(master, 1)
        if peers:
            until(lambda: "slave_not_invited" in master.log(), "its address is known")
        with Following(master.ha_port, 0) as following:
            assert following.rest() == b""
        until(lambda: "ROCKETMQ_PEERS" in master.log(), "the reason is logged")
        assert slaves(master) == []


@pytest.mark.parametrize("ahead", [1, 10_000_000])
def test_a_slave_that_has_more_than_the_service_is_refused(tmp_path, slave, ahead):
    with master_of(tmp_path / "a", slave.address) as master:
        send(master, 1)
        slave.wait_until_invited()
        with Following(master.ha_port, safe_offset(master) + ahead) as following:
            assert following.rest() == b""
        until(lambda: "it is no copy of this one" in master.log(), "the reason is logged")


def test_a_slave_that_says_that_it_has_more_than_it_was_sent_is_not_believed(tmp_path, slave):
    with master_of(tmp_path / "a", slave.address) as master:
        send(master, 1)
        slave.wait_until_invited()
        with Following(master.ha_port, 0) as following:
            _, data = following.block()
            following.report(len(data) + 1)
            until(lambda: "was sent the log up to" in master.log(), "the reason is logged")
        assert slaves(master) == []


def test_why_a_slave_cannot_be_invited_is_logged_once(tmp_path, slave):
    slave.refusal = "no permission"
    with master_of(tmp_path / "a", slave.address) as master:
        until(lambda: len(slave.invitations) > 1, "it is asked again and again")
        assert master.log().count("no permission") == 1


def test_a_slave_that_comes_twice_has_its_newest_connection_alone(tmp_path, slave):
    with master_of(tmp_path / "a", slave.address) as master:
        send(master, 1)
        slave.wait_until_invited()
        with Following(master.ha_port, 0) as first:
            first.block()
            with Following(master.ha_port, 0) as second:
                second.block()
                first.rest()  # to its end
                assert len(slaves(master)) == 1
