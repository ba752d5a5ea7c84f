"""`escrowmq import offsets`: groups of a running service continue where a broker's file has them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

import cli.main
from cli.import_.offsets import read_settled
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.formats import consumer_offsets
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message
from tests.support.http import ok
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("no_settings_of_the_machine")


@pytest.fixture
def store(tmp_path, topic) -> Path:
    """A broker's folder, as its offsets are written while it runs."""
    (tmp_path / "config").mkdir()
    table = (
        f'{{"offsetTable":{{"{topic}@billing-{topic}":{{0:3}},"missing@billing-{topic}":{{0:9}},'
        f'"{topic}@ahead-{topic}":{{0:7,1:2}},"{topic}@CID_RMQ_SYS_TRANS":{{0:1}},'
        f'"%RETRY%billing-{topic}@billing-{topic}":{{0:4}}}}}}'
    )
    (tmp_path / "config" / "consumerOffset.json").write_text(table)
    return tmp_path


def run(source: Path, url: str, *options: str) -> tuple[int, dict[str, Any], str]:
    file = source.parent / "moves.json" if source.is_file() else source / "moves.json"
    done = CliRunner().invoke(
        cli.main.app,
        ["import", "offsets", "--from", str(source), "--to", url, "--json", str(file), *options],
    )
    return done.exit_code, json.loads(file.read_text()) if file.exists() else {}, done.output


def send(api: httpx.Client, topic: str, count: int) -> None:
    for number in range(count):
        ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": str(number)}), 201)


def test_groups_are_made_and_continue_where_the_broker_has_them(server, api, topic, store):
    send(api, topic, 5)

    status, report, output = run(store, server.url)

    assert status == 1
    assert report["counts"] == {
        "advanced": 1, "beyond_end": 1, "topic_not_found": 1, "queue_not_found": 1, "retries": 1
    }  # fmt: skip
    assert f"beyond_end: group ahead-{topic}, {topic}/0, offset 7: continues at 5" in output
    assert f"topic_not_found: group billing-{topic}, missing/0, offset 9\n" in output
    group = f"/v1/groups/billing-{topic}"
    received = ok(api.post(f"{group}/receive", json={"max_messages": 10}))["messages"]
    assert [one["payload"] for one in received] == ["3", "4"]
    (position,) = ok(api.get(f"/v1/groups/ahead-{topic}/offsets"))["items"]
    assert position["offset"] == 5


def test_a_group_does_not_go_back(server, api, topic, store):
    send(api, topic, 5)
    group = f"billing-{topic}"
    offsets = {"offsets": [{"topic": topic, "queue_id": 0, "offset": 4}]}
    ok(api.put(f"/v1/groups/{group}/offsets", json=offsets))

    _, report, _ = run(store, server.url, "--group", group)

    assert report["counts"]["unchanged"] == 1
    (position,) = ok(api.get(f"/v1/groups/{group}/offsets"))["items"]
    assert position["offset"] == 4


def test_a_group_that_has_no_topics_yet_gets_those_in_which_it_continues(server, api, topic, store):
    send(api, topic, 5)
    group = f"billing-{topic}"
    ok(api.put(f"/v1/groups/{group}", json={"start": "latest", "max_attempts": 3}), 201)

    dry, planned, _ = run(store, server.url, "--group", group, "--dry-run")
    assert ok(api.get(f"/v1/groups/{group}"))["topics"] == []
    status, report, output = run(store, server.url, "--group", group)

    assert report["subscribed"] == planned["subscribed"] == {group: [topic]}
    assert (status, dry) == (1, 1)  # its other topic does not exist
    assert "1  groups subscribed to their topics\n" in output
    found = ok(api.get(f"/v1/groups/{group}"))
    assert ([one["topic"] for one in found["topics"]], found["max_attempts"]) == ([topic], 3)
    received = ok(api.post(f"/v1/groups/{group}/receive", json={"max_messages": 10}))["messages"]
    assert [one["payload"] for one in received] == ["3", "4"]


def test_a_group_keeps_the_topics_that_it_has(server, api, topic, store):
    send(api, topic, 5)
    group = f"billing-{topic}"
    ok(api.post("/v1/topics", json={"topic": f"other-{topic}"}), 201)
    ok(api.put(f"/v1/groups/{group}", json={"topics": [{"topic": f"other-{topic}"}]}), 201)

    _, report, _ = run(store, server.url, "--group", group)

    assert (report["subscribed"], report["counts"]["advanced"]) == ({}, 1)
    topics = ok(api.get(f"/v1/groups/{group}"))["topics"]
    assert [one["topic"] for one in topics] == [f"other-{topic}"]


