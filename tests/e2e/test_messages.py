"""Sending and pulling: payload forms, attributes, batches, offsets, times, tags, order."""

import base64
import json
from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok

PNG = bytes(range(256))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def send(api: httpx.Client, topic: str, **message: Any) -> dict[str, Any]:
    return ok(api.post(f"/v1/topics/{topic}/messages", json=message), 201)


def send_raw(api: httpx.Client, topic: str, body: bytes, **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ok(api.post(f"/v1/topics/{topic}/messages/raw", content=body, headers=named), 201)


def pull(api: httpx.Client, topic: str, queue: int = 0, **query: Any) -> dict[str, Any]:
    return ok(api.get(f"/v1/topics/{topic}/queues/{queue}/messages", params=query))


def only(page: dict[str, Any]) -> dict[str, Any]:
    (message,) = page["messages"]
    return message


def body_of(message: dict[str, Any]) -> bytes:
    if message["payload_encoding"] == "base64":
        return base64.b64decode(message["payload"], validate=True)
    return message["payload"].encode()


# --------------------------------------------------------------------------------------------------
# receipts


def test_a_receipt_says_where_the_message_is_and_how_sure_that_is(api, topic):
    answer = api.post(f"/v1/topics/{topic}/messages", json={"json": {"order_id": 8812}})

    receipt = ok(answer, 201)
    assert receipt["message_id"].startswith("msg_")
    assert (receipt["topic"], receipt["queue_id"], receipt["queue_offset"]) == (topic, 0, 0)
    assert receipt["log_offset"] >= 0
    assert (receipt["durability"], receipt["deduplicated"]) == ("synced", False)
    assert len(receipt["stored_at"]) == len("2026-03-02T10:15:04.101Z")
    assert receipt["stored_at"].endswith("Z")
    assert answer.headers["location"] == f"/v1/messages/{receipt['message_id']}"
    assert len(answer.headers["store-pressure"]) == len("0.07")
    assert 0 <= float(answer.headers["store-pressure"]) <= 1


@pytest.mark.parametrize("asked", ["synced", "buffered"])
def test_less_or_more_durability_can_be_asked_for(api, topic, asked):
    receipt = send(api, topic, payload="x", require_durability=asked)

    assert receipt["durability"] in (asked, "synced")
    assert only(pull(api, topic, wait_ms=10_000))["message_id"] == receipt["message_id"]


def test_what_was_sent_comes_back_with_every_attribute(api, make_topic):
    topic = make_topic(queues=3)
    message = {
        "payload": "größer",
        "content_type": "text/plain; charset=utf-8",
        "key": "order-8812-ü",
        "tag": "created",
        "ordering_key": "customer 17",
        "queue_id": 2,
        "properties": {"source": "shop", "empty": "", "a.b-c_D9": "mit Leerzeichen und 😀"},
    }
    receipt = send(api, topic, **message)

    found = only(pull(api, topic, queue=2))

    assert found == {
        **message,
        "message_id": receipt["message_id"],
        "topic": topic,
        "queue_offset": 0,
        "payload_encoding": "utf8",
        "born_at": found["born_at"],
        "stored_at": receipt["stored_at"],
    }
    assert found["born_at"] <= found["stored_at"]


def test_what_was_not_sent_is_absent(api, topic):
    send(api, topic, payload="x")

    found = only(pull(api, topic))

    assert not {"key", "tag", "ordering_key", "content_type"} & set(found)
    assert found["properties"] == {}


def test_a_trace_goes_with_the_message(api, topic):
    with_trace = {"traceparent": TRACE}
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "1"}, headers=with_trace), 201)
    ok(api.post(f"/v1/topics/{topic}/messages/raw", content=b"2", headers=with_trace), 201)
    ok(
        api.post(
            f"/v1/topics/{topic}/messages/batch",
            json={"entries": [{"message": {"payload": "3"}}]},
            headers=with_trace,
        ),
        201,
    )
    own = {"payload": "4", "properties": {"traceparent": "mine"}}
    ok(api.post(f"/v1/topics/{topic}/messages", json=own, headers=with_trace), 201)
    ok(
        api.post(
            f"/v1/topics/{topic}/messages",
            json={"payload": "5"},
            headers={"traceparent": "nonsense"},
        ),
        201,
    )

    found = [message["properties"].get("traceparent") for message in pull(api, topic)["messages"]]

    assert found == [TRACE, TRACE, TRACE, "mine", None]


