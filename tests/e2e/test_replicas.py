"""A service, a replica that follows it, and what becomes of it when the service is gone."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.replicas import folder, frames, promotion
from app.replicas.folder import ReplicaNote
from escrowmq_client import Client, MessageInput, Retry, TransactionMessageInput
from storage.formats import names, snapshot_file, timer_list
from storage.local.options import LocalStoreOptions
from tests.support.certificates import self_signed
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, note_of, of, promote, read_ids, read_whole
from tests.support.server import Server

CONFIGURATION, DIRECTORY_IN_USE, NOT_CARRIED_OUT = 78, 73, 3
SEGMENT_BYTES = "ESCROWMQ_LOCAL__SEGMENT_BYTES"
SET_ASIDE = {"ESCROWMQ_REPLICA__SET_ASIDE": "true"}
TWO_COPIES = {"ESCROWMQ_REPLICA__COPIES": "2"}


def send(service: Server, count: int, *, topic: str = "orders") -> list[str]:
    """Message ids, in the order of the log."""
    with service.client() as api:
        return [
            ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": str(n)}), 201)[
                "message_id"
            ]
            for n in range(count)
        ]


@pytest.fixture
def primary(tmp_path):
    with Primary(tmp_path / "a") as running:
        yield running


def test_a_promoted_replica_has_every_message_transaction_group_and_offset_that_it_was_sent(
    primary, tmp_path
):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        with primary.client() as api:
            sent = send(primary, 30)
            ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
            begun = ok(
                api.post(
                    "/v1/transactions",
                    json={
                        "producer_group": "shop",
                        "transaction_id": "order-1",
                        "messages": [{"topic": "orders", "message": {"payload": "paid"}}],
                    },
                ),
                201,
            )
            leased = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 10}))
            entries = [{"receipt_handle": one["receipt_handle"]} for one in leased["messages"]]
            ok(api.post("/v1/groups/billing/ack", json={"entries": entries}))
        acknowledged = {one["message_id"] for one in leased["messages"]}
        primary.wait_until_copied()
        replica.wait_until_registry_is(primary)
        primary.kill()
        assert replica.terminate() == 0
        promoted = promote(replica.data_dir, "--yes")
        assert promoted.returncode == 0, promoted.stderr
        assert "Promoted" in promoted.stderr
        with replica.service() as service, service.client() as api:
            assert read_ids(service) == set(sent)
            state = ok(api.get(f"/v1/transactions/{begun['transaction_id']}"))["state"]
            assert state == "prepared"
            ok(api.post(f"/v1/transactions/{begun['transaction_id']}/commit"))
            assert len(read_ids(service)) == 31
            rest = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 40}))
            received = {one["message_id"] for one in rest["messages"]}
            assert received | acknowledged == read_ids(service)
            assert not received & acknowledged


def test_a_replica_of_an_earlier_release_than_its_service_copies_it_and_is_not_promoted(
    primary, tmp_path
):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        primary.wait_until_copied()
        as_of_a_later_release(primary.data_dir / "registry.db")
        sent = send(primary, 3)
        until(lambda: "release_too_old_to_promote" in replica.log(), "the replica warns of it")
        primary.wait_until_copied()
        assert replica.terminate() == 0

        for may_change in [], ["--yes"]:
            refused = promote(replica.data_dir, *may_change)
            assert refused.returncode == NOT_CARRIED_OUT
            assert "it has revision 9999, and this release knows them up to" in refused.stderr

        replica.start()
        sent += send(primary, 3)
        primary.wait_until_copied()
    assert read_ids(primary) == set(sent)


def as_of_a_later_release(registry: Path) -> None:
    """Change what its tables say of their release, while a service has it open."""
    with closing(sqlite3.connect(registry)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = '9999'")


def test_a_client_that_knows_both_machines_goes_on_when_the_replica_is_promoted(tmp_path):
    with ExitStack() as stack:
        primary = stack.enter_context(Primary(tmp_path / "a", environment=TWO_COPIES))
        replica = stack.enter_context(Replica(tmp_path / "b", of(primary.ha_port)))
        retry = Retry(total_ms=60_000, longest_ms=100)
        client = stack.enter_context(Client([replica.url, primary.url], retry=retry))
        until(lambda: primary.figures().get("escrowmq_replicas") == 1, "a replica follows")
        sent = [client.send("orders", payload=str(n)) for n in range(20)]
        assert client.url == primary.url
        assert {(one.durability, one.copies) for one in sent} == {("replicated", 2)}
        paid = TransactionMessageInput("orders", MessageInput(payload="paid"))
        begun = client.begin_transaction("shop", [paid])

        primary.kill()
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with ThreadPoolExecutor() as pool:
            committing = pool.submit(client.commit_transaction, begun.transaction_id)
            service = stack.enter_context(replica.service())
            assert committing.result().state == "committed"

        assert client.url == replica.url
        assert len(read_ids(service)) == 21
        assert {one.message_id for one in sent} < read_ids(service)


def test_the_first_start_of_a_promoted_replica_reads_the_tables_of_its_service(tmp_path):
    often = {
        "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "200",
        "ESCROWMQ_TXN__SNAPSHOT_INTERVAL_MS": "200",
    }
    with (
        Primary(tmp_path / "a", environment=often) as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
        Client(primary.url) as client,
    ):
        paid = TransactionMessageInput("orders", MessageInput(payload="paid"))
        begun = [client.begin_transaction("shop", [paid]) for _ in range(20)]
        for one in begun[:10]:
            client.commit_transaction(one.transaction_id)
        until(lambda: has_snapshot(primary, replica, "transactions"), "the snapshot is copied")
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with replica.service() as service, service.client() as api:
            tables = ok(api.get("/v1/admin/recovery"))["tables"]
            (table,) = [one for one in tables if one["table"] == "transactions"]
            assert table["has_snapshot"]
            states = [
                ok(api.get(f"/v1/transactions/{one.transaction_id}"))["state"] for one in begun
            ]
            assert states == ["committed"] * 10 + ["prepared"] * 10


def test_the_first_start_of_a_promoted_replica_reads_no_schedule_again(tmp_path):
    often = {"ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "200"}
    with (
        Primary(tmp_path / "a", environment=often) as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
    ):
        with primary.client() as api:
            ids = send_later(api, 100)
            until(lambda: waiting_at(primary, replica) == 100, "the timers are copied")
            ids += send_later(api, 100)
            until(lambda: waiting_at(primary, replica) == 200, "the timers are copied")
            for one in ids[:5]:
                ok(api.delete(f"/v1/schedules/{one}"))
        until(lambda: waiting_at(primary, replica) == 195, "the timers are copied")
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with replica.service() as service, service.client() as api:
            assert re.search(r"schedules_open +replayed=0 scheduled=195", service.log())
            states = [ok(api.get(f"/v1/schedules/{one}"))["state"] for one in ids]
            assert states == ["cancelled"] * 5 + ["scheduled"] * 195
            soon = {"deliver_at": "2020-01-01T00:00:00.000Z"}
            ok(api.patch(f"/v1/schedules/{ids[100]}", json=soon))
            until(lambda: len(read_ids(service)) == 1, "it is delivered")


def send_later(api: httpx.Client, count: int) -> list[str]:
    """Messages that are due in an hour; the ids of their schedules."""
    entries = [
        {"id": str(n), "message": {"payload": str(n), "delay_ms": 3_600_000}} for n in range(count)
    ]
    sent = ok(api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201)
    return [one["receipt"]["schedule_id"] for one in sent["results"]]


def waiting_at(primary: Primary, replica: Replica) -> int:
    """The number of due times in the list that the service has and its replica, too."""
    if not has_snapshot(primary, replica, "timers"):
        return 0
    kept = snapshot_file.decode(read_whole(replica.data_dir / "store" / "snapshots" / "timers"))
    assert kept is not None
    return timer_list.decode(kept.data).waiting


def has_snapshot(primary: Primary, replica: Replica, name: str) -> bool:
    """Has the replica the snapshot that the service has now?"""
    own, copied = (
        read_whole(one.data_dir / "store" / "snapshots" / name) for one in (primary, replica)
    )
    return bool(own) and own == copied


def test_a_replica_that_is_killed_goes_on_where_it_was(primary, tmp_path):
    replica = Replica(tmp_path / "b", of(primary.ha_port))
    sent: list[str] = []
    for _ in range(3):
        with replica:
            sent += send(primary, 20)
            primary.wait_until_copied()
            replica.kill()
        sent += send(primary, 20)
    with replica:
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == set(sent)


def test_a_replica_follows_a_service_again_that_was_killed_and_started(primary, tmp_path):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        sent = send(primary, 10)
        primary.wait_until_copied()
        primary.kill()
        primary.start()
        sent += send(primary, 10)
        primary.wait_until_copied()
        assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == set(sent)


@pytest.mark.parametrize("afterwards", ["follows", "promoted"])
def test_after_a_promotion_that_was_killed_before_its_end_a_replica_follows_or_is_promoted(
    primary, tmp_path, monkeypatch, afterwards
):
    class Killed(BaseException):
        """Between the epoch in the store and the note that makes it a replica's."""

    def killed(_: Path) -> None:
        raise Killed

    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        sent = send(primary, 3)
        primary.wait_until_copied()
        assert replica.terminate() == 0
        monkeypatch.setattr(folder, "remove_note", killed)
        options = LocalStoreOptions(segment_bytes=1 << 24)
        with pytest.raises(Killed):
            asyncio.run(promotion.promote(replica.data_dir, options))
        if afterwards == "follows":
            replica.start(until_ready=False)
            sent += send(primary, 3)
            primary.wait_until_copied()
            primary.kill()
            assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == set(sent)
        assert len(send(service, 3)) == 3