def test_a_dry_run_sets_nothing(server, api, topic, store):
    send(api, topic, 5)

    status, planned, output = run(store, server.url, "--dry-run")

    assert "Nothing was changed." in output
    assert api.get(f"/v1/groups/billing-{topic}").status_code == 404
    done_status, done, _ = run(store, server.url)
    assert (status, planned["moves"]) == (done_status, done["moves"])


def test_all_offsets_set_is_exit_status_0_and_a_second_run_changes_nothing(
    server, api, topic, tmp_path
):
    send(api, topic, 5)
    file = tmp_path / "offsets.json"
    file.write_text(f'{{"offsetTable":{{"{topic}@billing-{topic}":{{0:5}}}}}}')

    first, second = run(file, server.url), run(file, server.url)

    assert (first[0], first[1]["counts"]) == (0, {"advanced": 1})
    assert (second[0], second[1]["counts"]) == (0, {"unchanged": 1})


def test_a_group_may_have_more_offsets_than_one_request_has(server, api, topic, tmp_path):
    ok(api.post("/v1/topics", json={"topic": f"wide-{topic}", "queues": 1_024}), 201)
    file = tmp_path / "offsets.json"
    offsets = ",".join(f"{number}:0" for number in range(1_024))
    file.write_text(f'{{"offsetTable":{{"wide-{topic}@billing-{topic}":{{{offsets}}}}}}}')

    status, report, _ = run(file, server.url)

    assert (status, report["counts"]) == (0, {"advanced": 1_024})
    assert len(ok(api.get(f"/v1/groups/billing-{topic}/offsets"))["items"]) == 1_024


def test_a_file_that_is_being_replaced_is_read_from_its_copy(server, api, topic, store):
    file = store / "config" / "consumerOffset.json"
    file.rename(file.with_name("consumerOffset.json.bak"))
    send(api, topic, 5)

    assert run(store, server.url)[1]["counts"]["advanced"] == 1


@pytest.mark.parametrize("found", ["missing", "empty", "cut", "cut without a copy"])
def test_a_file_that_a_broker_is_writing_is_read_when_it_is_written(store, found):
    file = store / "config" / "consumerOffset.json"
    written = file.read_bytes()
    file.rename(file.with_name("consumerOffset.json.bak"))
    if found != "missing":
        file.write_bytes(b"" if found == "empty" else written[:20])
    if found == "cut without a copy":
        file.with_name("consumerOffset.json.bak").unlink()
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            file.write_bytes(written)

    content = read_settled(file, pause)

    assert content.backup is None
    assert content.value == consumer_offsets.read(written)
    assert len(pauses) == 3


def test_an_address_that_is_none_is_wrong_usage(store):
    assert run(store, "127.0.0.1:8080")[0] == 2


@pytest.mark.parametrize("what", ["no file", "no offsets", "no service"])
def test_a_run_that_cannot_be_carried_out_is_exit_status_3(what, server, tmp_path):
    if what != "no file":
        (tmp_path / "config").mkdir()
        text = "nothing" if what == "no offsets" else '{"offsetTable":{"a@b":{0:1}}}'
        (tmp_path / "config" / "consumerOffset.json").write_text(text)

    url = f"{server.url}/elsewhere" if what == "no service" else server.url
    status, _, output = run(tmp_path, url)

    assert status == 3
    assert "could not be imported" in output


OF_ORDERS = {"retries": 1}  # the offset in the retry queue


class Moved(NamedTuple):
    """A broker, played by a service, and the service that got a copy of its store. Both have five
    messages of `orders`, and an undecided transaction.
    """

    broker: Server
    service: Server
    transaction_id: str

    def import_offsets(self, *options: str) -> tuple[int, dict[str, Any], str]:
        return run(self.broker.data_dir / "store", self.service.url, "--group", "billing", *options)

    def received(self) -> list[str]:
        with self.service.client() as api:
            answer = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 100}))
        return [one["payload"] for one in answer["messages"]]


@pytest.fixture
def moved(tmp_path) -> Iterator[Moved]:
    service = Server(tmp_path / "service")
    with Server(tmp_path / "broker") as broker:
        with broker.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            wanted = {"topics": [{"topic": "orders"}], "max_attempts": 2}
            ok(api.put("/v1/groups/billing", json=wanted), 201)
            send(api, "orders", 5)
            begun = {
                "producer_group": "shop",
                "messages": [{"topic": "orders", "message": {"payload": "decided"}}],
            }
            transaction_id = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]
        broker.terminate()
        shutil.copytree(broker.data_dir, service.data_dir)
        broker.start()
        with service:
            yield Moved(broker, service, transaction_id)


def say(server: Server, *payloads: str) -> None:
    with server.client() as api:
        for payload in payloads:
            ok(api.post("/v1/topics/orders/messages", json={"payload": payload}), 201)


def commit(server: Server, transaction_id: str) -> None:
    with server.client() as api:
        ok(api.post(f"/v1/transactions/{transaction_id}/commit"))


