"""How both clients execute a call: over answers and failures that a program makes up."""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from escrowmq_client import (
    AsyncClient,
    Client,
    InvalidAnswer,
    MessageInput,
    NotFound,
    Overloaded,
    ProblemError,
    ReceivedMessage,
    Retry,
    Unreachable,
)
from escrowmq_client.models.content import Content
from tests.client.test_event_stream import lines_of

VERSION = {"name": "EscrowMQ", "version": "1", "api_version": "v1"}
QUICK = Retry(total_ms=1_000, first_ms=1, longest_ms=1)
RECEIPT = {
    "message_id": "msg_1",
    "topic": "orders",
    "stored_at": "2026-03-02T10:15:04.101Z",
    "durability": "synced",
    "deduplicated": False,
    "added_by_a_later_release": 1,
}
Course = list[httpx.Response | Exception]


def problem(status: int, code: str, **fields: Any) -> httpx.Response:
    body = {"type": f"/problems/{code}", "title": code, "status": status, "code": code}
    return httpx.Response(status, json={**body, "detail": "", "retryable": False, **fields})


def login_page() -> httpx.Response:
    return httpx.Response(200, html="<html>Log in to the network</html>")


class Played:
    """A service that answers as its course says, and keeps what it was sent."""

    def __init__(self, *course: httpx.Response | Exception) -> None:
        self.course: Iterator[httpx.Response | Exception] = iter(course)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self.course)
        if isinstance(answer, Exception):
            raise answer
        return answer


Execute = Callable[..., Any]


def by_threads(played: Played, method: str, *args: Any, **options: Any) -> Any:
    http = httpx.Client(transport=httpx.MockTransport(played))
    client = Client("http://service:1", retry=QUICK, http=http, api_key="k-1")
    return getattr(client, method)(*args, **options)


def by_tasks(played: Played, method: str, *args: Any, **options: Any) -> Any:
    async def run() -> Any:
        http = httpx.AsyncClient(transport=httpx.MockTransport(played))
        client = AsyncClient("http://service:1", retry=QUICK, http=http, api_key="k-1")
        return await getattr(client, method)(*args, **options)

    return asyncio.run(run())


@pytest.fixture(params=[by_threads, by_tasks])
def execute(request) -> Execute:
    return request.param


def test_a_lost_answer_is_asked_for_again_with_the_same_key(execute):
    played = Played(
        httpx.ReadTimeout("no answer"),
        httpx.RemoteProtocolError("closed"),
        httpx.Response(502, text="<html>"),
        httpx.Response(201, json=RECEIPT),
    )

    receipt = execute(played, "send", "orders", json={"id": 1})

    assert receipt.message_id == "msg_1"
    assert len(played.requests) == 4
    assert len({request.headers["Idempotency-Key"] for request in played.requests}) == 1
    assert {request.content for request in played.requests} == {b'{"json":{"id":1}}'}


def test_a_lost_answer_of_a_call_that_acts_twice_is_an_error_that_says_so(execute):
    played = Played(httpx.ReadTimeout("no answer"))

    with pytest.raises(Unreachable, match="ReadTimeout") as caught:
        execute(played, "rotate_signing_secret", "shop")

    assert caught.value.outcome_unknown


def test_a_service_that_is_not_reached_is_named_by_its_address(execute):
    played = Played(*[httpx.ConnectError("[Errno 111] Connection refused")] * 10_000)

    with pytest.raises(Unreachable, match=r"http://service:1: ConnectError: .* refused"):
        execute(played, "get_version")


def test_the_text_of_a_refusal_names_the_fields_that_are_wrong(execute):
    wrong = {"pointer": "/queues", "code": "too_large", "detail": "at most 64"}
    unnamed = problem(422, "validation_failed", detail="The body is invalid.", errors=[wrong])
    named = problem(422, "validation_failed", detail="/queues is invalid.", errors=[wrong])
    same = problem(422, "validation_failed", detail="at most 64", errors=[wrong])

    for answer, text in (
        (unnamed, "422 validation_failed: The body is invalid.; /queues: at most 64"),
        (named, "422 validation_failed: /queues is invalid."),
        (same, "422 validation_failed: at most 64 (/queues)"),
    ):
        with pytest.raises(ProblemError) as caught:
            execute(Played(answer), "get_version")
        assert str(caught.value) == text


def test_a_service_that_is_starting_is_waited_for(execute):
    played = Played(
        httpx.ConnectError("refused"),
        problem(503, "recovering", retryable=True),
        httpx.Response(200, json=VERSION),
    )

    assert execute(played, "get_version").name == "EscrowMQ"


def test_a_wait_that_would_be_too_long_ends_the_call(execute):
    refusal = problem(503, "overloaded", retryable=True)
    refusal.headers["Retry-After"] = "2"
    played = Played(refusal)

    with pytest.raises(Overloaded) as caught:
        execute(played, "get_version")

    assert caught.value.retry_after_ms == 2_000
    assert len(played.requests) == 1