def test_no_service_starts_in_the_directory_of_a_replica_before_it_is_promoted(primary, tmp_path):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        send(primary, 3)
        primary.wait_until_copied()
        refused = promote(replica.data_dir, "--yes")
        assert refused.returncode == DIRECTORY_IN_USE
        assert "stop it first" in refused.stderr
        replica.terminate()
    service = replica.service()
    service.start(until_ready=False)
    assert service.wait() == CONFIGURATION
    assert "escrowmq replica promote" in service.log()
    told = promote(replica.data_dir)
    assert told.returncode == 0
    assert "Nothing is changed" in told.stderr
    assert note_of(replica.data_dir) is not None


@pytest.mark.parametrize("content", [b"", b"{", b'{"primary":1}', b"\xff"])
def test_a_directory_whose_note_is_damaged_is_neither_started_nor_followed_nor_promoted(
    tmp_path, content
):
    data_dir = tmp_path / "b"
    data_dir.mkdir()
    (data_dir / "replica.json").write_bytes(content)
    for process in (Primary(data_dir), Replica(data_dir, "127.0.0.1:1")):
        process.start(until_ready=False)
        assert process.wait() == CONFIGURATION
        assert "replica.json is damaged" in process.log()
    assert "replica.json is damaged" in promote(data_dir, "--yes").stderr
    assert (data_dir / "replica.json").read_bytes() == content


