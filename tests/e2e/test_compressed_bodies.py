"""Compressed bodies of RocketMQ's clients over HTTP, and one among them that cannot be
decompressed: it is shown as such, and holds up nothing.
"""

import asyncio
import zlib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lz4.frame
import pytest
import zstandard

from escrowmq_client.records import Record, read_page
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.formats import record as records
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId, RecordHeader
from tests.support.builders import message
from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

QUEUE = QueueId("orders", 0)
HOST = bytes([10, 0, 0, 7, 0, 0, 0x1F, 0x90])
TEXT, BYTES = b"some text, " * 2_000, bytes(range(256)) * 400
BAD = 3  # the offset of the message whose body cannot be decompressed
BODIES = [TEXT, BYTES, TEXT, None, b"plain", bytes(1 << 20), bytes(600 << 10)]
BY_TAG = {"kind": "tag", "expression": "t || u"}
RECORDS = "application/vnd.escrowmq.records"
PULL = "/v1/topics/orders/queues/0/messages"


def brokers(number: int, body: bytes, sys_flag: int) -> Message:
    header = RecordHeader(-1, sys_flag | records.COMPRESSED, HOST, 0)
    return message(body, queue=QUEUE, message_id=f"ID{number}", key="k", tag="t", header=header)


MESSAGES = [
    brokers(0, zlib.compress(TEXT), 0x300),
    brokers(1, lz4.frame.compress(BYTES), 0x100),
    brokers(2, zstandard.ZstdCompressor().compress(TEXT), 0x200),
    brokers(3, b"no zlib", 0),
    message(b"plain", queue=QUEUE, message_id="ID4", key="k"),
    brokers(5, zlib.compress(bytes(1 << 20)), 0),
    brokers(6, zlib.compress(bytes(600 << 10)), 0x300),
]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[httpx.Client]:
    data_dir = tmp_path / "data"

    async def write() -> None:
        clock = SystemClock()
        options = LocalStoreOptions(segment_bytes=1 << 24)
        identifiers = Identifiers(clock, SystemRandom())
        store = await LocalMessageStore.open(
            data_dir / "store", options, OsVfs(), clock, identifiers
        )
        await store.create_topic("orders", queue_count=1)
        await store.append(MESSAGES)
        await store.aclose()

    asyncio.run(write())
    with Server(data_dir) as server, server.client() as client:
        yield client


def body_of(shown: dict[str, Any]) -> bytes | None:
    """None where it could not be decompressed."""
    if shown.get("payload_problem") == "payload_unreadable":
        assert "payload" not in shown
        return None
    payload = shown["payload"].encode()
    return b64decode(payload) if shown["payload_encoding"] == "base64" else payload


def by_id(found: list[dict[str, Any]]) -> dict[str, bytes | None]:
    return {one["message_id"]: body_of(one) for one in found}


def received(api: httpx.Client, message_id: str) -> dict[str, Any]:
    """The message when the group receives it; others stay leased."""
    while True:
        asked = {"max_messages": 1, "wait_ms": 10_000}
        (one,) = ok(api.post("/v1/groups/g/receive", json=asked))["messages"]
        if one["message_id"] == message_id:
            return one


def test_a_list_has_every_body_and_says_of_which_message_it_has_none(api):
    expected = {f"ID{number}": body for number, body in enumerate(BODIES)}
    for payload in ("auto", "utf8", "base64"):
        query = {"offset": 0, "max_messages": 100, "max_bytes": 16 << 20, "payload": payload}
        page = ok(api.get(PULL, params=query))
        assert by_id(page["messages"]) == expected
        assert page["next_offset"] == len(BODIES)
        query = {"topic": "orders", "key": "k", "payload": payload}
        assert by_id(ok(api.get("/v1/messages", params=query))["items"]) == expected
    omitted = ok(api.get(PULL, params={"offset": 0, "payload": "omit"}))["messages"]
    assert len(omitted) == len(BODIES)
    assert not any({"payload", "payload_problem"} & one.keys() for one in omitted)


def test_records_have_the_stored_bodies_and_the_client_says_how_they_are_compressed(api):
    answer = api.get(PULL, params={"offset": 0, "max_messages": 100}, headers={"Accept": RECORDS})
    found = [one for one in read_page(answer.content).messages if isinstance(one, Record)]

    assert [one.raw_body for one in found] == [one.body for one in MESSAGES]
    assert [one.compression for one in found] == [
        *("zlib", "lz4", "zstd", "zlib", None, "zlib", "zlib")
    ]
    assert found[4].body == b"plain"
    with pytest.raises(ValueError, match="the body is compressed"):
        _ = found[0].body


def test_a_page_has_as_many_decompressed_bodies_as_there_is_room_for(api):
    found, at, sizes = {}, 0, []
    while at < len(BODIES):
        page = ok(api.get(PULL, params={"offset": at, "max_bytes": 700 << 10}))
        found |= by_id(page["messages"])
        sizes.append(len(page["messages"]))
        at = page["next_offset"]

    assert found == {f"ID{number}": body for number, body in enumerate(BODIES)}
    assert sizes == [5, 1, 1]