# --------------------------------------------------------------------------------------------------
# payload


@pytest.mark.parametrize(
    "value", [{"b": 1, "a": [1, 2.5, None, True, "ü"]}, [], {}, "text", 0, 10**30, False, None, ""]
)
def test_json_is_stored_without_white_space_and_with_its_keys_in_order(api, topic, value):
    body = json.dumps({"json": value}, indent=4, ensure_ascii=False).encode()
    ok(
        api.post(
            f"/v1/topics/{topic}/messages",
            content=body,
            headers={"Content-Type": "application/json"},
        ),
        201,
    )

    found = only(pull(api, topic))

    assert found["payload"] == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert (found["content_type"], found["payload_encoding"]) == ("application/json", "utf8")


def test_json_is_stored_as_utf8_and_numbers_and_repeated_keys_stay_as_they_were_sent(api, topic):
    body = rb'{ "json" : { "b": "\u00fc\ud83d\ude00\/\u0022\\u0041", "a": 1E2, "b": 1.0 } }'
    ok(
        api.post(
            f"/v1/topics/{topic}/messages",
            content=body,
            headers={"Content-Type": "application/json"},
        ),
        201,
    )

    assert only(pull(api, topic))["payload"] == r'{"b":"ü😀/\"\\u0041","a":1E2,"b":1.0}'


@pytest.mark.parametrize("size", [0, 100_000, 1_000_000], ids=["short", "long", "longest"])
def test_what_json_keeps_is_the_same_whether_its_sender_escapes_or_not(api, make_topic, size):
    value = {"name": "Köln 😀 \u2028" + "x" * size, "ä": ["/", "\n", "\\u00e4", 1.5]}
    topic = make_topic()
    for ensure_ascii in (True, False):
        body = json.dumps({"json": value}, ensure_ascii=ensure_ascii).encode()
        headers = {"Content-Type": "application/json"}
        ok(api.post(f"/v1/topics/{topic}/messages", content=body, headers=headers), 201)

    page = pull(api, topic, max_bytes=4_000_000)
    escaped, plain = (message["payload"] for message in page["messages"])

    assert escaped == plain == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("text", ["", "x", "ü😀", "\x00\n\t", '{"json": 1}', "null"])
def test_text_is_kept_exactly(api, topic, text):
    send(api, topic, payload=text)

    found = only(pull(api, topic))

    assert (found["payload"], found["payload_encoding"]) == (text, "utf8")


@pytest.mark.parametrize("body", [b"", b"\x00", PNG, "ü".encode()])
def test_bytes_are_kept_exactly_by_base64_and_raw(api, make_topic, body):
    as_base64, as_raw = make_topic(), make_topic()
    send(api, as_base64, payload=base64.b64encode(body).decode(), payload_encoding="base64")
    send_raw(api, as_raw, body)

    assert body_of(only(pull(api, as_base64))) == body_of(only(pull(api, as_raw))) == body


def test_bodies_come_in_the_form_that_is_asked_for(api, topic):
    send(api, topic, payload="ü")
    send(api, topic, payload=base64.b64encode(PNG).decode(), payload_encoding="base64")

    def forms(**query: Any) -> list[tuple[Any, Any]]:
        found = pull(api, topic, **query)["messages"]
        return [(message.get("payload"), message.get("payload_encoding")) for message in found]

    text, binary = ("ü", "utf8"), (base64.b64encode(PNG).decode(), "base64")
    assert forms() == forms(payload="auto") == [text, binary]
    assert forms(payload="base64") == [(base64.b64encode("ü".encode()).decode(), "base64"), binary]
    assert forms(payload="utf8") == [text, binary]  # what is no UTF-8 is never mangled
    assert forms(payload="omit") == [(None, None), (None, None)]