def test_a_service_that_has_more_than_its_promoted_replica_is_refused_and_stays_a_service(
    primary, tmp_path
):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        send(primary, 5)
        primary.wait_until_copied()
        replica.kill()
    send(primary, 5)
    primary.kill()
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as promoted:
        send(promoted, 1)
        returned = Replica(primary.data_dir, of(promoted.ha_port))
        returned.start(until_ready=False)
        assert returned.wait() == CONFIGURATION
        assert "parts from this one" in returned.log()
        assert "--set-aside" in returned.log()
    assert note_of(primary.data_dir) is None


def test_a_service_that_has_more_than_its_promoted_replica_sets_that_aside_where_it_is_told_to(
    primary, tmp_path
):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        sent = send(primary, 5)
        primary.wait_until_copied()
        replica.kill()
    only_here = send(primary, 5)
    primary.kill()
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as promoted:
        sent += send(promoted, 5)
        returned = Replica(primary.data_dir, of(promoted.ha_port), environment=SET_ASIDE)
        with returned:
            promoted.wait_until_copied()
            promoted.kill()
            assert returned.terminate() == 0
    (aside,) = (returned.data_dir / "store").glob("set-aside-*")
    segment = min((aside / "commitlog").iterdir())
    dumped = subprocess.run(
        [returned.command[0], "dump", str(segment)], capture_output=True, text=True, check=True
    )
    assert [one in dumped.stdout for one in only_here] == [True] * 5
    assert promote(returned.data_dir, "--yes").returncode == 0
    with returned.service() as service:
        assert read_ids(service) == set(sent)
        assert send(service, 1)


SELDOM_SYNCED = {
    "ESCROWMQ_LOCAL__FLUSH": "interval",
    "ESCROWMQ_LOCAL__FLUSH_INTERVAL_MS": "3600000",
    "ESCROWMQ_LOCAL__FLUSH_THOROUGH_INTERVAL_MS": "3600000",
}


def test_what_a_power_cut_takes_from_a_service_its_replica_sets_aside_by_itself(tmp_path):
    with Primary(tmp_path / "a", environment=SELDOM_SYNCED) as primary:
        with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
            kept = send(primary, 5)
            with primary.client() as api:
                ok(api.post("/v1/admin/store/flush"))
                lost = send(primary, 5)
                log = ok(api.get("/v1/admin/store"))["log"]
                until(
                    lambda: stored_at_replica(api) == log["max_offset"],
                    "it is sent before it is synced",
                )
            primary.kill()
            assert log["synced_offset"] < log["max_offset"]
            segment = primary.data_dir / "store" / "commitlog" / f"{0:020}"
            with segment.open("r+b") as file:  # as a power cut leaves it
                file.seek(log["synced_offset"])
                file.write(bytes(log["max_offset"] - log["synced_offset"]))
            primary.start()
            kept += send(primary, 5)
            with primary.client() as api:
                ok(api.post("/v1/admin/store/flush"))
            primary.wait_until_copied()
            assert replica.terminate() == 0
            assert "log_set_aside" in replica.log()
        primary.kill()
    (aside,) = (replica.data_dir / "store").glob("set-aside-*")
    segment = min((aside / "commitlog").iterdir())
    dumped = subprocess.run(
        [replica.command[0], "dump", str(segment)], capture_output=True, text=True, check=True
    )
    assert [one in dumped.stdout for one in lost] == [True] * 5
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == {*kept}


def stored_at_replica(api: httpx.Client) -> int:
    """The log offset up to which the one replica has stored the log; 0 where none is connected."""
    found = ok(api.get("/v1/admin/replicas"))["items"]
    return int(found[0]["stored_offset"]) if found else 0


