"""A client that knows several machines of a service, of which one takes requests."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from escrowmq_client import (
    AsyncClient,
    CannotConnect,
    Client,
    NotPrimary,
    PoolExhausted,
    ProblemError,
    Retry,
    Unreachable,
)
from escrowmq_client.call import nothing
from escrowmq_client.transport import read
from escrowmq_client.worker.outage import Outage

A, B, C = "http://a:1", "http://b:2", "http://c:3"
QUICK = Retry(total_ms=1_000, first_ms=1, longest_ms=1)
VERSION = {"name": "EscrowMQ", "version": "1", "api_version": "v1"}
RECEIPT = {
    "message_id": "msg_1",
    "topic": "orders",
    "stored_at": "2026-03-02T10:15:04.101Z",
    "durability": "replicated",
    "copies": 2,
    "deduplicated": False,
}


def answered(body: Any = VERSION) -> httpx.Response:
    return httpx.Response(200, json=body)


def refused() -> Exception:
    return httpx.ConnectError("refused")


def problem(status: int, code: str, **context: str) -> httpx.Response:
    body = {"type": f"/problems/{code}", "title": code, "status": status, "code": code}
    rest = {"detail": "", "retryable": status == 503, "context": context}
    return httpx.Response(status, json={**body, **rest})


def replica_of(primary: str | None) -> httpx.Response:
    return problem(421, "not_primary", **({} if primary is None else {"primary": primary}))


class Machines:
    """Each machine answers every request in the same way, until that is changed."""

    def __init__(self, **answers: Callable[[], httpx.Response | Exception]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        self.requests.append(request)
        answer = self.answers[request.url.host]()
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Threads:
    """The client for threads."""

    def __init__(self, machines: Machines, urls: Any) -> None:
        http = httpx.Client(transport=httpx.MockTransport(machines))
        self.client = Client(urls, retry=QUICK, http=http, api_key="key")

    def run(self, method: str, *args: Any, **given: Any) -> Any:
        return getattr(self.client, method)(*args, **given)


class _Tasks:
    """The client for tasks."""

    def __init__(self, machines: Machines, urls: Any) -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(machines))
        self.client = AsyncClient(urls, retry=QUICK, http=http, api_key="key")

    def run(self, method: str, *args: Any, **given: Any) -> Any:
        return asyncio.run(getattr(self.client, method)(*args, **given))


@pytest.fixture(params=[_Threads, _Tasks])
def connect(request) -> Any:
    return request.param


@pytest.mark.parametrize("urls", [[A, B], f"{A},{B}", f" {A}/ , {B}/,"])
def test_a_machine_that_is_not_reached_is_left_for_the_next_and_not_asked_again(connect, urls):
    machines = Machines(a=refused, b=answered)
    client = connect(machines, urls)

    client.run("get_version")
    client.run("get_version")

    assert machines.asked == ["a", "b", "b"]
    assert client.client.url == B


def test_the_machines_are_asked_in_turn_until_one_is_the_service(connect):
    machines = Machines(a=refused, b=refused, c=answered)
    client = connect(machines, [A, B, C])
    client.run("get_version")
    machines.answers["c"] = refused
    machines.answers["b"] = answered

    client.run("get_version")

    assert machines.asked == ["a", "b", "c", "c", "a", "b"]


def untrusted() -> Exception:
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError(1, "certificate verify failed")
    return error


def test_a_machine_that_cannot_be_connected_to_is_left_for_the_others_in_turn(connect):
    machines = Machines(a=untrusted, b=untrusted, c=answered)
    client = connect(machines, [A, B, C])

    client.run("get_version")

    assert machines.asked == ["a", "b", "c"]


def test_a_machine_that_cannot_be_connected_to_does_not_end_the_wait_for_another(connect):
    answers = iter([refused, refused, answered])
    machines = Machines(a=lambda: next(answers)(), b=untrusted)
    client = connect(machines, [A, B])

    client.run("get_version")

    assert machines.asked == ["a", "b", "a", "b", "a"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_call_fails_where_no_machine_can_be_connected_to(connect, count):
    machines = Machines(a=untrusted, b=untrusted, c=untrusted)
    with pytest.raises(CannotConnect):
        connect(machines, [A, B, C][:count]).run("get_version")

    assert machines.asked == ["a", "b", "c"][:count]


@pytest.mark.parametrize(
    "host", ["a..b", ".a", "a" * 64, f"shop.{'a' * 64}.test", ".".join(["a" * 50] * 6), "a.."]
)
def test_a_host_that_no_name_can_be_is_refused_at_once(connect, host):
    with pytest.raises(ValueError, match="host that cannot be"):
        connect(Machines(), f"http://{host}:8080")


@pytest.mark.parametrize(
    "host", ["shop.test.", "a" * 63, "_shop.test", "127.0.0.1", "[::1]", "b\u00fccher.test", "-a"]
)
def test_a_host_that_may_exist_is_taken(connect, host):
    assert connect(Machines(), f"http://{host}:8080").client.url.endswith(f"{host}:8080")


def test_addresses_of_the_environment_are_several_too(connect, monkeypatch):
    monkeypatch.setenv("ESCROWMQ_URL", f"{A},{B}")
    client = connect(Machines(a=refused, b=answered), None)

    client.run("get_version")

    assert client.client.url == B


@pytest.mark.parametrize("known", [[A], [A, B], [A, C]])
def test_a_replica_leads_to_its_service_at_once_with_the_same_key(connect, known):
    machines = Machines(a=lambda: replica_of(B), b=lambda: answered(RECEIPT), c=refused)
    client = connect(machines, known)

    receipt = client.run("send", "orders", payload="x")

    assert (receipt.durability, receipt.copies) == ("replicated", 2)
    assert machines.asked == ["a", "b"]
    first, second = machines.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.content == second.content
    assert second.headers["Authorization"] == "Bearer key"


def test_replicas_that_lead_in_a_circle_are_followed_three_times_and_then_asked_later(connect):
    machines = Machines(a=lambda: replica_of(B), b=lambda: replica_of(A))
    client = connect(machines, [A, B])

    with pytest.raises(NotPrimary) as caught:
        client.run("get_version")

    assert caught.value.primary in (A, B)
    assert set(machines.asked) == {"a", "b"}


def test_of_a_service_that_is_gone_the_replica_is_asked_until_it_is_promoted(connect):
    machines = Machines(a=refused)
    asked = 0

    def promoted_later() -> httpx.Response:
        nonlocal asked
        asked += 1
        return replica_of(A) if asked < 4 else answered()

    machines.answers["b"] = promoted_later
    client = connect(machines, [A, B])

    client.run("get_version")

    assert machines.asked == ["a", "b"] * 4
    assert client.client.url == B


def test_a_replica_that_does_not_know_its_service_is_left_for_the_next(connect):
    machines = Machines(a=lambda: replica_of(None), b=answered)

    connect(machines, [A, B]).run("get_version")

    assert machines.asked == ["a", "b"]


def test_no_other_refusal_leads_anywhere(connect):
    machines = Machines(a=lambda: problem(421, "host_not_allowed", primary=B), b=answered)
    client = connect(machines, [A, B])

    with pytest.raises(ProblemError, match="host_not_allowed"):
        client.run("get_version")

    assert machines.asked == ["a"]


@pytest.mark.parametrize("named", ["http://b:2", "ftp://b:2", "b:2", "file:///etc/passwd"])
def test_a_key_is_not_sent_where_others_can_read_it_because_a_replica_says_so(connect, named):
    machines = Machines(a=lambda: replica_of(named), c=answered)
    client = connect(machines, ["https://a:1", "https://c:3"])

    client.run("get_version")

    assert machines.asked == ["a", "c"]


@pytest.mark.parametrize("named", ["http://[::1", "http://", "http://b:99999", "http://b?x"])
def test_a_replica_that_names_no_url_is_left_for_the_next(connect, named):
    machines = Machines(a=lambda: replica_of(named), b=answered)

    connect(machines, [A, B]).run("get_version")

    assert machines.asked == ["a", "b"]


def test_a_service_that_stops_is_left_and_one_that_has_too_much_is_not(connect):
    stops = Machines(a=lambda: problem(503, "shutting_down"), b=answered)
    connect(stops, [A, B]).run("get_version")
    assert stops.asked == ["a", "b"]

    answers = iter([problem(503, "overloaded"), answered()])
    busy = Machines(a=lambda: next(answers), b=answered)
    connect(busy, [A, B]).run("get_version")
    assert busy.asked == ["a", "a"]


def test_a_client_without_a_free_connection_asks_the_same_machine_again(connect):
    answers = iter([httpx.PoolTimeout("all are in use"), answered()])
    machines = Machines(a=lambda: next(answers), b=answered)

    connect(machines, [A, B]).run("get_version")

    assert machines.asked == ["a", "a"]


def test_connections_that_are_all_in_use_to_the_end_are_named(connect):
    machines = Machines(a=lambda: httpx.PoolTimeout("all are in use"))

    with pytest.raises(PoolExhausted) as ended:
        connect(machines, A).run("get_version")

    assert not ended.value.outcome_unknown


def test_what_may_have_been_carried_out_is_sent_to_no_other_machine(connect):
    machines = Machines(a=lambda: httpx.ReadTimeout("lost"), b=answered)
    client = connect(machines, [A, B])

    with pytest.raises(Unreachable) as caught:
        client.run("rotate_group_signing_secret", "billing")

    assert caught.value.outcome_unknown
    assert machines.asked == ["a"]
    assert client.client.url == B


@pytest.mark.parametrize(("primary", "lines"), [(B, 0), (None, 1)])
def test_a_replica_that_knows_its_service_is_no_outage_to_a_worker(caplog, primary, lines):
    with pytest.raises(NotPrimary) as caught:
        read(replica_of(primary), nothing)

    Outage("billing").failed(caught.value)

    assert len(caplog.records) == lines


@pytest.mark.parametrize("urls", ["", ",", [" "], [A, "b:2"], "http://a:1,b:2"])
def test_addresses_that_are_none_are_refused(connect, urls, monkeypatch):
    monkeypatch.setenv("ESCROWMQ_URL", ",")
    with pytest.raises(ValueError, match="URL"):
        connect(Machines(), urls)