def test_raw_headers_are_the_attributes(api, make_topic):
    topic = make_topic(queues=2)
    send_raw(
        api,
        topic,
        PNG,
        Content_Type="image/png",
        Message_Key="k%C3%BC%20".removesuffix("%20"),
        Message_Tag="t",
        Message_Ordering_Key="o%20o",
        Message_Queue_Id="1",
        Message_Delay_Ms="0",
        Message_Require_Durability="synced",
        Message_Property_Source="50%25",
        Message_Property_X_Y="%F0%9F%98%80",
    )

    found = only(pull(api, topic, queue=1))

    assert body_of(found) == PNG
    assert (found["content_type"], found["key"], found["tag"], found["ordering_key"]) == (
        "image/png",
        "kü",
        "t",
        "o o",
    )
    assert found["properties"] == {"source": "50%", "x-y": "😀"}  # HTTP header names have no case


def test_a_raw_message_without_a_content_type_has_none(api, topic):
    send_raw(api, topic, b"x")

    assert "content_type" not in only(pull(api, topic))


def test_a_message_as_large_as_its_topic_allows_is_taken_and_one_byte_more_is_not(api, make_topic):
    topic = make_topic(max_message_bytes=1_000)
    send(api, topic, payload="x" * 1_000)
    send_raw(api, topic, b"x" * 1_000)

    for answer in (
        api.post(f"/v1/topics/{topic}/messages", json={"payload": "x" * 1_001}),
        api.post(f"/v1/topics/{topic}/messages/raw", content=b"x" * 1_001),
        api.post(
            f"/v1/topics/{topic}/messages/batch",
            json={"entries": [{"message": {"payload": "x" * 1_001}}]},
        ),
    ):
        assert assert_problem(answer, 413, "message_too_large")["context"] == {
            "limit_bytes": "1000"
        }


def test_four_mebibytes_are_the_default_limit_of_a_message(api, topic):
    body = bytes(4 << 20)
    send_raw(api, topic, body)
    assert_problem(
        api.post(f"/v1/topics/{topic}/messages/raw", content=body + b"x"), 413, "message_too_large"
    )

    assert body_of(only(pull(api, topic, max_bytes=1))) == body  # one message always comes


# --------------------------------------------------------------------------------------------------
# batch


def test_a_batch_is_one_append_with_results_in_its_order(api, make_topic):
    topic = make_topic(queues=2)
    entries = [{"id": str(n), "message": {"json": n, "queue_id": n % 2}} for n in range(10)]

    answer = ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)

    assert (answer["accepted"], answer["rejected"]) == (10, 0)
    assert [result["id"] for result in answer["results"]] == [str(n) for n in range(10)]
    assert [result["status"] for result in answer["results"]] == [201] * 10
    places = [
        (result["receipt"]["queue_id"], result["receipt"]["queue_offset"])
        for result in answer["results"]
    ]
    assert places == [(n % 2, n // 2) for n in range(10)]
    ids = {result["receipt"]["message_id"] for result in answer["results"]}
    assert ids == {
        message["message_id"]
        for queue in (0, 1)
        for message in pull(api, topic, queue=queue)["messages"]
    }


def test_a_batch_of_plain_messages_is_answered_and_stored_as_one_with_another_among_them(
    api, make_topic
):
    """Plain ones have a way of their own; `payload_encoding` says nothing new, and leads
    past it.
    """
    entries = [
        {"id": f'"{n}"', "message": {"payload": "x", "key": f"k{n}"} | ({"tag": "t"} if n else {})}
        for n in range(4)
    ]
    entries.append({"message": {"json": {"n": 1}}})
    others = [
        {**entries[0], "message": {**entries[0]["message"], "payload_encoding": "utf8"}},
        *entries[1:],
    ]
    changing = {"message_id", "topic", "log_offset", "stored_at", "born_at"}
    seen = []
    for given in (entries, others):
        topic = make_topic(queues=2)
        answer = api.post(
            f"/v1/topics/{topic}/messages/batch",
            json={"entries": given},
            headers={"traceparent": TRACE},
        )
        results = ok(answer, 201)["results"]
        receipts = [result.pop("receipt") for result in results]
        stored = [
            message for queue in (0, 1) for message in pull(api, topic, queue=queue)["messages"]
        ]
        assert {receipt["message_id"] for receipt in receipts} == {
            message["message_id"] for message in stored
        }
        plain = [
            {name: value for name, value in one.items() if name not in changing}
            for one in (*receipts, *stored)
        ]
        seen.append(
            (
                list(answer.json()),
                [list(receipt) for receipt in receipts],
                results,
                plain,
                sorted(answer.headers),
            )
        )

    assert seen[0] == seen[1]


def test_entries_need_no_id(api, topic):
    answer = ok(
        api.post(
            f"/v1/topics/{topic}/messages/batch", json={"entries": [{"message": {"payload": "x"}}]}
        ),
        201,
    )

    assert "id" not in answer["results"][0]


def test_one_wrong_message_refuses_an_atomic_batch(api, topic):
    entries = [
        {"message": {"payload": "x"}},
        {"message": {"payload": "x", "delay_ms": -5}},
        {"message": {}},
    ]

    problem = assert_problem(
        api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}),
        422,
        "validation_failed",
        "/entries/1/message/delay_ms",
        "/entries/2/message/payload",
    )

    assert problem["errors"][0]["code"] == "out_of_range"
    assert pull(api, topic)["messages"] == []