def test_a_refusal_is_an_error_with_all_that_the_service_said(execute):
    fields = {
        "errors": [{"pointer": "/key", "code": "too_long", "detail": "255 bytes"}],
        "context": {"limit": "255"},
    }
    played = Played(problem(404, "a_code_of_later", **fields))

    with pytest.raises(NotFound, match="404 a_code_of_later") as caught:
        execute(played, "get_topic", "orders")

    assert caught.value.code == "a_code_of_later"
    assert caught.value.errors[0].pointer == "/key"
    assert caught.value.context == {"limit": "255"}


def test_a_refusal_without_a_problem_document_is_an_error_all_the_same(execute):
    with pytest.raises(ProblemError, match=r"418 unknown: .*teapot") as caught:
        execute(Played(httpx.Response(418, text="a teapot")), "get_version")

    assert not caught.value.retryable


def test_an_answer_of_another_program_is_an_error_of_the_client(execute):
    with pytest.raises(InvalidAnswer, match="status 200"):
        execute(Played(httpx.Response(200, text="<html>")), "get_version")


@pytest.mark.parametrize(
    "body",
    [b'{"name":"\xff"}', b'{"other":' + b"[" * 100_000],
    ids=["not UTF-8", "nested"],
)
def test_an_answer_that_no_decoder_takes_is_an_error_of_the_client(execute, body):
    with pytest.raises(InvalidAnswer, match="status 200"):
        execute(Played(httpx.Response(200, content=body)), "get_version")
    with pytest.raises(ProblemError, match="418 unknown"):
        execute(Played(httpx.Response(418, content=body)), "get_version")


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [("[" * 100_000, "utf8"), ("Iv8i", "base64"), ("<html>", "utf8")],
    ids=["nested", "not UTF-8", "no JSON"],
)
def test_a_body_that_cannot_be_read_as_json_is_the_error_of_one_that_is_no_json(payload, encoding):
    reply = Content(payload=payload, payload_encoding=encoding, properties={})

    with pytest.raises(msgspec.DecodeError):
        reply.json()


@pytest.mark.parametrize("charset", ["hex", "idna", "undefined"])
def test_a_refusal_in_an_encoding_of_no_text_is_an_error_all_the_same(execute, charset):
    headers = {"Content-Type": f"text/html; charset={charset}"}

    with pytest.raises(ProblemError, match=r"418 unknown: .*teapot"):
        execute(Played(httpx.Response(418, headers=headers, content=b"teapot")), "get_version")


def test_a_record_of_a_time_that_no_clock_has_is_an_error_of_the_client(execute):
    begin = struct.pack(">iIIiiqqiq8xq8x12xi", 0, 0, 0, 0, 0, 0, 0, 0, 1 << 62, 0, 0)
    page = struct.pack(">4shhqqqii", b"EMQR", 1, 40, 1, 0, 1, 1, 0) + begin + b"\1t\0\0"
    answer = httpx.Response(200, content=page)

    with pytest.raises(InvalidAnswer, match="no page of records"):
        execute(Played(answer), "pull_messages", "orders", 0, raw=True)


def test_a_wait_of_thousands_of_digits_is_not_waited_for(execute):
    body = problem(503, "overloaded").content
    long = httpx.Response(503, headers={"Retry-After": "9" * 5_000}, content=body)

    with pytest.raises(Overloaded):
        execute(Played(long), "get_version")


def test_a_wait_of_more_digits_than_a_float_has_is_not_waited_for(execute):
    with pytest.raises(Overloaded):
        execute(Played(problem(503, "overloaded", retry_after_ms=10**400)), "get_version")


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("delete_topic", ["orders"]),
        ("delete_group", ["billing"]),
        ("leave_group", ["billing", "m-1"]),
        ("unregister_node", ["n-1"]),
        ("delete_audit_report", ["r-1"]),
        ("get_message_payload", ["msg_1"]),
        ("download_audit_report", ["r-1"]),
        ("commit_transaction", ["t-1"]),
    ],
)
def test_a_page_of_a_proxy_is_no_success(execute, method, names):
    with pytest.raises(InvalidAnswer, match="status 200"):
        execute(Played(login_page()), method, *names)


def first_of_stream(played: Played, retry: Retry) -> ReceivedMessage:
    http = httpx.Client(transport=httpx.MockTransport(played))
    return next(Client("http://service:1", retry=retry, http=http).stream_messages("billing"))


def first_of_async_stream(played: Played, retry: Retry) -> ReceivedMessage:
    async def run() -> ReceivedMessage:
        http = httpx.AsyncClient(transport=httpx.MockTransport(played))
        client = AsyncClient("http://service:1", retry=retry, http=http)
        return await anext(client.stream_messages("billing"))

    return asyncio.run(run())


