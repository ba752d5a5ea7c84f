"""gzip both ways: requests that are compressed, answers that may be."""

import gzip
import json
import random

import pytest

from tests.support.http import assert_problem, ok, request, speak
from tests.support.server import Server

GZIP = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
MIB = 1 << 20


def compressed(value: object) -> bytes:
    return gzip.compress(json.dumps(value).encode())


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip"])
def test_a_compressed_body_is_the_same_request(api, topic, coding):
    path, key = f"/v1/topics/{topic}/messages", {"Idempotency-Key": "once"}
    headers = {**GZIP, **key, "Content-Encoding": coding}
    payload = " ".join(map(str, range(MIB // 8)))
    sent = ok(api.post(path, content=compressed({"payload": payload}), headers=headers), 201)

    again = api.post(
        path,
        content=json.dumps({"payload": payload}),
        headers={**key, "Content-Type": "application/json"},
    )

    assert ok(again, 201)["message_id"] == sent["message_id"]
    assert ok(api.get(f"/v1/messages/{sent['message_id']}"))["payload"] == payload


def test_a_raw_message_and_a_stream_are_stored_as_they_were_before_they_were_compressed(api, topic):
    ok(
        api.post(
            f"/v1/topics/{topic}/messages/raw",
            content=gzip.compress(b"raw"),
            headers={"Content-Encoding": "gzip"},
        ),
        201,
    )
    lines = gzip.compress(b'{"message":{"payload":"1"}}\n{"message":{"payload":"2"}}\n')
    streamed = api.post(
        f"/v1/topics/{topic}/messages/stream", content=lines, headers={"Content-Encoding": "gzip"}
    )

    assert [json.loads(line)["status"] for line in streamed.text.splitlines()] == [201, 201]
    messages = ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]
    assert [message["payload"] for message in messages] == ["raw", "1", "2"]


def test_a_body_of_several_members_is_all_of_them(api, topic):
    """RFC 1952, 2.2: what `cat a.gz b.gz` makes is gzip, too."""
    payload = " ".join(map(str, range(MIB // 8)))
    text = json.dumps({"payload": payload}).encode()
    members = [gzip.compress(part) for part in (b"", text[:9], b"", text[9:1_000], text[1_000:])]
    body = b"".join([*members, gzip.compress(b"") * 2_000])

    sent = ok(api.post(f"/v1/topics/{topic}/messages", content=body, headers=GZIP), 201)
    lines = [gzip.compress(b'{"message":{"payload":"%d"}}\n' % number) for number in range(9)]
    streamed = api.post(
        f"/v1/topics/{topic}/messages/stream",
        content=iter([b"".join(lines[:4]), *lines[4:8], lines[8][:7], lines[8][7:]]),
        headers={"Content-Encoding": "gzip"},
    )

    assert ok(api.get(f"/v1/messages/{sent['message_id']}"))["payload"] == payload
    assert [json.loads(line)["status"] for line in streamed.text.splitlines()] == [201] * 9


def test_the_limits_of_a_body_count_all_of_its_members(api, topic):
    path = f"/v1/topics/{topic}/messages/batch"
    member = gzip.compress(random.Random(7).randbytes(MIB), compresslevel=1)
    bomb = gzip.compress(bytes(MIB // 8))

    too_long = assert_problem(
        api.post(path, content=iter([member] * 17), headers=GZIP), 413, "body_too_large"
    )
    too_dense = assert_problem(
        api.post(path, content=bomb * 3, headers=GZIP), 413, "body_too_large"
    )

    assert [problem["context"]["limited"] for problem in (too_long, too_dense)] == [
        "bytes",
        "gzip_ratio",
    ]


def test_the_limit_of_a_body_counts_what_it_is_when_it_is_decompressed(api, topic):
    bomb = gzip.compress(b'{"payload":"' + b"x" * (64 * MIB) + b'"}')
    assert len(bomb) < MIB // 8

    assert_problem(
        api.post(f"/v1/topics/{topic}/messages", content=bomb, headers=GZIP), 413, "body_too_large"
    )
    just_fits = compressed({"payload": "x" * 100, "properties": {"a": "b" * 15_000}})
    ok(api.post(f"/v1/topics/{topic}/messages", content=just_fits, headers=GZIP), 201)


def test_a_body_without_end_that_becomes_nothing_is_refused_at_the_limit(tmp_path):
    """Its length is not stated, and the one of what it becomes is 0."""
    limit = 64 << 10
    begin = gzip.compress(b"")[:10]
    unending = {
        "members": [gzip.compress(b"") * 400] * 200,
        "blocks": [begin, b"\0\0\0\xff\xff" * 200_000],
    }
    environment = {"ESCROWMQ_HTTP__MAX_BODY_BYTES": str(limit)}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ok(api.put("/v1/topics/orders", json={"queues": 1}), 201)
        path = "/v1/topics/orders/messages/raw"
        for pieces in unending.values():
            answer = api.post(path, content=iter(pieces), headers=GZIP)
            problem = assert_problem(answer, 413, "body_too_large")
            assert problem["context"] == {"limited": "bytes", "limit": str(limit)}

        largest = random.Random(7).randbytes(limit)
        assert len(gzip.compress(largest)) > limit
        ok(api.post(path, content=iter([gzip.compress(largest)]), headers=GZIP), 201)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        compressed({"payload": "x"})[:-1],
        compressed({"payload": "x" * 100_000})[:50],
        compressed({"payload": "x"}) + b"more",
        compressed({"payload": "x"}) + gzip.compress(b" ")[:-1],
        compressed({"payload": "x"}) + bytes(20),
    ],
    ids=[
        "not gzip",
        "without its end",
        "cut short",
        "with something behind it",
        "with a second member without its end",
        "with zeros behind it",
    ],
)
def test_what_is_no_gzip_is_malformed_and_stores_nothing(api, topic, body):
    assert_problem(
        api.post(f"/v1/topics/{topic}/messages", content=body, headers=GZIP),
        400,
        "malformed_request",
    )

    assert ok(api.get(f"/v1/topics/{topic}/stats"))["messages_ever"] == 0


def test_a_long_answer_is_compressed_for_who_takes_it_and_for_nobody_else(
    server: Server, api, topic
):
    entries = [{"message": {"payload": f"{number} " * 1_000}} for number in range(100)]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)
    path = f"/v1/topics/{topic}/queues/0/messages"

    plain = api.get(path, headers={"Accept-Encoding": "identity"})
    old_name = api.get(path, headers={"Accept-Encoding": "x-gzip"})
    refused = api.get(path, headers={"Accept-Encoding": "gzip;q=0"})
    short = api.get(f"/v1/topics/{topic}", headers={"Accept-Encoding": "gzip"})
    (raw,) = speak(server, request("GET", path, "Accept-Encoding: br, gzip;q=0.5", close=True))

    assert not any("content-encoding" in answer.headers for answer in (plain, refused, short))
    assert (raw.headers["content-encoding"], raw.headers["vary"]) == (
        "gzip",
        "Accept, Accept-Encoding",
    )
    assert old_name.headers["content-encoding"] == "gzip"
    assert len(raw.body) < len(plain.content) // 4
    assert gzip.decompress(raw.body) == plain.content == refused.content


def test_an_answer_that_could_have_been_compressed_says_that_it_varies(server: Server, api, topic):
    """Else a cache answers clients that take gzip, or those that do not, with the other one."""
    entries = [{"message": {"payload": "x" * 1_000}} for _ in range(100)]
    ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": entries}), 201)
    pulls = f"/v1/topics/{topic}/queues/0/messages?offset=0&max_messages="

    def varies_by(path: str, accepted: str, method: str = "GET") -> str | None:
        answer = api.request(method, path, headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers) == (
            accepted == "gzip" and answer.headers.get("vary", "").endswith("Accept-Encoding")
        )
        return answer.headers.get("vary")

    for accepted in ("gzip", "identity"):
        for _ in range(3):  # the head is known, then
            assert varies_by(f"{pulls}100", accepted) == "Accept, Accept-Encoding"
            assert varies_by(f"{pulls}1", accepted) == "Accept"
        for method in ("GET", "HEAD"):
            assert varies_by("/openapi.json", accepted, method) == "Accept-Encoding"
        # an answer with an ETag is never compressed, and neither is a 304 for it
        assert varies_by(f"/v1/topics/{topic}", accepted) is None


def test_a_long_answer_to_a_post_that_is_not_compressed_has_no_vary_whichever_way_it_takes(
    api, topic
):
    """Such an answer is not cached, and the next like request takes the short way."""
    ok(api.put(f"/v1/groups/{topic}", json={"topics": [{"topic": topic}]}), 201)
    message = {"message": {"payload": "x" * 1_000}}
    for _ in range(3):
        ok(api.post(f"/v1/topics/{topic}/messages/batch", json={"entries": [message] * 16}), 201)
        plain = api.post(
            f"/v1/groups/{topic}/receive",
            json={"max_messages": 16},
            headers={"Accept-Encoding": "identity"},
        )
        assert len(ok(plain)["messages"]) == 16
        assert "vary" not in plain.headers


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_the_head_of_an_answer_is_the_same_as_with_its_body(api, accepted):
    with_body, head = (
        api.request(method, "/openapi.json", headers={"Accept-Encoding": accepted})
        for method in ("GET", "HEAD")
    )

    names = ("content-length", "content-encoding", "content-type")
    assert [head.headers.get(name) for name in names] == [
        with_body.headers.get(name) for name in names
    ]
    assert with_body.json()["openapi"] == "3.1.0"


def test_the_answer_to_a_batch_is_compressed_however_often_the_same_head_came(api, topic):
    body = json.dumps({"entries": [{"message": {"payload": "x"}}] * 50})
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
    single = json.dumps({"payload": "x" * (len(body) - len('{"payload": ""}'))})
    assert len(single) == len(body)

    for path, content in (("messages", single), *[("messages/batch", body)] * 3):
        answer = api.post(f"/v1/topics/{topic}/{path}", content=content, headers=headers)
        assert answer.status_code == 201
        assert answer.headers.get("content-encoding") == (
            "gzip" if path == "messages/batch" else None
        )
    plain = api.post(
        f"/v1/topics/{topic}/messages/batch",
        content=body,
        headers=headers | {"Accept-Encoding": "identity"},
    )
    assert len(plain.json()["results"]) == 50