def test_wrong_messages_are_told_from_right_ones_where_the_batch_is_not_atomic(api, topic):
    entries = [
        {"id": "a", "message": {"json": {"n": 1}}},
        {"id": "b", "message": {"payload": "x", "delay_ms": -5}},
        {"id": "c", "message": {"payload": "x", "queue_id": 7}},
        {"id": "d", "message": {"payload": "x", "delay_ms": 1_000, "ordering_key": "k"}},
        {"id": "e", "message": {"payload": "x", "nonsense": 1}},
        {"id": "f", "message": {"payload": "x"}},
    ]

    answer = ok(
        api.post(f"/v1/topics/{topic}/messages/batch", json={"atomic": False, "entries": entries}),
        207,
    )

    assert (answer["accepted"], answer["rejected"]) == (2, 4)
    assert [result["id"] for result in answer["results"]] == list("abcdef")
    assert [result["status"] for result in answer["results"]] == [201, 422, 404, 422, 422, 201]
    codes = [result["problem"]["code"] for result in answer["results"] if "problem" in result]
    assert codes == [
        "validation_failed",
        "queue_not_found",
        "unsupported_combination",
        "validation_failed",
    ]
    assert answer["results"][1]["problem"]["errors"][0]["pointer"] == "/entries/1/message/delay_ms"
    assert answer["results"][2]["problem"]["errors"][0]["pointer"] == "/entries/2/message"
    assert answer["results"][4]["problem"]["errors"][0]["pointer"] == "/entries/4/message/nonsense"
    stored = [
        result["receipt"]["message_id"] for result in answer["results"] if "receipt" in result
    ]
    assert [message["message_id"] for message in pull(api, topic)["messages"]] == stored


@pytest.mark.parametrize(
    ("field", "wrong", "pointer"),
    [
        ("id", "a", "/entries/1/id"),
        ("key", "k k", "/entries/1/message/key"),
        ("tag", "t|t", "/entries/1/message/tag"),
    ],
)
def test_a_wrong_batch_is_refused_though_its_head_is_that_of_right_ones(
    api, topic, field, wrong, pointer
):
    def send_two(id_: str, key: str, tag: str) -> httpx.Response:
        entries = [
            {"id": "a", "message": {"payload": "x"}},
            {"id": id_, "message": {"payload": "x", "key": key, "tag": tag}},
        ]
        # else it is answered by another way, which compresses
        headers = {"Accept-Encoding": "identity"}
        return api.post(
            f"/v1/topics/{topic}/messages/batch", json={"entries": entries}, headers=headers
        )

    right = {"id_": "b", "key": "k-k", "tag": "t-t"}
    for _ in range(3):
        assert ok(send_two(**right), 201)["accepted"] == 2

    name = "id_" if field == "id" else field
    assert_problem(send_two(**right | {name: wrong}), 422, "validation_failed", pointer)
    assert len(pull(api, topic)["messages"]) == 6