@pytest.mark.parametrize("first", [first_of_stream, first_of_async_stream])
def test_a_stream_without_messages_goes_on_as_long_as_its_connections_are_accepted(first):
    def events(*lines: str) -> httpx.Response:
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, text="".join(f"{line}\n" for line in lines))

    quiet = [events("retry: 1", "") for _ in range(30)]
    played = Played(*quiet, events(*lines_of("lh_1")))

    message = first(played, Retry(total_ms=40, first_ms=20, longest_ms=20))

    assert message.receipt_handle == "lh_1"


@pytest.mark.parametrize("first", [first_of_stream, first_of_async_stream])
def test_a_page_of_a_proxy_is_no_stream_of_messages(first):
    with pytest.raises(InvalidAnswer, match="text/html"):
        first(Played(login_page()), QUICK)


def test_the_key_is_sent_and_a_long_poll_is_waited_for(execute):
    played = Played(httpx.Response(200, json={"synced_offset": 1, "synced": True}))

    execute(played, "get_durability", wait_ms=20_000)

    (request,) = played.requests
    assert request.headers["Authorization"] == "Bearer k-1"
    assert request.url == "http://service:1/v1/store/durability?wait_ms=20000"
    assert request.extensions["timeout"] == {"connect": 10, "read": 30, "write": 10, "pool": 10}


def test_a_stream_that_ended_early_is_sent_again_as_a_whole(execute):
    def line(n: int) -> str:
        return json.dumps({"id": str(n), "status": 201, "receipt": RECEIPT}) + "\n"

    played = Played(httpx.Response(200, text=line(0)), httpx.Response(200, text=line(0) + line(1)))

    results = execute(
        played, "send_message_stream", "orders", [MessageInput(json=1), MessageInput(json=2)]
    )

    assert [result.stored().message_id for result in results] == ["msg_1", "msg_1"]
    assert len({request.headers["Idempotency-Key"] for request in played.requests}) == 1


def test_the_address_and_the_key_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ESCROWMQ_URL", "http://elsewhere:1/")
    monkeypatch.setenv("ESCROWMQ_API_KEY", "k-2")
    played = Played(httpx.Response(200, json=VERSION))

    Client(http=httpx.Client(transport=httpx.MockTransport(played))).get_version()

    assert str(played.requests[0].url) == "http://elsewhere:1/v1/version"
    assert played.requests[0].headers["Authorization"] == "Bearer k-2"


def test_an_address_without_a_scheme_is_refused_at_once():
    with pytest.raises(ValueError, match="begins with http"):
        Client("localhost:8080")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://host:99999",
        "http://",
        "https://:1",
        "http://host/?x=1",
        "http://h#x",
        "http://[shop-2",
        "http://sh op",
        "http://a,http://b",
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_that_is_no_url_is_refused_at_once(kind, url):
    with pytest.raises(ValueError, match="URL"):
        kind(["http://good:1", url])


@pytest.mark.parametrize("key", ["s3cret\n", "s3cret ", "s3crét", "s3\rcret", "s3cret\x7f"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_key_that_no_header_can_carry_is_refused_at_once_and_not_shown(monkeypatch, kind, key):
    with pytest.raises(ValueError, match=r"^api_key has") as given:
        kind("http://service:1", api_key=key)
    monkeypatch.setenv("ESCROWMQ_API_KEY", key)
    with pytest.raises(ValueError, match=r"^api_key has") as found:
        kind("http://service:1")

    assert "s3" not in str(given.value) + str(found.value)


@pytest.mark.parametrize("key", ["ключ", "a\nb", "a "])
def test_an_idempotency_key_that_no_header_can_carry_is_refused(execute, key):
    played = Played()

    with pytest.raises(ValueError, match="Idempotency-Key has"):
        execute(played, "send", "orders", json=1, idempotency_key=key)
    with pytest.raises(ValueError, match="ce-id has"):
        execute(played, "publish_cloud_event", "orders", b"", {"ce-id": key})

    assert played.requests == []


def test_an_answer_whose_compression_is_damaged_is_an_error_of_the_client(execute):
    damaged = httpx.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"hello")
    )

    with pytest.raises(InvalidAnswer, match="DecodingError"):
        execute(Played(damaged), "get_version")


def test_a_name_that_is_too_long_for_a_url_is_refused(execute):
    with pytest.raises(ValueError, match="too long"):
        execute(Played(), "get_topic", "t" * 100_000)


def test_close_leaves_an_http_client_of_the_caller_open():
    http = httpx.Client(transport=httpx.MockTransport(Played()))

    with Client("http://service:1", http=http):
        pass

    assert not http.is_closed


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_leads_to_another_resource_is_refused_before_anything_is_sent(execute, name):
    played = Played()

    for method, *names in (
        ("leave_group", "billing", name),
        ("delete_group", name),
        ("get_topic", name),
        ("commit_transaction", name),
    ):
        with pytest.raises(ValueError, match="leads to another resource"):
            execute(played, method, *names)

    assert played.requests == []
