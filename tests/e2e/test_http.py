"""HTTP itself: what is no HTTP is refused as everything is, what is odd but allowed works, nothing
gets out of step.
"""

import json
import re
import socket
import time

import httpx
import pytest

from tests.support.http import Answer, answers, assert_problem, ok, request, speak
from tests.support.server import Server

LIVE = b'{"live":true}'
SLOW = {"ESCROWMQ_HTTP__HEAD_TIMEOUT_MS": "200", "ESCROWMQ_HTTP__BODY_TIMEOUT_MS": "400"}
H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
)


def post(body: bytes, *headers: str, path: str = "/v1/topics", **options) -> bytes:
    return request("POST", path, "Content-Type: application/json", *headers, body=body, **options)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def problem_of(answer: Answer, status: int, code: str) -> dict:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["code"] == code
    assert problem["request_id"]
    return problem


GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\n"
NOT_HTTP = {
    "words": b"good morning\r\n\r\n",
    "zeros": bytes(100),
    "TLS": bytes.fromhex("1603010200010001fc0303") + bytes(100),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 in the form of HTTP/1": b"GET /v1/version HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "a request without a host": b"GET /livez HTTP/1.1\r\n\r\n",
    "a method that HTTP does not have, without a host": b"BREW /livez HTTP/1.1\r\n\r\n",
    "a version that nobody knows": b"GET /livez HTTP/9.9\r\n\r\n",
    "a proxy's request": b"CONNECT shop:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a proxy's request with an upgrade": b"CONNECT shop:443 HTTP/1.1\r\nConnection: "
    b"Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a path that is no ASCII": "GET /v1/topics/ü HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "a space in the path": b"GET /v1/topics/a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "chunks in version 1.0": b"POST /v1/topics HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: "
    b"chunked\r\n\r\n" + chunked(b"{}"),
    "a chunk extension without end": POST
    + b"Transfer-Encoding: chunked\r\n\r\n2;"
    + b"a" * 1_000_000,
    "chunk extensions": POST
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + (b"1;" + b"a" * 1_000 + b"\r\n \r\n") * 1_000,
    "a trailer without end": POST
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "
    + b"a" * 1_000_000,
    "too many trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 60_000,
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "no host, as a proxy would be asked": b"GET http://localhost/livez HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: localhost\r\n\r\n",
    "two hosts in version 1.0": b"GET /livez HTTP/1.0\r\nHost: localhost\r\nHost: "
    b"localhost\r\n\r\n",
    "a host that is none": b"GET /livez HTTP/1.1\r\nHost: local host\r\n\r\n",
    "a header on two lines": GET + b"X: a\r\n b\r\n\r\n",
    "a space before the colon": GET + b"X : a\r\n\r\n",
    "a NUL in a header": GET + b"X: a\x00b\r\n\r\n",
    "a bare CR in a header": GET + b"X: a\rb\r\n\r\n",
    "bare line feeds": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a length and chunks": POST
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "a chunk of no size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk of a negative size": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a chunk of any size": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "a chunk that is longer than it says": POST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "another transfer encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "another transfer encoding, chunked": POST
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
    + chunked(b"{}"),
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(b"{}"),
    "a head without end": b"GET /livez HTTP/1.1\r\nX: " + b"a" * 1_000_000,
    "a head that is too large": GET + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    "too many headers": GET + b"a: b\r\n" * 60_000 + b"\r\n",
    "a path that is too long": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    **{
        f"a length of {length!r}": POST + f"Content-Length: {length}\r\n\r\n{{}}".encode()
        for length in ("-1", "+2", "x", "0x2", "2, 2", "2 2", "1e1", " ", "9" * 30)
    },
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
def test_what_is_no_http_is_refused_with_a_problem_and_ends_the_connection(server, data):
    (answer,) = speak(server, data)

    problem = problem_of(answer, 400, "malformed_request")
    assert answer.headers["connection"] == "close"
    assert answer.headers["request-id"] == problem["request_id"]
    assert answer.headers["date"]  # RFC 9110, 6.6.1


def test_requests_in_one_packet_are_answered_in_their_order(server):
    found = speak(
        server,
        request("GET", "/livez")
        + request("GET", "/v1/nothing")
        + request("GET", "/livez", close=True),
    )

    assert [answer.status for answer in found] == [200, 404, 200]


def test_fifty_posts_in_one_packet_are_all_taken_and_in_order(server, api, topic):
    path = f"/v1/topics/{topic}/messages"
    posts = [post(b'{"json":%d}' % number, path=path, close=number == 49) for number in range(50)]

    found = speak(server, b"".join(posts))

    assert [answer.status for answer in found] == [201] * 50
    messages = ok(api.get(f"/v1/topics/{topic}/queues/0/messages", params={"max_messages": 100}))[
        "messages"
    ]
    assert [message["payload"] for message in messages] == [str(number) for number in range(50)]


BROKEN_OFF = {
    "in the request line": b"nonsense\r\n\r\n",
    "in a header": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nno header\r\n\r\n",
    "in a body": request("POST", "/v1/topics", "Transfer-Encoding: chunked") + b"no size\r\n",
}


@pytest.mark.parametrize("nonsense", BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_what_came_before_the_nonsense_is_answered_first(server, topic, nonsense):
    waiting = request("GET", f"/v1/topics/{topic}/queues/0/messages?wait_ms=50")

    (answer,) = speak(server, waiting + nonsense)
    *first_two, last = speak(server, waiting + request("GET", "/livez") + waiting + nonsense)

    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert [one.status for one in first_two] == [200, 200]
    assert (last.status, last.headers["connection"]) == (200, "close")


def test_a_request_waits_its_turn_behind_a_long_poll(server, topic):
    waiting = request("GET", f"/v1/topics/{topic}/queues/0/messages?wait_ms=50")

    found = speak(server, waiting + request("GET", "/livez", close=True))

    assert [answer.status for answer in found] == [200, 200]
    assert found[1].body == LIVE


def test_a_body_may_come_byte_by_byte_and_in_chunks(server, topic):
    body = json.dumps({"topic": f"slow-{topic}"}).encode()
    (answer,) = speak(server, *(bytes([byte]) for byte in post(body, close=True)))
    assert answer.status == 201

    head = request(
        "POST",
        "/v1/topics",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        close=True,
    )
    body = json.dumps({"topic": f"chunked-{topic}"}).encode()
    (answer,) = speak(server, head + chunked(*(bytes([byte]) for byte in body)))
    assert answer.status == 201
    (answer,) = speak(server, head + b"5;name=value\r\n{    \r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n")
    problem_of(answer, 422, "validation_failed")


def test_a_body_of_many_small_chunks_is_taken(server, topic):
    body = json.dumps({"topic": f"many-{topic}"}).encode() + b" " * 100_000
    head = request(
        "POST",
        "/v1/topics",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        close=True,
    )

    (answer,) = speak(
        server, head + b"".join(b"1;n\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    )

    assert answer.status == 201


def test_a_trailer_is_no_header(server, topic):
    """What stands in front of a service judges the head alone."""
    path = f"/v1/topics/{topic}/messages"
    head = request(
        "POST", path, "Content-Type: application/json", "Transfer-Encoding: chunked", close=True
    )
    for trailer in (
        b"Idempotency-Key: once",
        b"Host: evil.example",
        b"Origin: null",
        b"Content-Type: text/plain",
    ):
        for pieces in (
            (head + chunked(b'{"payload":"x"}')[:-2] + trailer + b"\r\n\r\n",),
            (head, b"0\r\n" + trailer + b"\r\n\r\n"),
        ):
            (answer,) = speak(server, *pieces)
            assert answer.status in (201, 422), (trailer, answer)
            assert b'"deduplicated":true' not in answer.body


def test_a_body_of_16_mib_is_read_and_one_byte_more_is_not(server, api, topic):
    path = f"/v1/topics/{topic}/messages/raw"
    limit = 16 << 20
    problem_of(
        speak(server, request("POST", path, f"Content-Length: {limit + 1}", close=True))[0],
        413,
        "body_too_large",
    )
    # Read, and then refused for its topic.
    assert_problem(api.post(path, content=bytes(limit)), 413, "message_too_large")

    # Without a length it is counted as it comes, and the rest of it does no harm.
    head = request(
        "POST", f"/v1/topics/{topic}/messages/batch", "Transfer-Encoding: chunked", close=True
    )
    mebibyte = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    (answer,) = speak(server, head, *[mebibyte] * 17, b"0\r\n\r\n")
    problem_of(answer, 413, "body_too_large")
    problem_of(
        speak(server, request("POST", path, f"Content-Length: {2**64 - 1}", close=True))[0],
        413,
        "body_too_large",
    )


def test_a_refused_body_that_comes_all_the_same_leaves_the_connection_in_step(server):
    body = b"x" * 200_000
    refused = request("POST", "/v1/topics", "Content-Type: text/plain", body=body)

    found = speak(server, refused + request("GET", "/livez", close=True))

    assert [answer.status for answer in found] == [415, 200]


def test_who_waits_to_be_told_to_continue_is_told(server, topic):
    body = json.dumps({"topic": f"expected-{topic}"}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head, _, _ = post(body, "Expect: 100-continue", close=True).partition(body)
        connection.sendall(head)
        assert connection.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        received = b"".join(iter(lambda: connection.recv(1_000), b""))
    assert answers(received)[0].status == 201


def test_a_question_for_another_protocol_is_passed_over_and_the_body_is_not(server, topic):
    body = json.dumps({"topic": f"h2c-{topic}"}).encode()
    asking = post(body, *H2C)

    first, second = speak(server, asking + request("GET", "/livez", close=True))
    assert (first.status, second.status) == (201, 200)
    head, _, _ = asking.partition(body)
    (parted, last) = speak(server, head, body, request("GET", "/livez", close=True))
    assert (parted.status, last.status) == (200, 200)
    socket_key = (
        "Upgrade: websocket",
        "Connection: Upgrade, close",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    assert [answer.status for answer in speak(server, request("GET", "/livez", *socket_key))] == [
        200
    ]


def test_an_old_client_is_answered_and_its_connection_closed(server):
    (answer,) = speak(server, request("GET", "/livez", version="1.0"))

    assert (answer.status, answer.headers["connection"], answer.body) == (200, "close", LIVE)


def test_an_old_client_gets_no_interim_answer(server, topic):
    """It would take that for the answer (RFC 9110, 10.1.1)."""
    body = json.dumps({"topic": f"old-{topic}"}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(post(body, "Expect: 100-continue", version="1.0"))

        assert connection.recv(1_000).startswith(b"HTTP/1.1 201 Created\r\n")


@pytest.mark.parametrize("blanks", [" ", "\t", " \t  "])
def test_blanks_behind_the_value_of_a_header_are_no_part_of_it(server, api, topic, blanks):
    path = f"/v1/topics/{topic}/messages"
    keyed = "Idempotency-Key:" + blanks + "one-key"

    def answer_to(*headers: str, path: str = path, method: str = "POST") -> Answer:
        head = request(method, path, *headers, body=b'{"payload":"x"}', close=True)
        return speak(server, head.replace(b"Host: localhost", b"Host: localhost\t "))[0]

    first, second = answer_to(keyed), answer_to(keyed + blanks)
    assert (first.status, second.status) == (201, 201)
    assert json.loads(second.body)["deduplicated"]
    assert answer_to("Content-Encoding: identity" + blanks).status == 201
    raw = answer_to("Message-Key: k" + blanks, "Message-Property-A: b" + blanks, path=f"{path}/raw")
    sent = ok(api.get(f"/v1/messages/{json.loads(raw.body)['message_id']}"))
    assert (sent["key"], sent["properties"]) == ("k", {"a": "b"})
    known = answer_to("Request-Id: of-mine" + blanks, method="GET", path="/v1/version")
    assert known.headers["request-id"] == "of-mine"


def test_the_head_of_everything_that_can_be_got_can_be_asked_for(api, topic):
    for path in (
        "/livez",
        "/readyz",
        "/metrics",
        "/docs",
        "/ui/",
        "/ui/main.js",
        "/docs/assets/favicon.png",
        "/openapi.json",
        "/v1/topics",
        f"/v1/topics/{topic}",
        "/problems",
    ):
        got, head = api.get(path), api.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        if path != "/metrics":
            assert head.headers["content-length"] == got.headers["content-length"]
    assert api.head("/v1/nothing").status_code == 404
    assert api.head("/v1/transactions/x/commit").status_code == 405


@pytest.mark.parametrize("path", ["/ui/", "/ui/main.js", "/docs/assets/favicon.png"])
def test_a_static_file_is_always_sent_whole_whatever_range_is_asked_for(api, path):
    whole = api.get(path)
    assert whole.headers["accept-ranges"] == "none"

    for asked in (
        "bytes=0-3",
        "bytes=999999999-",
        "bytes=0-1,3-4",
        "bytes=5-2",
        "bytes=a-b",
        "lines=1-2",
        "nonsense",
    ):
        for method, body in (("GET", whole.content), ("HEAD", b"")):
            answer = api.request(method, path, headers={"Range": asked})
            assert (answer.status_code, answer.content) == (200, body), (method, asked)
            assert answer.headers["content-length"] == whole.headers["content-length"]
            assert "content-range" not in answer.headers


@pytest.mark.parametrize("path", ["/ui/", "/ui/main.js", "/docs/assets/favicon.png"])
def test_a_static_file_that_the_client_has_is_304_and_any_other_is_sent(api, path):
    known = api.get(path).headers
    tag, stored = known["etag"], known["last-modified"]
    early = "Thu, 01 Jan 1970 00:00:00 GMT"

    for status, given in (
        (304, {"If-None-Match": tag}),
        (304, {"If-None-Match": f"W/{tag}"}),
        (304, {"If-None-Match": f'"another", {tag}'}),
        (304, {"If-None-Match": "*"}),
        (304, {"If-None-Match": tag, "If-Modified-Since": early}),
        (304, {"If-None-Match": tag, "Range": "bytes=0-3"}),
        (304, {"If-Modified-Since": stored}),
        (200, {"If-None-Match": '"another"'}),
        (200, {"If-None-Match": '"another"', "If-Modified-Since": stored}),
        (200, {"If-Modified-Since": early}),
        (200, {"If-Modified-Since": "nonsense"}),
    ):
        for method in ("GET", "HEAD"):
            answer = api.request(method, path, headers=given)
            assert (answer.status_code, answer.headers["etag"]) == (status, tag), (method, given)
            assert (answer.content != b"") == (method == "GET" and status == 200)


def test_405_names_every_method_of_the_path(api, topic):
    for path, methods in (
        ("/v1/topics", "GET, HEAD, POST"),
        ("/v1/groups/billing/offsets", "GET, HEAD, PUT"),
        (f"/v1/topics/{topic}", "DELETE, GET, HEAD, PATCH, PUT"),
        (f"/v1/topics/{topic}/messages", "POST"),
        ("/docs", "GET, HEAD"),
        ("/ui/", "GET, HEAD"),
        ("/ui/main.js", "GET, HEAD"),
        ("/ui/pages/nothing.js", "GET, HEAD"),
        ("/docs/assets/swagger-ui.css", "GET, HEAD"),
    ):
        for method in {"DELETE", "OPTIONS"}.difference(methods.split(", ")):
            answer = api.request(method, path)
            assert_problem(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == methods


def test_a_method_that_http_does_not_have_is_405_as_any_other_that_the_path_does_not_take(
    server, api, topic
):
    path = f"/v1/topics/{topic}"

    for method in ("BREW", "GETS", "M-X"):
        answer = api.request(method, path, params={"a": 1}, json={"queues": 2})
        assert_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH, PUT"
    assert_problem(api.request("BREW", "/v1/nothing"), 404, "route_not_found")

    (lower_case,) = speak(server, request("get", path, "Request-Id: one", close=True))
    assert (lower_case.status, lower_case.headers["request-id"]) == (405, "one")
    assert json.loads(lower_case.body)["instance"] == path
    body, then = b"x" * 5_000, request("GET", path, close=True)
    upgrade = request("BREW", path, "Connection: Upgrade", "Upgrade: h2c", body=body)
    assert [answer.status for answer in speak(server, upgrade + then)] == [405, 200]
    known = request("POST", "/v1/topics", body=body)
    answers = speak(server, known + request("BREW", path) + then)
    assert [answer.status for answer in answers] == [400, 405, 200]


@pytest.mark.parametrize(
    "line", [b"\x16\x03\x01", b"SSH-2.0-OpenSSH\r\n", b"BREW /\r\n\r\n", b"B{W / HTTP/1.1\r\n\r\n"]
)
def test_a_line_that_is_none_of_http_is_400(server, line):
    (answer,) = speak(server, line)

    assert (answer.status, json.loads(answer.body)["code"]) == (400, "malformed_request")


def test_a_body_on_a_get_is_passed_over(api):
    assert (
        ok(api.request("GET", "/v1/topics", params={"page_size": 1}, content=b"nonsense"))["items"]
        is not None
    )


@pytest.fixture(scope="module")
def without_body(api) -> list[tuple[str, str]]:
    """Method and path of each change that takes no body."""
    paths = ok(api.get("/openapi.json"))["paths"]
    return [
        (method.upper(), re.sub("{[a-z_]+}", "x", path))
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "get" and "requestBody" not in operation
    ]


def test_a_field_is_refused_by_a_change_that_takes_none(api, without_body):
    """A client that sends `dry_run` in the body of a deletion wants no deletion."""
    assert {"/v1/topics/x", "/v1/groups/x/dead-letters", "/v1/admin/store/flush"} <= {
        path for _, path in without_body
    }
    as_json = {"Content-Type": "application/json"}
    for method, path in without_body:

        def send(body: bytes, headers: dict[str, str], to=(method, path)) -> httpx.Response:
            return api.request(*to, content=body, headers=headers)

        assert_problem(send(b'{"dry_run":true}', as_json), 422, "validation_failed", "/dry_run")
        assert_problem(send(b"nonsense", as_json), 400, "malformed_request")
        assert_problem(send(b"{}", {"Content-Type": "text/plain"}), 415, "unsupported_media_type")
        for body in (b"", b"{}", b" {}\n"):
            assert send(body, as_json).status_code in (200, 202, 204, 404)


def test_a_body_that_is_not_taken_leaves_the_connection_in_step(server, without_body):
    """Also one over the limit, which comes in chunks and says nothing of its length."""
    spaces = b" " * 65_536
    for pieces, places, status in ((2, without_body, 400), (257, without_body[:1], 413)):
        body = chunked(*[spaces] * pieces, b"{")
        for method, path in (*places, ("GET", "/v1/topics")):
            given = request(method, path, "Transfer-Encoding: chunked") + body
            found = speak(server, given + request("GET", "/livez", close=True))
            expected = 200 if method == "GET" and status == 400 else status
            assert [answer.status for answer in found] == [expected, 200], (method, path)


def test_an_empty_body_is_an_empty_object_where_every_field_may_be_left_out(api, topic):
    begun = {"producer_group": "shop", "messages": [{"topic": topic, "message": {"payload": "x"}}]}
    transaction_id = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]
    ok(api.post(f"/v1/transactions/{transaction_id}/resume"))
    for content_type in ({}, {"Content-Type": "application/json"}):
        ok(api.post("/v1/producer-groups/shop/checks/receive", headers=content_type))
        ok(api.post(f"/v1/transactions/{transaction_id}/rollback", headers=content_type))
        assert_problem(
            api.post("/v1/topics", headers=content_type), 422, "validation_failed", "/topic"
        )
    ok(api.post(f"/v1/transactions/{transaction_id}/rollback", json={}))


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "Application/JSON", "application/json; charset=utf-8"],
)
def test_json_is_taken_by_its_name_or_without_one(api, topic, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}

    ok(api.post(f"/v1/topics/{topic}/messages", content=b'{"json":1}', headers=headers), 201)


def test_a_number_in_a_path_is_refused_in_our_words(api, topic):
    for number in ("x", "-1", "1.0", "9" * 20):
        answer = api.get(f"/v1/topics/{topic}/queues/{number}/messages")
        problem = assert_problem(answer, 422, "validation_failed", "/path/queue_id")
        assert problem["detail"] == "/path/queue_id: must be a number from 0", number


def test_an_error_of_a_name_in_a_path_points_to_the_path(api):
    found = set()
    for path, operations in ok(api.get("/openapi.json"))["paths"].items():
        parts = re.findall("{([a-z_]+)}", path)
        named = path.format(**dict.fromkeys(parts, "a b") | {"queue_id": 0})
        for method, operation in operations.items():
            if {"topic", "group", "producer_group", "node"}.isdisjoint(parts):
                continue
            content = operation.get("requestBody", {}).get("content", {})
            examples = content.get("application/json", {}).get("examples", {})
            body = next((example["value"] for example in examples.values()), None)
            answer = api.request(method.upper(), named, json=body)
            if answer.status_code == 422:
                pointers = {error["pointer"] for error in answer.json()["errors"]}
                assert pointers.isdisjoint(f"/{name}" for name in parts), path
                found |= {(operation["operationId"], pointer) for pointer in pointers}

    for expected in (
        ("sendMessage", "/path/topic"),
        ("sendMessageStream", "/path/topic"),
        ("pullMessages", "/path/topic"),
        ("putGroup", "/path/group"),
        ("streamMessages", "/path/group"),
        ("putProducerGroup", "/path/producer_group"),
        ("registerNode", "/path/node"),
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/messages?topic=a+b&key=order-8812", "/query/topic"),
        ("/v1/schedules?topic=a+b", "/query/topic"),
        ("/v1/tasks?group=a+b", "/query/group"),
        ("/v1/groups/{group}/offsets?topic=a+b", "/query/topic"),
        ("/v1/topics/{topic}/queues/0/messages?group=a+b", "/query/group"),
    ],
)
def test_an_error_of_a_name_in_a_query_points_to_the_query(api, topic, path, pointer):
    ok(api.put(f"/v1/groups/of-{topic}"), 201)

    answer = api.get(path.format(topic=topic, group=f"of-{topic}"))

    assert_problem(answer, 422, "validation_failed", pointer)


# --------------------------------------------------------------------------------------------------
# Request-Id


@pytest.mark.parametrize("given", ["abc", "!" * 128, "8f1c-42", '"<>&'])
def test_a_request_id_comes_back(api, given):
    assert api.get("/livez", headers={"Request-Id": given}).headers["request-id"] == given
    refused = api.get("/v1/nothing", headers={"Request-Id": given})
    assert assert_problem(refused, 404, "route_not_found")["request_id"] == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "ä"])
def test_a_request_without_an_id_of_its_own_gets_one(api, given):
    headers = {} if given is None else {"Request-Id": given.encode()}
    first, second = (api.get("/livez", headers=headers).headers["request-id"] for _ in range(2))

    assert len(first) == 16
    assert first != second


def test_after_a_trailer_that_ends_the_connection_no_request_waits_in_vain(server, topic):
    head = request(
        "POST",
        f"/v1/topics/{topic}/messages",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    )
    body, end = b"d\r\n" + b'{"payload":1}' + b"\r\n", b"0\r\nConnection: close\r\n\r\n"
    for pieces in (
        (head + body + end + request("GET", "/livez"),),
        (head, body, end, request("GET", "/livez")),
    ):
        (answer,) = speak(server, *pieces)

        assert answer.headers["connection"] == "close"


def test_a_length_may_begin_with_any_number_of_zeros(server, topic):
    head = (
        POST.replace(b"/v1/topics", f"/v1/topics/{topic}/messages".encode())
        + b"Connection: close\r\n"
    )
    for length, status in (
        (b"0" * 5_000 + b"15", 201),
        (b"0" * 5_000 + b"9" * 18, 413),
        (b"0" * 5_000, 422),
    ):
        (answer,) = speak(
            server, head + b"Content-Length: " + length + b"\r\n\r\n" + b'{"payload":"x"}'
        )

        assert answer.status == status


# --------------------------------------------------------------------------------------------------
# slow and many


def test_silent_and_dribbling_clients_are_cut_off_and_honest_ones_are_not(tmp_path):
    with Server(tmp_path / "data", environment=SLOW) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        begun = time.monotonic()
        for start in (b"", b"GET /livez HT", GET, POST + b"Content-Length: 9\r\n\r\n{"):
            assert speak(server, start) == [], "closed without an answer"
        # Behind a long poll it is we who are late, not the client.
        waiting = request("GET", "/v1/topics/orders/queues/0/messages?wait_ms=1000")
        found = speak(
            server,
            waiting
            + request("GET", "/livez")
            + POST
            + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
        )

        assert [answer.status for answer in found] == [200, 200, 422]
        assert time.monotonic() - begun < 15
        assert ok(api.get("/readyz"))["ready"] is True