def test_a_batch_of_a_thousand_is_taken_and_one_more_is_not(api, topic):
    entries = [{"message": {"json": number}} for number in range(1_001)]
    path = f"/v1/topics/{topic}/messages/batch"
    assert_problem(api.post(path, json={"entries": entries}), 422, "validation_failed", "/entries")
    assert_problem(api.post(path, json={"entries": []}), 422, "validation_failed", "/entries")

    assert ok(api.post(path, json={"entries": entries[:1_000]}), 201)["accepted"] == 1_000
    assert pull(api, topic)["max_offset"] == 1_000


# --------------------------------------------------------------------------------------------------
# queues, order, delay


def test_without_a_queue_and_an_ordering_key_the_queues_come_in_turn(api, make_topic):
    topic = make_topic(queues=4)

    assert sorted(send(api, topic, payload="x")["queue_id"] for _ in range(8)) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_messages_of_one_ordering_key_are_in_one_queue_and_in_order(api, make_topic):
    topic = make_topic(queues=8)
    keys = ["customer-17", "customer-18", "ü"]
    queues = {
        key: {
            send(api, topic, json=[key, number], ordering_key=key)["queue_id"]
            for number in range(5)
        }
        for key in keys
    }

    for key in keys:
        (queue,) = queues[key]
        found = [
            json.loads(message["payload"]) for message in pull(api, topic, queue=queue)["messages"]
        ]
        assert [number for name, number in found if name == key] == list(range(5))


@pytest.mark.parametrize(
    "delay",
    [
        {"delay_ms": 0},
        {"deliver_at": "2020-01-01T00:00:00.000Z"},
        {"deliver_at": "2020-01-01T00:00:00+02:00"},
    ],
)
def test_a_delay_of_nothing_delivers_at_once(api, topic, delay):
    send(api, topic, payload="x", **delay)

    assert len(pull(api, topic)["messages"]) == 1


@pytest.mark.parametrize(
    ("types", "message", "is_taken"),
    [
        (["normal"], {}, True),
        (["normal"], {"ordering_key": "o"}, False),
        (["fifo"], {"ordering_key": "o"}, True),
        (["fifo"], {}, False),
    ],
)
def test_a_topic_takes_only_the_types_that_it_allows(api, make_topic, types, message, is_taken):
    topic = make_topic(message_types=types)
    answer = api.post(f"/v1/topics/{topic}/messages", json={"payload": "x", **message})

    if is_taken:
        ok(answer, 201)
    else:
        assert_problem(answer, 422, "unsupported_combination")
    begin = {"producer_group": "shop", "messages": [{"topic": topic, "message": {"payload": "x"}}]}
    assert_problem(
        api.post("/v1/transactions", json=begin),
        422,
        "unsupported_combination",
        "/messages/0/message",
    )


# --------------------------------------------------------------------------------------------------
# pull


def test_a_page_holds_what_was_asked_for_and_says_where_to_read_on(api, topic):
    for number in range(5):
        send(api, topic, json=number)

    page = pull(api, topic, offset=1, max_messages=3)

    assert [message["queue_offset"] for message in page["messages"]] == [1, 2, 3]
    assert {name: page[name] for name in ("next_offset", "min_offset", "max_offset", "result")} == {
        "next_offset": 4,
        "min_offset": 0,
        "max_offset": 5,
        "result": "found",
    }
    assert pull(api, topic, offset=5)["result"] == "no_new_message"


def test_thirty_two_messages_are_the_default_page(api, topic):
    entries = [{"message": {"json": number}} for number in range(40)]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)

    assert len(pull(api, topic)["messages"]) == 32
    assert len(pull(api, topic, max_messages=1_000)["messages"]) == 40


def test_a_page_ends_before_its_bodies_are_too_many_bytes_but_one_message_always_comes(api, topic):
    for _ in range(4):
        send(api, topic, payload="x" * 100)

    assert [
        len(pull(api, topic, max_bytes=limit)["messages"]) for limit in (1, 100, 199, 200, 10_000)
    ] == [1, 1, 1, 2, 4]
    assert [
        len(pull(api, topic, max_bytes=limit, tag="none || *")["messages"]) for limit in (1, 200)
    ] == [1, 2]


