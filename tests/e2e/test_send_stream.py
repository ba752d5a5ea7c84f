"""Sending by stream: a line out for each line in, in their order, for as long as the client
likes.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app.messages.stream import WINDOW_LINES
from tests.support.http import assert_problem, ok, until
from tests.support.line_stream import LineStream
from tests.support.server import Server

KEY = "Idempotency-Key: key-of-the-stream"
QUICK = {
    "ESCROWMQ_HTTP__MAX_BODY_BYTES": "100000",
    "ESCROWMQ_HTTP__BODY_TIMEOUT_MS": "200",
    "ESCROWMQ_HTTP__STREAM_IDLE_MS": "600",
    "ESCROWMQ_HTTP__UNREAD_TIMEOUT_MS": "600",
}


def line(number: int, payload: str = "x", **fields: Any) -> dict[str, Any]:
    return {"id": str(number), "message": {"payload": payload, "queue_id": 0, **fields}}


def numbered(*answers: dict[str, Any] | None) -> list[tuple[str | None, int]]:
    return [(answer.get("id"), answer["status"]) for answer in answers if answer is not None]


def payloads(api: httpx.Client, topic: str) -> list[str]:
    found: list[str] = []
    while messages := ok(
        api.get(
            f"/v1/topics/{topic}/queues/0/messages",
            params={"offset": len(found), "max_messages": 1_000},
        )
    )["messages"]:
        found += [message["payload"] for message in messages]
    return found


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A service that has little patience, and takes small lines only."""
    with Server(tmp_path_factory.mktemp("quick") / "data", environment=QUICK) as server:
        yield server


# --------------------------------------------------------------------------------------------------
# lines and answers


def test_each_line_is_answered_in_its_place_and_a_wrong_one_ends_nothing(server, api, topic):
    with LineStream(server, topic) as stream:
        stream.write(
            b'\n{"id":"0","message":{"json":{"n":0}}}\r\n   \nno JSON\n\xff\n[1]\n{"id":"4"}\n'
        )
        stream.send(
            line(5, delay_ms=-1),
            {"id": "6", "message": {"payload": "y"}, "more": 1},
            line(7, queue_id=9),
            line(8, "last"),
        )
        stream.end()
        answers = stream.rest()

    assert numbered(*answers) == [
        ("0", 201), (None, 400), (None, 400), (None, 422), (None, 422), ("5", 422), (None, 422),
        ("7", 404), ("8", 201),
    ]  # fmt: skip
    receipt = answers[0]["receipt"]
    assert (receipt["topic"], receipt["queue_offset"], receipt["durability"]) == (
        topic,
        0,
        "synced",
    )
    problem = answers[5]["problem"]
    assert (problem["code"], problem["errors"][0]["pointer"]) == (
        "validation_failed",
        "/message/delay_ms",
    )
    assert payloads(api, topic) == ['{"n":0}', "last"]


def test_pieces_of_plain_lines_and_others_in_turn_keep_the_order_of_the_lines(
    server, api, make_topic
):
    """Plain lines have a way of their own; `queue_id` leads past it.

    Pieces have up to 200 lines.
    """
    topic = make_topic(queues=1)
    lines = [
        {"id": str(n), "message": {"payload": str(n)} | ({"queue_id": 0} if n % 700 > 500 else {})}
        for n in range(2_100)
    ]
    with LineStream(server, topic) as stream:
        stream.send(*lines)
        stream.end()
        answers = stream.rest()

    assert numbered(*answers) == [(str(n), 201) for n in range(2_100)]
    assert [answer["receipt"]["queue_offset"] for answer in answers] == list(range(2_100))
    assert payloads(api, topic) == [str(n) for n in range(2_100)]


def test_plain_lines_are_answered_and_stored_as_they_are_with_another_among_them(
    server, api, make_topic
):
    changing = ("message_id", "topic", "log_offset", "stored_at", "born_at")
    lines = [
        {"id": '"', "message": {"payload": "x", "key": "k", "tag": "é"}},
        {"message": {"json": {"n": [1, 2]}, "require_durability": "buffered"}},
        {"message": {"payload": ""}},
    ]
    others = [*lines[:2], {"message": {"payload": "", "payload_encoding": "utf8"}}]
    seen = []
    for given in (lines, others):
        topic = make_topic(queues=1)
        with LineStream(server, topic) as stream:
            stream.send(*given)
            stream.end()
            answers = stream.rest()
        names = [
            (list(answer), list(answer["receipt"])) for answer in answers if answer is not None
        ]
        stored = ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]
        assert [answer["receipt"]["message_id"] for answer in answers] == [
            message["message_id"] for message in stored
        ]
        for one in (*stored, *(answer["receipt"] for answer in answers)):
            for name in changing:
                one.pop(name, None)
        seen.append((names, answers, stored))

    assert seen[0] == seen[1]


