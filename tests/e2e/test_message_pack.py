"""Batches and streams as MessagePack: the messages, the answers and the limits of JSON, and
payloads of any bytes.
"""

import gzip
import json
from typing import Any

import httpx
import msgspec
import pytest

from app.encoding.codec import MAX_VALUES
from tests.support.http import assert_problem, ok
from tests.support.line_stream import LineStream

HEADERS = {"Content-Type": "application/msgpack"}
CHANGING = {"message_id", "topic", "log_offset", "stored_at", "born_at"}
pack = msgspec.msgpack.encode


def send(
    api: httpx.Client, topic: str, entries: list[Any], *, atomic: bool = True, **headers: str
) -> httpx.Response:
    body = pack({"entries": entries, "atomic": atomic})
    return api.post(f"/v1/topics/{topic}/messages/batch", content=body, headers=HEADERS | headers)


def stored(api: httpx.Client, topic: str) -> list[dict[str, Any]]:
    params = {"max_messages": 1_000, "max_bytes": 16 << 20}
    return ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params=params))["messages"]


def seen_of(answer: Any, messages: list[dict[str, Any]]) -> Any:
    receipts = [result.pop("receipt", {}) for result in answer]
    without = [
        {name: value for name, value in one.items() if name not in CHANGING}
        for one in (*receipts, *messages)
    ]
    return answer, [list(receipt) for receipt in receipts], without


PLAIN = [
    {"id": "1", "message": {"payload": "ü", "key": "k", "tag": "t"}},
    {"id": "2", "message": {"json": {"n": [1, 2.5, None, True, {"ü": ""}]}}},
    {"message": {"payload": ""}},
]
OTHERS = [
    *PLAIN,
    {
        "id": "4",
        "message": {
            "payload": "x",
            "queue_id": 0,
            "ordering_key": "o",
            "properties": {"a": "b"},
            "content_type": "a/b",
        },
    },
    {"id": "5", "message": {"payload": "eA==", "payload_encoding": "base64"}},
]


@pytest.mark.parametrize("entries", [PLAIN, OTHERS], ids=["plain", "others"])
def test_a_batch_is_answered_and_stored_as_the_same_one_in_json(api, make_topic, entries):
    packed, plain = make_topic(queues=1), make_topic(queues=1)

    answer = ok(send(api, packed, entries), 201)
    expected = ok(api.post(f"/v1/topics/{plain}/messages/batch", json={"entries": entries}), 201)

    assert answer["accepted"] == expected["accepted"] == len(entries)
    assert seen_of(answer["results"], stored(api, packed)) == seen_of(
        expected["results"], stored(api, plain)
    )


@pytest.mark.parametrize("more", [{}, {"queue_id": 0}], ids=["plain", "others"])
def test_a_binary_payload_is_stored_as_it_is(api, make_topic, server, more):
    topic = make_topic(queues=1)
    bodies = [b"\xff\x00\xc1", b"text", b"", bytes(range(256)) * 4_000]

    ok(send(api, topic, [{"message": {"payload": body, **more}} for body in bodies]), 201)
    with LineStream(server, topic, "Content-Type: application/msgpack") as stream:
        stream.write(b"".join([pack({"message": {"payload": body, **more}}) for body in bodies]))
        stream.end()
        assert [answer["status"] for answer in stream.rest()] == [201] * 4

    found = [
        api.get(f"/v1/messages/{message['message_id']}/payload").content
        for message in stored(api, topic)
    ]
    assert found == bodies * 2