def test_a_service_that_was_put_back_to_an_older_copy_cuts_no_replica_by_itself(primary, tmp_path):
    """It had on its disk all that it called safe: a power cut takes nothing of that."""
    send(primary, 5)
    assert primary.terminate() == 0
    shutil.copytree(primary.data_dir, tmp_path / "copy")
    primary.start()
    replica = Replica(tmp_path / "b", of(primary.ha_port))
    with replica:
        send(primary, 5)
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
    shutil.rmtree(primary.data_dir)
    (tmp_path / "copy").rename(primary.data_dir)
    primary.start()
    primary.kill()
    primary.start()  # in the next epoch
    send(primary, 1)

    replica.start(until_ready=False)

    assert replica.wait() == CONFIGURATION
    assert "with --set-aside" in replica.log()
    assert not list((replica.data_dir / "store").glob("set-aside-*"))


def test_the_log_of_another_service_is_not_set_aside(primary, tmp_path):
    """Its epochs are later, and its units end at the same places."""
    sent = send(primary, 5)
    assert primary.terminate() == 0
    with Primary(tmp_path / "c") as other:
        send(other, 4)
        other.kill()
        other.start()
        send(other, 4)
        returned = Replica(primary.data_dir, of(other.ha_port), environment=SET_ASIDE)
        returned.start(until_ready=False)
        assert returned.wait() == CONFIGURATION
        assert "another service's" in returned.log()
    assert not list((primary.data_dir / "store").glob("set-aside-*"))
    primary.start()
    assert read_ids(primary) == set(sent)


def test_a_promoted_log_is_not_cut_for_that_of_the_service_it_has_followed(primary, tmp_path):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        send(primary, 5)
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as promoted:
        send(promoted, 3)
        sent = read_ids(promoted)
        promoted.kill()
    for _ in range(3):  # the lost machine runs after all, and takes messages
        primary.start()
        send(primary, 1)
        primary.kill()
    primary.start()
    wrong_way = Replica(replica.data_dir, of(primary.ha_port), environment=SET_ASIDE)
    wrong_way.start(until_ready=False)
    assert wrong_way.wait() == CONFIGURATION
    assert "for a person to say" in wrong_way.log()
    with replica.service() as promoted:
        assert read_ids(promoted) == sent


def test_a_service_that_has_nothing_more_follows_its_promoted_replica(primary, tmp_path):
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        primary.wait_until_copied()
        sent = send(primary, 5)
        assert primary.terminate() == 0
        until(lambda: "primary_lost" in replica.log(), "the replica knows it")
        assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as promoted, Replica(primary.data_dir, of(promoted.ha_port)) as returned:
        sent += send(promoted, 5)
        promoted.wait_until_copied()
        promoted.kill()
        assert returned.terminate() == 0
    assert promote(returned.data_dir, "--yes").returncode == 0
    with returned.service() as service:
        assert read_ids(service) == set(sent)


def test_a_replica_of_another_service_is_refused(primary, tmp_path):
    """Both logs begin with the same epoch, and the replica has less."""
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        send(primary, 3)
        primary.wait_until_copied()
        replica.terminate()
    with Primary(tmp_path / "c") as other:
        send(other, 10)
        stranger = Replica(replica.data_dir, of(other.ha_port))
        stranger.start(until_ready=False)
        assert stranger.wait() == CONFIGURATION
        assert "is not a copy of this one" in stranger.log()


def test_a_replica_whose_folder_cannot_be_made_ends_with_the_reason(primary, tmp_path):
    (tmp_path / "file").write_text("in the way")
    replica = Replica(tmp_path / "file", of(primary.ha_port))
    replica.start(until_ready=False)
    assert replica.wait() == CONFIGURATION
    assert f"{tmp_path / 'file'} cannot be made: " in replica.log()


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"ESCROWMQ_REPLICA__SECRET": "not the one of the service"}, "the secret is another one"),
        ({"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 20)}, "ESCROWMQ_LOCAL__SEGMENT_BYTES"),
    ],
)
def test_a_replica_with_another_secret_or_other_segments_is_refused_with_the_reason(
    primary, tmp_path, environment, reason
):
    replica = Replica(tmp_path / "b", of(primary.ha_port), environment=environment)
    replica.start(until_ready=False)
    assert replica.wait() == CONFIGURATION
    assert reason in replica.log()


def test_a_replica_refuses_a_service_that_does_not_know_its_secret(tmp_path):
    secret = {"ESCROWMQ_REPLICA__SECRET": "a secret of enough characters"}
    with (
        Primary(tmp_path / "a", environment=secret) as primary,
        Replica(tmp_path / "b", of(primary.ha_port), environment=secret) as replica,
    ):
        send(primary, 3)
        primary.wait_until_copied()
        replica.terminate()
    # another service at its place, which lets anyone in
    with Primary(tmp_path / "c") as other:
        returned = Replica(tmp_path / "b", of(other.ha_port), environment=secret)
        returned.start(until_ready=False)
        assert returned.wait() == CONFIGURATION