def test_the_last_line_needs_no_end(server, api, topic):
    with LineStream(server, topic) as stream:
        stream.write(json.dumps(line(1, "open")).encode())
        stream.end()

        assert numbered(*stream.rest()) == [("1", 201)]
    assert payloads(api, topic) == ["open"]


def test_a_stream_without_lines_has_no_answers(server, topic):
    with LineStream(server, topic) as stream:
        stream.end()

        assert (stream.rest(), stream.status) == ([], 200)


def test_an_answer_comes_while_the_stream_goes_on(server, api, topic):
    with LineStream(server, topic) as stream:
        for number in range(5):
            stream.write(json.dumps(line(number, f"m{number}")).encode()[:10])
            stream.write(json.dumps(line(number, f"m{number}")).encode()[10:] + b"\n")
            assert numbered(stream.read()) == [(str(number), 201)]
            assert payloads(api, topic)[-1] == f"m{number}"


def test_a_file_can_be_sent_as_it_is(api, topic):
    """Any client that writes first and reads then, as long as the answers fit into the sockets."""
    lines = b"".join(
        [json.dumps(line(number, str(number))).encode() + b"\n" for number in range(5_000)]
    )

    answer = api.post(
        f"/v1/topics/{topic}/messages/stream",
        content=lines,
        headers={"Content-Type": "application/jsonl"},
    )

    assert answer.headers["content-type"] == "application/x-ndjson"
    answers = [json.loads(one) for one in answer.text.splitlines()]
    assert [(one["id"], one["receipt"]["queue_offset"]) for one in answers] == [
        (str(n), n) for n in range(5_000)
    ]
    assert payloads(api, topic) == [str(number) for number in range(5_000)]


@pytest.mark.parametrize(
    ("topic_name", "headers", "status", "code"),
    [
        ("nowhere", {}, 404, "topic_not_found"),
        ("rmq_sys_x", {}, 422, "reserved_topic"),
        ("", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ("", {"Idempotency-Key": "with a space"}, 422, "validation_failed"),
        ("", {"Content-Encoding": "br"}, 415, "unsupported_media_type"),
        ("", {"Content-Encoding": "gzip"}, 400, "malformed_request"),
    ],
)
def test_what_is_wrong_with_all_of_it_is_refused_as_any_request(
    api, topic, topic_name, headers, status, code
):
    path = f"/v1/topics/{topic_name or topic}/messages/stream"

    assert_problem(
        api.post(path, content=b'{"message":{"payload":"x"}}', headers=headers), status, code
    )


# --------------------------------------------------------------------------------------------------
# limits


def test_a_stream_is_longer_than_any_body_and_a_line_is_not(quick):
    with LineStream(quick, "long") as stream, quick.client() as api:
        for number in range(8):
            stream.send(line(number, "x" * 50_000))
        stream.write(b"x" * 60_000)
        stream.write(b"x" * 60_000 + b"\n")
        stream.send(line(9, "after it"))
        stream.end()
        answers = stream.rest()

        assert numbered(*answers) == [*((str(n), 201) for n in range(8)), (None, 413), ("9", 201)]
        assert answers[8]["problem"]["code"] == "body_too_large"
        assert payloads(api, "long")[-1] == "after it"


def test_a_stream_that_moves_is_not_cut_and_a_silent_one_is(quick):
    begun = time.monotonic()
    with LineStream(quick, "moving") as stream:
        number = 0
        while time.monotonic() - begun < 1.5:  # longer than any limit of this service
            stream.send(line(number))
            assert numbered(stream.read()) == [(str(number), 201)]
            number += 1
        assert stream.read_until_cut() == 0


def test_a_line_that_hardly_moves_is_cut_and_one_that_comes_steadily_is_taken(tmp_path):
    begin, end = b'{"id":"1","message":{"payload":"', b'"}}\n'
    pace = {
        "ESCROWMQ_HTTP__STREAM_IDLE_MS": "3000",
        "ESCROWMQ_HTTP__LEAST_BYTES_PER_SECOND": "2000",
    }
    with (
        Server(tmp_path / "data", environment=pace) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "slow"}), 201)
        with LineStream(server, "slow") as stream:
            begun = time.monotonic()
            stream.write(begin)
            for sent in range(0, 60_000, 2_000):  # for longer than a line may pause
                stream.write(b"x" * 2_000)
                until(lambda most=sent: time.monotonic() - begun > most / 15_000, "no faster")
            stream.write(end)
            assert numbered(stream.read()) == [("1", 201)]

            stream.write(begin + b"x" * 10_000)
            until(lambda: not has_written(stream, b"x"), "the connection is closed")
            until(lambda: held_bytes(api) == 0, "what came of the line is in memory no longer")

            lines = api.get("/metrics").text.splitlines()
            assert 'escrowmq_slow_clients_total{at="sending"} 1.0' in lines
        assert "client_sends_too_slowly" in server.log()