def test_wrong_messages_are_told_from_right_ones(api, make_topic):
    topic = make_topic(queues=1)
    wrong = [
        {"payload": 5}, {"payload": b"x", "payload_encoding": "base64"}, {"json": b"x"},
        {"json": [float("nan")]},
        {"json": {1: 2}}, {"json": msgspec.msgpack.Ext(1, b"")}, {"payload": "x", "json": 1}, {},
        {"payload": "x", "delay_ms": -1}, {"payload": "x", "unknown": 1}, 5,
    ]  # fmt: skip
    entries = [
        {"id": str(n), "message": message} for n, message in enumerate([{"payload": "x"}, *wrong])
    ]

    answer = ok(send(api, topic, entries, atomic=False), 207)

    assert [result["status"] for result in answer["results"]] == [201] + [422] * len(wrong)
    pointers = [result["problem"]["errors"][0]["pointer"] for result in answer["results"][1:]]
    fields = [
        "/payload", "/payload_encoding", "/json", "/json", "/json", "/json", "/payload", "/payload",
        "/delay_ms", "/unknown",
        "",
    ]  # fmt: skip
    assert pointers == [f"/entries/{n}/message{field}" for n, field in enumerate(fields, 1)]
    assert len(stored(api, topic)) == 1
    assert_problem(
        send(api, topic, entries[:2]), 422, "validation_failed", "/entries/1/message/payload"
    )


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"\xc1", "(byte 0)"),
        (pack({"entries": []})[:-1], "(byte 9)"),
        (
            pack({"entries": [{"message": {"payload": "x"}}]}) + b"\x00",
            "trailing characters (byte 30)",
        ),
        (pack({"entries": [{"message": {"payload": 1}}]})[:-1] + b"\xc1", "(byte 28)"),
        (pack({"entries": [{"message": {"json": msgspec.Raw(b"\xa1\xff")}}]}), "position 0"),
    ],
)
def test_what_is_no_messagepack_is_refused_and_its_place_is_named(api, topic, body, place):
    answer = api.post(f"/v1/topics/{topic}/messages/batch", content=body, headers=HEADERS)

    problem = assert_problem(answer, 400, "malformed_request")
    assert place in problem["detail"]