def test_a_refusal_of_a_stranger_cuts_no_log(primary, tmp_path):
    """He knows the log, and not the secret."""
    secret = {"ESCROWMQ_REPLICA__SECRET": "a secret of enough characters", **SET_ASIDE}
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        sent = send(primary, 3)
        with primary.client() as api:
            last = ok(api.post(SEND, json={"payload": "x"}), 201)
        primary.wait_until_copied()
        replica.terminate()
    primary.kill()
    segment = replica.data_dir / "store" / "commitlog" / names.file_name(0)
    at = last["log_offset"]
    known = segment.read_bytes()[at - 64 : at]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=refuse_without_proof, args=(listener, at, known))
        stranger.start()
        returned = Replica(replica.data_dir, of(listener.getsockname()[1]), environment=secret)
        returned.start(until_ready=False)
        assert returned.wait() == CONFIGURATION
        stranger.join()
    assert not list((replica.data_dir / "store").glob("set-aside-*"))
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == {*sent, last["message_id"]}


def refuse_without_proof(listener: socket.socket, at: int, last_bytes: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(len(frames.GREETING))
        challenge = frames.Challenge(frames.VERSION, bytes(frames.NONCE_BYTES))
        connection.sendall(frames.encode_message(frames.Kind.CHALLENGE, challenge))
        connection.recv(1 << 16)
        refuse = frames.Refuse("", is_final=True, parts_at=at, last_bytes=last_bytes, proof=b"")
        connection.sendall(frames.encode_message(frames.Kind.REFUSE, refuse))
        connection.recv(1)


def test_the_log_goes_over_tls_where_there_is_a_certificate(tmp_path):
    certificate, key = self_signed(tmp_path)
    served = {
        "ESCROWMQ_REPLICA__TLS_CERTIFICATE": str(certificate),
        "ESCROWMQ_REPLICA__TLS_KEY": str(key),
    }
    trusts = {"ESCROWMQ_REPLICA__TLS_AUTHORITY": str(certificate)}
    with Primary(tmp_path / "a", environment=served) as primary:
        address = f"localhost:{primary.ha_port}"
        with Replica(tmp_path / "b", address, environment=trusts) as replica:
            send(primary, 3)
            primary.wait_until_copied()
            assert replica.terminate() == 0
        with Replica(tmp_path / "c", of(primary.ha_port)) as plain:
            until(lambda: "primary_lost" in plain.log(), "it is not let in")
            assert note_of(plain.data_dir)["end"] == 0


def takes_messages(api: httpx.Client) -> bool:
    return bool(ok(api.get("/readyz"))["checks"]["store_writable"] == "ok")


def test_a_replica_that_has_nothing_yet_begins_where_the_log_of_its_service_begins_by_now(
    primary, tmp_path
):
    """Retention dropped a segment between its being let in and its first byte."""
    folder.write_note(tmp_path / "b", ReplicaNote(primary=of(primary.ha_port)))
    folder.begin_log(tmp_path / "b", 5 << 24, 1 << 24)
    with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
        sent = send(primary, 3)
        primary.wait_until_copied()
        primary.kill()
        assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes").returncode == 0
    with replica.service() as service:
        assert read_ids(service) == set(sent)


def test_with_two_copies_sends_are_refused_without_a_replica_and_taken_with_one(tmp_path):
    with Primary(tmp_path / "a", environment=TWO_COPIES) as primary, primary.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        body = {"payload": "order"}
        refused = api.post("/v1/topics/orders/messages", json=body)
        assert_problem(refused, 503, "not_enough_copies")
        ready = ok(api.get("/readyz"))
        assert "too few replicas" in ready["checks"]["store_writable"]
        with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
            until(lambda: takes_messages(api), "the replica counts")
            sent = ok(api.post("/v1/topics/orders/messages", json=body), 201)
            assert (sent["durability"], sent["copies"]) == ("replicated", 2)
            primary.kill()
            assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with replica.service() as service:
            assert read_ids(service) == {sent["message_id"]}


REPLICATED = {"payload": "x", "require_durability": "replicated"}
SYNCED = {"payload": "x", "require_durability": "synced"}
SEND, BATCH = "/v1/topics/orders/messages", "/v1/topics/orders/messages/batch"


def test_with_two_copies_every_receipt_says_on_how_many_disks_its_message_is(tmp_path):
    with (
        Primary(tmp_path / "a", environment=TWO_COPIES) as primary,
        primary.client() as api,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
    ):
        until(lambda: takes_messages(api), "the replica counts")
        keyed = {"headers": {"Idempotency-Key": "once"}}
        batch = {"entries": [{"message": one} for one in (REPLICATED, SYNCED, {"payload": "x"})]}
        delayed = {**REPLICATED, "delay_ms": 60_000}
        receipts = [
            ok(api.post(SEND, json=SYNCED), 201),
            ok(api.post(SEND, json=REPLICATED), 201),
            ok(api.post(SEND, json=delayed), 201),
            *[one["receipt"] for one in ok(api.post(BATCH, json=batch), 201)["results"]],
            *[ok(api.post(SEND, json=REPLICATED, **keyed), 201) for _ in range(2)],
            *[line["receipt"] for line in lines_of(api, REPLICATED, SYNCED)],
        ]
        assert {(one["durability"], one.get("copies")) for one in receipts} == {("replicated", 2)}

        buffered = ok(api.post(SEND, json={"payload": "x", "require_durability": "buffered"}), 201)
        assert (buffered["durability"], "copies" in buffered) == ("buffered", False)
        assert replica.terminate() == 0


def test_what_no_replica_has_in_time_is_said_to_be_on_one_disk(tmp_path):
    seldom = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "10000"}  # so it is not taken for gone
    slow = {**TWO_COPIES, **seldom, "ESCROWMQ_LOCAL__SYNC_TIMEOUT_MS": "1500"}
    with (
        Primary(tmp_path / "a", environment=slow) as primary,
        primary.client() as api,
        Replica(tmp_path / "b", of(primary.ha_port), environment=seldom) as replica,
    ):
        until(lambda: takes_messages(api), "the replica counts")
        os.kill(replica.pid, signal.SIGSTOP)
        late = [ok(api.post(SEND, json=one), 202) for one in ({"payload": "x"}, REPLICATED)]
        enough = ok(api.post(SEND, json=SYNCED), 201)
        os.kill(replica.pid, signal.SIGCONT)
        said = [(one["durability"], "copies" in one) for one in (*late, enough)]
        assert said == [("synced", False)] * 3