def has_written(stream: LineStream, piece: bytes) -> bool:
    try:
        stream.write(piece)
    except OSError:
        return False
    return True


def held_bytes(api: httpx.Client) -> float:
    lines = api.get("/metrics").text.splitlines()
    name = "escrowmq_request_body_bytes "
    return next(float(one.removeprefix(name)) for one in lines if one.startswith(name))


def test_lines_wait_until_answers_are_read_and_none_is_lost(server, api, topic):
    written = json.dumps(line(1, "x" * 500)).encode() + b"\n"
    with LineStream(server, topic, read_buffer_bytes=1 << 16) as stream:
        taken = stream.fill(written * 10, most=20_000)
        assert taken < 20_000, "everything was taken, although nobody reads"
        answers = [stream.read() for _ in range(10 * taken)]

    assert {answer["status"] for answer in answers if answer} == {201}
    offsets = [answer["receipt"]["queue_offset"] for answer in answers if answer]
    assert offsets == list(range(10 * taken))


def test_a_client_that_never_reads_is_cut_off(quick):
    written = json.dumps(line(1, "x" * 500)).encode() + b"\n"
    with LineStream(quick, "unread", read_buffer_bytes=1 << 14) as stream:
        taken = stream.fill(written * 10, most=20_000)

        assert stream.read_until_cut() < 10 * taken < 200_000


# --------------------------------------------------------------------------------------------------
# repeated and broken


def test_with_a_key_a_line_again_is_the_same_message(server, api, topic):
    with LineStream(server, topic, KEY) as stream:
        stream.send(
            line(1, "one"), line(2, "two"), line(1, "one"), {"message": {"payload": "no id"}}
        )
        stream.end()
        first = stream.rest()
    with LineStream(server, topic, KEY) as stream:
        stream.send(line(2, "two"), line(1, "changed"), line(3, "three"))
        stream.end()
        again = stream.rest()

    assert numbered(*first)[:2] == [("1", 201), ("2", 201)]
    assert first[2]["id"] == "1"
    assert first[2]["status"] in (201, 409)  # the first one may still be under way
    assert first[3]["problem"]["errors"][0]["pointer"] == "/id"
    assert again[0]["receipt"] == first[1]["receipt"] | {"deduplicated": True}
    assert (again[1]["status"], again[1]["problem"]["code"]) == (422, "idempotency_key_reused")
    assert again[2]["receipt"]["deduplicated"] is False
    assert payloads(api, topic) == ["one", "two", "three"]


def test_lines_with_a_key_keep_their_order(server, api, topic):
    with LineStream(server, topic, KEY) as stream:
        stream.send(*[line(number, str(number)) for number in range(500)])
        stream.end()

        assert numbered(*stream.rest()) == [(str(number), 201) for number in range(500)]
    assert payloads(api, topic) == [str(number) for number in range(500)]


def test_of_a_client_that_leaves_whole_lines_are_kept_and_half_of_one_is_not(server, api, topic):
    with LineStream(server, topic) as stream:
        stream.send(line(1, "whole"))
        stream.write(json.dumps(line(2, "half")).encode())
        assert numbered(stream.read()) == [("1", 201)]

    ok(api.get("/readyz"))
    assert payloads(api, topic) == ["whole"]


def test_a_stop_answers_what_was_taken_and_ends_the_stream_in_order(tmp_path):
    with Server(tmp_path / "data") as server, ThreadPoolExecutor(1) as pool:
        with LineStream(server, "orders") as stream:
            stream.send(*[line(number, str(number)) for number in range(3)])
            first = stream.read()
            stopping = pool.submit(server.terminate)
            answers = [first, *stream.rest()]
        assert stopping.result() == 0

        server.start()
        with server.client() as api:
            assert payloads(api, "orders") == [str(number) for number in range(len(answers))]
    assert numbered(*answers) == [(str(number), 201) for number in range(len(answers))]


def test_what_was_answered_before_a_kill_is_there_after_it_and_nothing_is_out_of_order(tmp_path):
    with Server(tmp_path / "data") as server:
        with LineStream(server, "orders") as stream:
            for start in range(0, 4 * WINDOW_LINES, 100):
                stream.send(*[line(number, str(number)) for number in range(start, start + 100)])
            answered = [stream.read() for _ in range(2 * WINDOW_LINES)]
            server.kill()
        server.start()
        with server.client() as api:
            kept = payloads(api, "orders")

    assert numbered(*answered) == [(str(number), 201) for number in range(2 * WINDOW_LINES)]
    assert len(kept) >= len(answered)
    assert kept == [str(number) for number in range(len(kept))]