def test_an_offset_behind_the_end_is_refused_unless_a_jump_is_asked_for(api, topic):
    send(api, topic, payload="x")
    path = f"/v1/topics/{topic}/queues/0/messages"

    problem = assert_problem(api.get(path, params={"offset": 2}), 400, "offset_beyond_end")

    assert problem["context"] == {"min_offset": "0", "max_offset": "1"}
    assert pull(api, topic, offset=2, out_of_range="earliest")["messages"][0]["queue_offset"] == 0
    jumped = pull(api, topic, offset=10**18, out_of_range="latest")
    assert (jumped["messages"], jumped["next_offset"]) == ([], 1)
    # it can be read, so there is no jump
    assert pull(api, topic, offset=1, out_of_range="earliest")["messages"] == []


def test_tags_choose_messages(api, topic):
    for tag in ("created", "paid", "sent", "paid"):
        send(api, topic, payload=tag, tag=tag)
    send(api, topic, payload="none")

    def tagged(expression: str) -> list[str]:
        return [message["payload"] for message in pull(api, topic, tag=expression)["messages"]]

    assert tagged("paid") == ["paid", "paid"]
    assert tagged("paid || created") == tagged("created||paid") == ["created", "paid", "paid"]
    assert tagged("*") == tagged("") == ["created", "paid", "sent", "paid", "none"]
    assert tagged("nobody") == []
    page = pull(api, topic, tag="paid", max_messages=1)
    # what lies between is not looked at again
    assert (page["next_offset"], page["result"]) == (3, "found")
    assert pull(api, topic, tag="paid", offset=3)["next_offset"] == 5


def test_a_filter_that_no_tag_can_match_is_refused_at_its_place(api, topic):
    answer = api.get(
        f"/v1/topics/{topic}/queues/0/messages", params={"tag": "paid || created | sent"}
    )

    problem = assert_problem(answer, 422, "validation_failed", "/query/tag")
    assert problem["context"] == {"position": "9"}


def test_a_rare_tag_is_found_far_behind_others(api, topic):
    for _ in range(3):
        entries = [{"message": {"payload": "x", "tag": "often"}}] * 1_000
        ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)
    send(api, topic, payload="here", tag="rare")

    page = pull(api, topic, tag="rare")

    assert (only(page)["payload"], page["next_offset"]) == ("here", 3_001)


def test_a_pull_can_begin_at_a_time(api, topic):
    first = send(api, topic, payload="1")
    later = send(api, topic, payload="2")
    while later["stored_at"] == first["stored_at"]:
        later = send(api, topic, payload="3")

    assert (
        pull(api, topic, **{"from": "2000-01-01T00:00:00.000Z"})["messages"][0]["message_id"]
        == first["message_id"]
    )
    assert (
        pull(api, topic, **{"from": later["stored_at"]})["messages"][0]["message_id"]
        == later["message_id"]
    )
    assert pull(api, topic, **{"from": "2999-01-01T00:00:00.000Z"})["result"] == "no_new_message"


def test_the_offset_of_a_time_can_be_looked_up(api, topic):
    first = send(api, topic, payload="1")
    later = send(api, topic, payload="2")
    while later["stored_at"] == first["stored_at"]:
        later = send(api, topic, payload="3")
    path = f"/v1/topics/{topic}/queues/0/offset"

    def at(time: str) -> dict[str, Any]:
        return ok(api.get(path, params={"at": time}))

    assert at("2000-01-01T00:00:00.000Z") == {
        "queue_id": 0,
        "offset": 0,
        "stored_at": first["stored_at"],
    }
    assert at(later["stored_at"]) == {
        "queue_id": 0,
        "offset": later["queue_offset"],
        "stored_at": later["stored_at"],
    }
    # The same moment as it is written two hours further east.
    east = later["stored_at"].replace("Z", "-00:00")
    assert at(east)["offset"] == later["queue_offset"]
    assert at("2999-01-01T00:00:00.000Z") == {"queue_id": 0, "offset": later["queue_offset"] + 1}