def test_without_replicas_a_message_that_asks_for_one_is_refused_alone(primary):
    refusal = {"pointer": "/message/require_durability", "code": "not_allowed"}
    with primary.client() as api:
        problem = assert_problem(api.post(SEND, json=REPLICATED), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/require_durability"
        reason = "the service does not wait for replicas (ESCROWMQ_REPLICA__COPIES is 1)"
        assert problem["errors"][0]["detail"] == f"replicated is not available: {reason}"
        assert_problem(api.get("/v1/topics/orders"), 404, "topic_not_found")
        raw = {"Message-Require-Durability": "replicated"}
        refused = api.post("/v1/topics/orders/messages/raw", content=b"x", headers=raw)
        assert_problem(refused, 422, "validation_failed")
        asked = api.post("/v1/topics/orders/requests", json={"message": REPLICATED})
        assert_problem(asked, 422, "validation_failed", "/message/require_durability")
        for batch in ([REPLICATED, SYNCED], [REPLICATED, {**SYNCED, "properties": {"a": "b"}}]):
            body = {"atomic": False, "entries": [{"message": one} for one in batch]}
            first, second = ok(api.post(BATCH, json=body), 207)["results"]
            assert first["problem"]["errors"][0]["pointer"].endswith(refusal["pointer"])
            assert second["receipt"]["durability"] == "synced"
        first, second = lines_of(api, REPLICATED, SYNCED)
        assert first["problem"]["errors"][0] | refusal == first["problem"]["errors"][0]
        assert second["receipt"]["durability"] == "synced"


def lines_of(api: httpx.Client, *messages: dict[str, str]) -> list[Any]:
    """The results of a stream of these messages."""
    body = "".join(json.dumps({"message": one}) + "\n" for one in messages)
    kind = {"Content-Type": "application/x-ndjson"}
    answer = api.post("/v1/topics/orders/messages/stream", content=body, headers=kind)
    return [json.loads(line) for line in answer.text.splitlines() if "status" in line]


def test_with_two_copies_a_service_without_a_replica_gives_what_it_has_and_stops_in_order(
    tmp_path,
):
    with Primary(tmp_path / "a", environment=TWO_COPIES) as primary, primary.client() as api:
        with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
            until(lambda: takes_messages(api), "the replica counts")
            sent = send(primary, 3)
            ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
            replica.kill()
        until(lambda: not takes_messages(api), "it is known to be gone")
        received = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 10}))
        assert {one["message_id"] for one in received["messages"]} == set(sent)
        assert_problem(api.post("/v1/admin/store/flush"), 503, "not_enough_copies")
        assert primary.terminate() == 0


@pytest.mark.parametrize("change", ["commit", "ack", "offset"])
def test_with_two_copies_a_stop_ends_what_waits_for_a_replica_and_acknowledges_none_of_it(
    tmp_path, change
):
    with Primary(tmp_path / "a", environment=TWO_COPIES) as primary, primary.client() as api:
        with Replica(tmp_path / "b", of(primary.ha_port)) as replica:
            until(lambda: takes_messages(api), "the replica counts")
            send(primary, 3)
            ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
            received = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 1}))
            (leased,) = received["messages"]
            messages = [{"topic": "orders", "message": {"payload": "x"}}]
            begun = ok(
                api.post("/v1/transactions", json={"producer_group": "shop", "messages": messages}),
                201,
            )
            replica.kill()
        until(lambda: not takes_messages(api), "it is known to be gone")
        entries = [{"receipt_handle": leased["receipt_handle"]}]
        position = {"topic": "orders", "queue_id": leased["queue_id"], "offset": 1}
        method, path, body = {
            "commit": ("POST", f"/v1/transactions/{begun['transaction_id']}/commit", {}),
            "ack": ("POST", "/v1/groups/billing/ack", {"entries": entries}),
            "offset": ("PUT", "/v1/groups/billing/offsets", {"offsets": [position]}),
        }[change]
        stored = written_end(api)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(api.request, method, path, json=body)
            with primary.client() as other:
                until(lambda: written_end(other) > stored, "it is stored")
            begun_at = time.monotonic()
            assert primary.terminate() == 0
            assert time.monotonic() - begun_at < 10
        assert_problem(waiting.result(), 503, "storage_failed")