def test_a_single_message_without_its_body_is_a_problem(api):
    assert body_of(ok(api.get("/v1/messages/ID1"))) == BYTES
    assert api.get("/v1/messages/ID1/payload").content == BYTES
    part = api.get("/v1/messages/ID1/payload", headers={"Range": "bytes=256-511"})
    assert (part.status_code, part.content) == (206, bytes(range(256)))

    for path in ("/v1/messages/ID3", "/v1/messages/ID3/payload"):
        problem = assert_problem(api.get(path), 422, "payload_unreadable")
        assert "ID3" in problem["detail"]
    assert ok(api.get("/v1/messages/ID3?payload=omit"))["message_id"] == "ID3"


@pytest.mark.parametrize("kind", ["plain", "ordered", "by tag"])
def test_what_cannot_be_decompressed_is_a_dead_letter_and_holds_up_nothing(api, kind):
    subscription = {"topic": "orders", **({"filter": BY_TAG} if kind == "by tag" else {})}
    rules = {"topics": [subscription], "ordered": kind == "ordered"}
    ok(api.put("/v1/groups/g", json=rules), 201)
    expected = {f"ID{number}": body for number, body in enumerate(BODIES) if number != BAD}
    if kind == "by tag":
        del expected["ID4"]

    found: dict[str, bytes | None] = {}
    while found.keys() != expected.keys():
        asked = {"max_messages": 4, "max_bytes": 700 << 10}
        messages = ok(api.post("/v1/groups/g/receive", json=asked))["messages"]
        assert messages
        found |= by_id(messages)
        entries = [{"receipt_handle": one["receipt_handle"]} for one in messages]
        ok(api.post("/v1/groups/g/ack", json={"entries": entries}))
    assert ok(api.post("/v1/groups/g/receive", json={}))["messages"] == []

    assert found == expected
    (letter,) = ok(api.get("/v1/groups/g/dead-letters"))["items"]
    assert letter["reason"].startswith("its body cannot be decompressed: it is not zlib")
    assert (letter["attempts"], letter["message"]["queue_offset"]) == (0, BAD)
    assert (letter["message"]["message_id"], letter["message"]["key"]) == ("ID3", "k")
    assert body_of(letter["message"]) is None
    assert "damaged" not in letter
    assert body_of(ok(api.get("/v1/groups/g/dead-letters/ID3"))["message"]) is None
    lag = ok(api.get("/v1/groups/g/lag"))
    assert (lag["messages_ready"], lag["messages_leased"]) == (0, 0)


def test_a_receive_that_is_repeated_has_the_same_bodies(api):
    ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
    asked = {"max_messages": 2, "attempt_id": "a"}
    first = ok(api.post("/v1/groups/g/receive", json=asked))["messages"]

    assert by_id(first) == {"ID0": TEXT, "ID1": BYTES}
    assert ok(api.post("/v1/groups/g/receive", json=asked))["messages"] == first


def test_retries_and_dead_letters_have_the_body_of_the_message(api):
    ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
    first = received(api, "ID0")
    assert (first["attempt"], body_of(first)) == (1, TEXT)
    entry = {"receipt_handle": first["receipt_handle"], "delay_ms": 1}
    ok(api.post("/v1/groups/g/nack", json={"entries": [entry]}))
    second = received(api, "ID0")
    assert (second["attempt"], body_of(second)) == (2, TEXT)
    entry = {"receipt_handle": second["receipt_handle"]}
    ok(api.post("/v1/groups/g/dead-letter", json={"entries": [entry]}))
    (letter,) = [
        one
        for one in ok(api.get("/v1/groups/g/dead-letters"))["items"]
        if one["message"]["message_id"] == "ID0"
    ]
    assert (letter["attempts"], body_of(letter["message"])) == (2, TEXT)
    asked = {"select": "ids", "message_ids": ["ID0"]}
    ok(api.post("/v1/groups/g/dead-letters/redrive", json=asked), 202)
    assert body_of(received(api, "ID0")) == TEXT


def test_a_dead_letter_without_its_body_that_is_redriven_is_a_dead_letter_again(api):
    ok(api.put("/v1/groups/g", json={"topics": [{"topic": "orders"}]}), 201)
    received(api, "ID4")
    (letter,) = ok(api.get("/v1/groups/g/dead-letters"))["items"]
    ok(api.post("/v1/groups/g/dead-letters/redrive", json={"select": "all"}), 202)

    def is_back() -> bool:
        ok(api.post("/v1/groups/g/receive", json={"max_messages": 1}))
        items = ok(api.get("/v1/groups/g/dead-letters"))["items"]
        return bool(items) and items[0]["dead_lettered_at"] != letter["dead_lettered_at"]

    until(is_back, "the message is a dead letter again")
    (again,) = ok(api.get("/v1/groups/g/dead-letters"))["items"]
    for name in ("reason", "origin_topic", "attempts"):
        assert again[name] == letter[name]
    for name in ("message_id", "queue_offset", "payload_problem"):
        assert again["message"][name] == letter["message"][name]
    assert ok(api.get("/v1/groups/g/lag"))["messages_waiting"] == 0