def consume(broker: Server, offset: int) -> None:
    """Stops the broker, as its offsets are written then."""
    with broker.client() as api:
        offsets = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": offset}]}
        ok(api.put("/v1/groups/billing/offsets", json=offsets))
    broker.terminate()


def test_queues_that_grew_at_the_service_alone_are_compared_and_the_offset_is_set(moved):
    say(moved.service, "new 0", "new 1")
    consume(moved.broker, 5)
    moved.broker.start()

    status, report, output = moved.import_offsets()

    assert (status, report["counts"], report["compared"]) == (0, OF_ORDERS | {"advanced": 1}, True)
    assert "Warning" not in output
    assert moved.received() == ["new 0", "new 1"]


def test_offsets_behind_other_messages_of_the_broker_are_cut_and_nothing_new_is_skipped(moved):
    say(moved.broker, *[f"broker {number}" for number in range(4)])
    new = [f"new {number}" for number in range(10)]
    say(moved.service, *new)
    consume(moved.broker, 9)

    status, report, output = moved.import_offsets()

    assert (status, report["counts"]) == (1, OF_ORDERS | {"other_messages": 1})
    assert "other_messages: group billing, orders/0, offset 9: continues at 5. " in output
    assert "The broker's queue has other messages from 5 on" in output
    assert moved.received() == new


def test_a_transaction_that_both_sides_committed_is_not_the_same_message(moved):
    for server, payload in ((moved.broker, "broker"), (moved.service, "new")):
        say(server, payload)
        commit(server, moved.transaction_id)
    consume(moved.broker, 7)

    status, report, _ = moved.import_offsets("--dry-run")

    (move,) = [one for one in report["moves"] if one["topic"] == "orders"]
    assert (status, move["to_offset"]) == (1, 5)


def test_offsets_in_a_queue_without_files_at_the_broker_are_not_set(moved):
    consume(moved.broker, 5)
    shutil.rmtree(moved.broker.data_dir / "store" / "consumequeue" / "orders")

    status, report, output = moved.import_offsets()

    assert (status, report["counts"]) == (1, OF_ORDERS | {"not_compared": 1})
    assert "not_compared: group billing, orders/0, offset 5: not set" in output
    assert len(moved.received()) == 5


async def test_retries_and_dead_letters_that_only_the_broker_has_are_counted(moved):
    with moved.broker.client() as api:
        for _ in range(2):
            wanted = {"max_messages": 1, "wait_ms": 20_000}
            (given,) = ok(api.post("/v1/groups/billing/receive", json=wanted))["messages"]
            entries = [{"receipt_handle": given["receipt_handle"], "delay_ms": 0}]
            ok(api.post("/v1/groups/billing/nack", json={"entries": entries}))
    consume(moved.broker, 5)
    clock = SystemClock()
    store = await LocalMessageStore.open(
        moved.broker.data_dir / "store",
        LocalStoreOptions(segment_bytes=1 << 24),
        OsVfs(),
        clock,
        Identifiers(clock, SystemRandom()),
    )
    await store.create_topic("%RETRY%billing", queue_count=1)
    retries = QueueId("%RETRY%billing", 0)
    for name in ("r0", "r1"):
        await store.append([message(b"x", queue=retries, message_id=name)])
    await store.aclose()

    status, report, output = moved.import_offsets()

    assert (status, report["counts"]) == (1, OF_ORDERS | {"advanced": 1})
    assert report["only_at_broker"] == [
        {"group": "billing", "kind": "retries", "count": 2},
        {"group": "billing", "kind": "dead_letters", "count": 1},
    ]
    assert "only at the broker: group billing: 2 retries. Let the broker's" in output


def test_without_the_folder_of_the_broker_a_warning_says_that_nothing_was_compared(moved):
    consume(moved.broker, 5)
    file = moved.broker.data_dir / "store" / "config" / "consumerOffset.json"

    status, report, output = run(file, moved.service.url)

    assert (status, report["compared"]) == (0, False)
    assert output.startswith("Warning: without the broker's store folder nothing was compared.")


def test_the_folder_that_is_meant_is_named_where_another_is_given(server, store, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "config").rename(tmp_path / "root" / "config")

    status, _, output = run(tmp_path, server.url)

    assert status == 3
    assert "--from is the folder that the broker's setting storePathRootDir names" in output
    assert f"Is it {tmp_path / 'root'}?" in output


def test_offsets_from_a_copy_of_a_damaged_file_are_reported(server, api, topic, store):
    send(api, topic, 5)
    file = store / "config" / "consumerOffset.json"
    file.rename(file.with_name("consumerOffset.json.bak"))
    file.write_bytes(b"{")

    status, report, output = run(store, server.url)

    assert status == 1
    assert "its .bak was read: what the groups consumed at the broker since then" in output
    assert report["backup"].startswith(f"{file} is damaged (")