def written_end(api: httpx.Client) -> float:
    lines = api.get("/metrics").text.splitlines()
    name = "escrowmq_log_written_offset "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_with_two_copies_a_service_that_was_killed_shows_nothing_that_it_may_have_alone(tmp_path):
    """It starts when a replica has what it has, and ends at once when it is stopped before."""
    alone = {"payload": "alone", "require_durability": "buffered"}
    with Primary(tmp_path / "a", environment=TWO_COPIES) as primary:
        replica = Replica(tmp_path / "b", of(primary.ha_port))
        with primary.client() as api:
            with replica:
                until(lambda: takes_messages(api), "the replica counts")
                sent = send(primary, 5)
                os.kill(replica.pid, signal.SIGSTOP)
                last = ok(api.post("/v1/topics/orders/messages", json=alone), 201)["message_id"]
                replica.kill()
            primary.kill()
            primary.start(until_ready=False)
            refused = until(lambda: waiting(primary), "it listens")
            assert_problem(refused, 503, "recovering")
            assert_problem(api.get("/v1/topics/orders/queues"), 503, "recovering")
            assert primary.terminate() == 0
            primary.start(until_ready=False)
            with replica:
                primary.wait_until_ready()
                assert read_ids(primary) >= {*sent, last}
            life = primary.log().rpartition("waits_for_replicas")[2]
            assert life.index("replica_follows") < life.index(" ready")


def waiting(service: Server) -> httpx.Response | None:
    """The answer of a service that waits for a replica, once it gives one."""
    with service.client() as api, suppress(httpx.TransportError):
        answer = api.get("/readyz")
        if "not known to be on 2 machines" in answer.json().get("detail", ""):
            return answer
    return None


def test_with_two_copies_a_replica_that_stands_still_is_left_out_and_counts_again_later(tmp_path):
    with (
        Primary(tmp_path / "a", environment=TWO_COPIES) as primary,
        primary.client() as api,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
    ):
        until(lambda: takes_messages(api), "the replica counts")
        send(primary, 3)
        os.kill(replica.pid, signal.SIGSTOP)
        large = {"payload": "x" * 1_000_000, "require_durability": "buffered"}
        until(
            lambda: api.post("/v1/topics/orders/messages", json=large).status_code == 503,
            "it is known to stand still",
        )
        assert ok(api.get("/v1/admin/replicas"))["items"] == []
        os.kill(replica.pid, signal.SIGCONT)
        until(lambda: takes_messages(api), "it counts again")
        sent = send(primary, 1)
        primary.kill()
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes").returncode == 0
        with replica.service() as service:
            assert set(sent) <= read_ids(service)


def test_two_replicas_of_one_name_count_as_one_and_the_log_says_so(tmp_path):
    three = {"ESCROWMQ_REPLICA__COPIES": "3"}

    def replica(name: str, node: str) -> Replica:
        named = {"ESCROWMQ_REPLICA__NODE": node}
        return Replica(tmp_path / name, of(primary.ha_port), environment=named)

    with Primary(tmp_path / "a", environment=three) as primary, primary.client() as api:
        with replica("b", "one"), replica("c", "one") as second:
            until(lambda: "follows" in second.log(), "both were let in")
            assert not takes_messages(api)
            until(lambda: "replica_replaced" in primary.log(), "one takes the other's connection")
        with replica("b", "one"), replica("c", "two"):
            until(lambda: takes_messages(api), "both count")


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"COPIES": "2"}, "ha_host must be set"),
        ({"HA_HOST": "127.0.0.1", "COPIES": "6"}, "max_replicas allows 4"),
        ({"HA_HOST": "0.0.0.0"}, "secret must have at least 16 characters"),
        ({"HA_HOST": "0.0.0.0", "SECRET": "x" * 16}, "tls_certificate"),
        ({"PRIMARY": "shop.example.com:10912", "SECRET": "x" * 16}, "tls_authority"),
        ({"PRIMARY": "shop.example.com"}, "is no host:port"),
        ({"TLS_KEY": "key.pem"}, "tls_certificate and tls_key are set together"),
        ({"HEARTBEAT_MS": "0"}, "heartbeat_ms"),
    ],
)
def test_settings_that_would_show_the_log_to_others_or_make_no_sense_are_refused(
    tmp_path, environment, reason
):
    given = {f"ESCROWMQ_REPLICA__{name}": value for name, value in environment.items()}
    service = Server(tmp_path / "a", environment=given)
    service.start(until_ready=False)
    assert service.wait() == CONFIGURATION
    assert reason in service.log()


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xffEMQHA01" + b"\xff" * 64, b"\xffEMQHA01"]
)
def test_whatever_else_connects_is_sent_no_log_and_the_service_goes_on(primary, sent):
    send(primary, 3)
    with socket.create_connection(("127.0.0.1", primary.ha_port), timeout=60) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        received = b""
        while some := stranger.recv(65_536):
            received += some
    assert len(received) < 200, "a challenge at most"
    assert send(primary, 1)


