"""An endpoint is put to the test: five questions about transactions that nobody began, over real
HTTP.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from escrowmq_client.webhooks import InvalidSignature, verify
from tests.support.http import assert_problem, ok
from tests.support.receiver import Answering, Receiver, Request, Said, decide
from tests.support.server import Server

CASES = ["never_seen", "asked_again", "very_old", "wrong_signature", "old_timestamp"]
REFUSED = Said(401, b"who are you?", {"Content-Type": "text/plain"})
LISTED = {"ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["127.0.0.1"]'}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service") / "data", environment=LISTED) as running:
        yield running


@pytest.fixture(scope="module")
def api(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


class Shop:
    """A producer group whose endpoint verifies what it is asked, and answers as the test says."""

    def __init__(self, api: httpx.Client, receiver: Receiver, name: str) -> None:
        self.api = api
        self.receiver = receiver
        self.path = f"/v1/producer-groups/{name}"
        self.secrets: list[str] = []

    def put(self, **fields: Any) -> None:
        body = {
            "check_mode": "webhook",
            "check_url": self.receiver.url,
            "timeout_ms": 2_000,
            **fields,
        }
        self.secrets = [ok(self.api.put(self.path, json=body), 201)["signing_secret"]]

    def verifying(self, answering: Answering) -> Answering:
        def answer(request: Request) -> Said:
            try:
                verify(self.secrets, request.headers, request.body, now=time.time())
            except InvalidSignature:
                return REFUSED
            return answering(request)

        return answer

    def try_it(self) -> dict[str, Any]:
        return ok(self.api.post(f"{self.path}/check-test"))


@pytest.fixture
def shop(api, request) -> Iterator[Shop]:
    with Receiver(lambda _: REFUSED) as receiver:
        yield Shop(api, receiver, f"shop-{abs(hash(request.node.name))}")


def failed(result: dict[str, Any]) -> dict[str, str]:
    """What came in the cases that were not passed."""
    assert [case["case"] for case in result["cases"]] == CASES
    assert result["passed"] == all(case["passed"] for case in result["cases"])
    return {case["case"]: case["got"] for case in result["cases"] if not case["passed"]}


@pytest.mark.parametrize("decision", ["unknown", "rollback"])
def test_an_endpoint_that_keeps_the_contract_passes(shop, decision):
    shop.receiver.answering = shop.verifying(lambda _: decide(decision))
    shop.put()

    result = shop.try_it()

    assert result["passed"]
    assert [case["got"] for case in result["cases"]] == [decision] * 3 + ["status 401"] * 2
    assert all(case["latency_ms"] >= 0 for case in result["cases"])


def test_what_is_asked_looks_like_a_check_and_is_about_nothing(shop):
    shop.receiver.answering = shop.verifying(lambda _: decide("unknown"))
    shop.put()

    shop.try_it()

    asked = [request.check for request in shop.receiver.requests]
    assert {question["kind"] for question in asked} == {"transaction.check"}
    assert all(question["transaction_id"].startswith("check-test_") for question in asked)
    assert all(
        question["check_id"] == request.headers["webhook-id"]
        for question, request in zip(asked, shop.receiver.requests, strict=True)
    )
    assert asked[0] == asked[1]
    assert len({question["transaction_id"] for question in asked}) == 4
    assert asked[2]["age_ms"] == 30 * 86_400_000
    assert ok(shop.api.get("/v1/transactions"))["items"] == []
    assert_problem(
        shop.api.get(f"/v1/transactions/{asked[0]['transaction_id']}"), 404, "transaction_not_found"
    )


def test_an_endpoint_that_commits_what_it_has_never_seen_fails(shop):
    """As the example of RocketMQ does, whose map of local transactions is empty after a restart."""
    shop.receiver.answering = shop.verifying(lambda _: decide("commit"))
    shop.put()

    assert failed(shop.try_it()) == dict.fromkeys(
        ("never_seen", "asked_again", "very_old"), "commit"
    )


def test_an_endpoint_that_gives_up_and_commits_what_is_old_fails(shop):
    shop.receiver.answering = shop.verifying(
        lambda asked: decide("commit" if asked.check["answer_number"] > 10 else "unknown")
    )
    shop.put()

    assert failed(shop.try_it()) == {"very_old": "commit"}


@pytest.mark.parametrize(
    ("first", "second"), [("rollback", "unknown"), ("unknown", "commit"), ("rollback", "commit")]
)
def test_an_endpoint_that_changes_its_mind_fails(shop, first, second):
    said = iter([first, second, "unknown"])
    shop.receiver.answering = shop.verifying(lambda _: decide(next(said)))
    shop.put()

    assert failed(shop.try_it()) == {"asked_again": second}


def test_an_unknown_that_is_made_sure_of_meanwhile_passes(shop):
    said = iter(["unknown", "rollback", "unknown"])
    shop.receiver.answering = shop.verifying(lambda _: decide(next(said)))
    shop.put()

    assert shop.try_it()["passed"]


def test_an_endpoint_that_believes_anybody_fails(shop):
    shop.receiver.answering = lambda _: decide("unknown")
    shop.put()

    assert failed(shop.try_it()) == {"wrong_signature": "unknown", "old_timestamp": "unknown"}


def test_an_endpoint_that_does_not_look_at_the_time_fails(shop):
    def answering(request: Request) -> Said:
        try:
            verify(
                shop.secrets,
                request.headers,
                request.body,
                now=float(request.headers["webhook-timestamp"]),
            )
        except InvalidSignature:
            return REFUSED
        return decide("unknown")

    shop.receiver.answering = answering
    shop.put()

    assert failed(shop.try_it()) == {"old_timestamp": "unknown"}


def test_an_endpoint_that_falls_over_a_wrong_signature_fails(shop):
    honest = shop.verifying(lambda _: decide("unknown"))
    shop.receiver.answering = lambda asked: Said(500) if honest(asked) is REFUSED else honest(asked)
    shop.put()

    assert failed(shop.try_it()) == {"wrong_signature": "status 500", "old_timestamp": "status 500"}


NO_ANSWERS: dict[str, tuple[Callable[[], Said], str]] = {
    "an error with status 200": (
        lambda: Said(200, b"Traceback", {"Content-Type": "text/plain"}),
        "the content type is text/plain",
    ),
    "a word that is none": (
        lambda: Said(200, b'{"decision":"committed"}'),
        "the body is no answer",
    ),
    "too much": (lambda: Said(200, b" " * 65_537), "the answer is longer than 65536 bytes"),
    "a redirect": (lambda: Said(307, b"", {"Location": "https://a.example/"}), "status 307"),
}


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_an_endpoint_whose_answers_are_none_fails_and_is_told_why(shop, what):
    said, why = NO_ANSWERS[what]
    shop.receiver.answering = shop.verifying(lambda _: said())
    shop.put()

    got = failed(shop.try_it())

    assert list(got) == ["never_seen", "asked_again", "very_old"]
    assert all(text.startswith(why) for text in got.values())


def test_an_endpoint_that_is_too_slow_fails(shop):
    answered = threading.Event()
    shop.receiver.answering = lambda _: decide("unknown") if answered.wait(20) else REFUSED
    shop.put(timeout_ms=50)

    got = failed(shop.try_it())

    assert got == dict.fromkeys(CASES, "no answer within 50 ms")
    answered.set()


def test_a_host_that_is_left_alone_is_not_tested_either(shop):
    shop.receiver.answering = lambda _: Said(503)
    shop.put()

    first, second, third = shop.try_it(), shop.try_it(), shop.try_it()

    assert {case["got"] for result in (first, second) for case in result["cases"]} == {"status 503"}
    assert failed(third)["never_seen"].endswith("its host is left alone")
    assert "latency_ms" not in third["cases"][0]
    assert len(shop.receiver.requests) == 10


def test_410_fails_and_does_not_disable_the_endpoint(shop):
    shop.receiver.answering = lambda _: Said(410)
    shop.put()

    assert list(failed(shop.try_it())) == ["never_seen", "asked_again", "very_old"]
    assert "disabled_at" not in ok(shop.api.get(shop.path))


def test_questions_come_one_at_a_time_and_few_endpoints_are_tested_at_once(shop):
    go_on = threading.Event()
    shop.receiver.answering = lambda _: decide("unknown") if go_on.wait(20) else REFUSED
    shop.put(timeout_ms=20_000)
    with ThreadPoolExecutor(4) as pool:
        tests = [pool.submit(shop.try_it) for _ in range(4)]
        shop.receiver.wait_under_way(4)

        refused = shop.api.post(f"{shop.path}/check-test")

        assert_problem(refused, 429, "too_many_waiting")
        go_on.set()
        assert all(
            list(failed(test.result())) == ["wrong_signature", "old_timestamp"] for test in tests
        )
    assert shop.receiver.most_under_way == 4


def test_a_test_waits_for_its_turn_at_a_host_that_is_busy_with_checks(shop):
    go_on = threading.Event()
    shop.receiver.answering = lambda _: (
        decide("unknown", recheck_after_ms=86_400_000) if go_on.wait(20) else REFUSED
    )
    shop.put(timeout_ms=20_000, concurrency=1)
    message = {"topic": "orders", "message": {"json": 1}}
    soon = {"first_after_ms": 10, "interval_ms": 10}
    for _ in range(3):
        body = {
            "producer_group": shop.path.rpartition("/")[2],
            "messages": [message],
            "check": soon,
        }
        ok(shop.api.post("/v1/transactions", json=body), 201)
    shop.receiver.wait_under_way(1)
    with ThreadPoolExecutor(1) as pool:
        test = pool.submit(shop.try_it)
        go_on.set()

        assert list(failed(test.result())) == ["wrong_signature", "old_timestamp"]
    assert shop.receiver.most_under_way == 1
    shop.api.put(shop.path, json={"check_mode": "poll"})


def test_a_stop_does_not_wait_for_a_test(tmp_path):
    go_on = threading.Event()
    with (
        Server(
            tmp_path / "data", environment=LISTED | {"ESCROWMQ_HTTP__STOP_TIMEOUT_MS": "60000"}
        ) as server,
        Receiver(lambda _: decide("unknown") if go_on.wait(20) else REFUSED) as receiver,
        server.client() as api,
        ThreadPoolExecutor(1) as pool,
    ):
        shop = Shop(api, receiver, "shop")
        shop.put(timeout_ms=20_000)
        test = pool.submit(shop.try_it)
        receiver.wait_under_way(1)

        assert server.terminate() == 0
        assert failed(test.result()) == dict.fromkeys(CASES, "the service stops")
        go_on.set()


def test_where_no_check_may_go_no_test_goes(tmp_path):
    with Server(tmp_path / "data", environment=LISTED) as server:
        with server.client() as client:
            asked = {"check_mode": "webhook", "check_url": "http://127.0.0.1:9/"}
            ok(client.put("/v1/producer-groups/shop", json=asked), 201)
        assert server.terminate() == 0
    with Server(tmp_path / "data") as server, server.client() as client:
        got = failed(ok(client.post("/v1/producer-groups/shop/check-test")))

    assert len(got) == 5
    assert all(text.startswith("a check may not be sent there") for text in got.values())


def test_what_has_no_endpoint_cannot_be_tested(shop):
    path = f"{shop.path}/check-test"
    assert_problem(shop.api.post(path), 404, "producer_group_not_found")
    ok(shop.api.put(shop.path), 201)

    assert_problem(shop.api.post(path), 422, "unsupported_combination")
    assert_problem(shop.api.post(path, json={"x": 1}), 422, "validation_failed", "/x")