def test_limits_are_those_of_json(api, topic):
    def sent(json: bytes) -> httpx.Response:
        return send(api, topic, [{"message": {"json": msgspec.Raw(json)}}])

    assert_problem(sent(b"\x91" * 125 + b"\x01"), 400, "malformed_request")
    assert_problem(sent(b"\x91" * 5_000 + b"\x01"), 400, "malformed_request")
    assert_problem(sent(pack([1] * MAX_VALUES)), 413, "body_too_large")
    assert_problem(sent(pack([[1] * 9] * (MAX_VALUES // 10))), 413, "body_too_large")
    assert_problem(
        send(api, topic, [{"message": {"payload": b"x"}}] * 1_001),
        422,
        "validation_failed",
        "/entries",
    )
    assert_problem(
        send(api, topic, [{"message": {"payload": bytes(5 << 20)}}]), 413, "message_too_large"
    )
    assert sent(b"\x91" * 124 + b"\x01").status_code == 201
    assert sent(pack([1] * (MAX_VALUES - 10))).status_code == 201


def test_a_large_batch_and_one_with_a_key_are_taken(api, make_topic):
    topic = make_topic(queues=1)
    entries = [{"id": str(n), "message": {"payload": bytes([n]) * 20_000}} for n in range(50)]
    key = {"Idempotency-Key": "k-1"}

    first = ok(send(api, topic, entries, **key), 201)
    again = send(api, topic, entries, **key)

    assert again.headers["idempotency-replayed"] == "true"
    ids = [result["receipt"]["message_id"] for result in ok(again, 201)["results"]]
    assert ids == [result["receipt"]["message_id"] for result in first["results"]]
    assert [len(message["payload"]) for message in stored(api, topic)] == [20_000] * 50


def test_a_compressed_batch_is_taken(api, topic):
    body = gzip.compress(pack({"entries": [{"message": {"payload": b"x"}}]}))

    headers = HEADERS | {"Content-Encoding": "gzip"}
    assert (
        ok(api.post(f"/v1/topics/{topic}/messages/batch", content=body, headers=headers), 201)[
            "accepted"
        ]
        == 1
    )


def test_other_operations_take_no_messagepack(api, topic):
    for path, body in (
        (f"/v1/topics/{topic}/messages", {"payload": "x"}),
        ("/v1/transactions", {"producer_group": "shop", "messages": []}),
        (f"/v1/topics/{topic}/requests", {"message": {"payload": "x"}}),
    ):
        assert_problem(
            api.post(path, content=pack(body), headers=HEADERS), 415, "unsupported_media_type"
        )
    other = api.post(
        f"/v1/topics/{topic}/messages/batch",
        content=b"x",
        headers={"Content-Type": "application/cbor"},
    )
    assert (
        "application/json or application/msgpack"
        in assert_problem(other, 415, "unsupported_media_type")["detail"]
    )


# --------------------------------------------------------------------------------------------------
# stream


def test_each_value_of_a_stream_is_answered_in_its_place_and_a_wrong_one_ends_nothing(
    server, api, make_topic
):
    topic = make_topic(queues=1)
    entries = [
        PLAIN[0], 32, {"id": "2", "message": {"payload": b"\xff"}},
        {"id": "3", "message": {"json": b"x"}}, [1],
        {"id": "5", "message": {"payload": "x", "delay_ms": -1}},
        msgspec.Raw(pack({"id": "6", "more": 1})[:-1] + b"\xa1\xff"),
        OTHERS[3],
    ]  # fmt: skip
    data = b"".join(map(pack, entries))
    with LineStream(server, topic, "Content-Type: application/msgpack") as stream:
        for at in range(0, len(data), 7):
            stream.write(data[at : at + 7])
        stream.end()
        answers = stream.rest()

    assert [answer["status"] for answer in answers] == [201, 422, 201, 422, 422, 422, 400, 201]
    assert [answer.get("id") for answer in answers] == ["1", None, "2", "3", None, "5", None, "4"]
    assert answers[3]["problem"]["errors"][0]["pointer"] == "/message/json"
    assert len(stored(api, topic)) == 3


def test_an_answer_comes_while_a_stream_of_values_goes_on(server, topic):
    with LineStream(server, topic, "Content-Type: application/msgpack") as stream:
        for number in range(5):
            value = pack({"id": str(number), "message": {"payload": b"\x00" * number}})
            stream.write(value[:10])
            stream.write(value[10:])
            answer = stream.read()
            assert answer is not None
            assert (answer["id"], answer["status"]) == (str(number), 201)


@pytest.mark.parametrize("end", [b"\xc1", b"\x81\xa2id"], ids=["no value", "half a value"])
def test_where_a_stream_cannot_be_read_on_what_came_before_is_stored(server, api, make_topic, end):
    topic = make_topic(queues=1)
    with LineStream(server, topic, "Content-Type: application/msgpack") as stream:
        stream.write(pack(PLAIN[0]) + pack(PLAIN[1]) + end)
        if end != b"\xc1":
            stream.end()
        answers = stream.rest()

    assert [answer["status"] for answer in answers] == [201, 201, 400]
    assert "(byte" in answers[2]["problem"]["detail"]
    assert len(stored(api, topic)) == 2
    answer = api.post(f"/v1/topics/{topic}/messages/stream", content=b"\xc1", headers=HEADERS)
    assert_problem(answer, 400, "malformed_request")


def test_values_that_are_too_large_are_refused_and_the_stream_goes_on(server, api, make_topic):
    topic = make_topic(queues=1, max_message_bytes=100_000)
    values = [
        pack({"id": "1", "message": {"payload": bytes(99_000)}}),
        pack({"id": "2", "message": {"payload": bytes(100_001)}}),
        pack({"id": "3", "message": {"payload": bytes(800_000)}}),  # more than a request may have
        pack({"id": "4", "message": {"json": [1] * (MAX_VALUES + 1)}}),
        pack({"id": "5", "message": {"payload": b"last"}}),
    ]
    with LineStream(server, topic, "Content-Type: application/msgpack") as stream:
        stream.write(b"".join(values))
        stream.end()
        answers = stream.rest()

    assert [(answer.get("id"), answer["status"]) for answer in answers] == [
        ("1", 201), ("2", 413), (None, 413), (None, 413), ("5", 201),
    ]  # fmt: skip
    assert answers[2]["problem"]["context"]["limited"] == "bytes"
    assert answers[3]["problem"]["context"]["limited"] == "values"
    assert len(stored(api, topic)) == 2


def test_a_value_of_a_stream_with_a_key_is_stored_once(server, api, make_topic):
    topic = make_topic(queues=1)
    ids = []
    for _ in range(2):
        with LineStream(
            server, topic, "Content-Type: application/msgpack", "Idempotency-Key: key-1"
        ) as stream:
            stream.write(pack(PLAIN[0]) + pack(PLAIN[1]) + pack(PLAIN[2]))
            stream.end()
            answers = stream.rest()
        assert [answer["status"] for answer in answers] == [201, 201, 422]
        assert "every value needs an id" in json.dumps(answers[2])
        ids.append([answer["receipt"]["message_id"] for answer in answers[:2]])

    assert ids[0] == ids[1]
    assert len(stored(api, topic)) == 2