def test_settings_are_read_from_the_file_in_the_directory_of_the_replica_too(tmp_path):
    small = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 20)}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "escrowmq.toml").write_text("[local]\nsegment_bytes = 1048576\n")
    with Primary(tmp_path / "a", environment=small) as primary:
        replica = Replica(tmp_path / "b", of(primary.ha_port), environment={SEGMENT_BYTES: None})
        with replica:
            send(primary, 3)
            primary.wait_until_copied()
            assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes", segment_bytes=None).returncode == 0


def test_a_replica_and_a_service_of_different_heartbeats_stay_connected(tmp_path):
    slow = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "2500"}
    with Primary(tmp_path / "a", environment=slow) as primary:
        quick = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "100"}
        with Replica(tmp_path / "b", of(primary.ha_port), environment=quick) as replica:
            until(lambda: "follows" in replica.log(), "it was let in")
            # ten beats of the one are less than one of the other
            until(lambda: heard_ms(replica) > begun_ms(replica) + 5_000, "beats of the service")
            assert "primary_lost" not in replica.log()


def heard_ms(replica: Replica) -> int:
    return int(note_of(replica.data_dir)["heard_at_ms"])


def begun_ms(replica: Replica) -> int:
    first = json.loads(replica.log().splitlines()[0])["timestamp"]
    return int(datetime.fromisoformat(first).timestamp() * 1000)


def test_no_more_replicas_than_allowed_are_served(tmp_path):
    environment = {"ESCROWMQ_REPLICA__MAX_REPLICAS": "1"}
    other = {"ESCROWMQ_REPLICA__NODE": "another"}
    with (
        Primary(tmp_path / "a", environment=environment) as primary,
        Replica(tmp_path / "b", of(primary.ha_port)),
    ):
        send(primary, 3)
        primary.wait_until_copied()
        with Replica(tmp_path / "c", of(primary.ha_port), environment=other) as second:
            until(lambda: "max_replicas are connected" in second.log(), "the reason is logged")
            assert primary.figures()["escrowmq_replicas"] == 1


def test_a_replica_that_was_never_let_in_is_not_promoted(tmp_path):
    replica = Replica(tmp_path / "b", of(1))
    with replica:
        until(lambda: note_of(replica.data_dir), "it is a replica")
        assert replica.terminate() == 0
    refused = promote(replica.data_dir, "--yes")
    assert refused.returncode == 3
    assert "has no log yet: the primary never let it in" in refused.stderr
    assert note_of(replica.data_dir), "it is one still"


def test_strangers_that_say_nothing_keep_no_replica_out(primary, tmp_path):
    send(primary, 3)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", primary.ha_port)))
        stack.enter_context(Replica(tmp_path / "b", of(primary.ha_port)))
        primary.wait_until_copied()


def test_a_replica_can_begin_where_the_log_of_its_service_begins(tmp_path):
    """Retention has dropped the first segments."""
    environment = {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(64 << 10),
        "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(32 << 10),
        "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "100",
        "ESCROWMQ_LOCAL__QUEUE_FLUSH_INTERVAL_MS": "50",
        "ESCROWMQ_LOCAL__RETENTION_MS": "300",
    }
    with Primary(tmp_path / "a", environment=environment) as primary, primary.client() as api:
        for _ in range(40):
            ok(api.post("/v1/topics/orders/messages/raw", content=b"x" * 10_000), 201)

        def has_dropped() -> bool:
            ok(api.post("/v1/admin/retention/run"), 202)
            return bool(ok(api.get("/v1/admin/store"))["log"]["min_offset"])

        until(has_dropped, "the first segments are dropped")
        sent = ok(api.post("/v1/topics/orders/messages", json={"payload": "last"}), 201)
        with Replica(tmp_path / "b", of(primary.ha_port), environment=environment) as replica:
            primary.wait_until_copied()
            queues = ok(api.get("/v1/topics/orders/queues"))
            primary.kill()
            assert replica.terminate() == 0
    assert promote(replica.data_dir, "--yes", segment_bytes=64 << 10).returncode == 0
    promoted = replica.service()
    # nothing is dropped while it is read
    promoted.configure(ESCROWMQ_LOCAL__RETENTION_MS="3600000")
    with promoted as service, service.client() as api:
        assert sent["message_id"] in read_ids(service)
        for now, before in zip(
            ok(api.get("/v1/topics/orders/queues"))["items"], queues["items"], strict=True
        ):
            assert now["max_offset"] == before["max_offset"]
