"""Checkback by webhook over real HTTP: a receiver on loopback is asked, and its answers decide."""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from escrowmq_client.webhooks import verify
from tests.support.http import assert_problem, ok, until
from tests.support.receiver import Answering, Receiver, Request, Said, decide
from tests.support.server import Server

SOON = {"first_after_ms": 10, "interval_ms": 10}
WAIT_MS = 10_000  # never waited out
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
    """A producer group with a receiver."""

    def __init__(self, api: httpx.Client, receiver: Receiver, name: str = "shop") -> None:
        self.api = api
        self.receiver = receiver
        self.name = name
        self.path = f"/v1/producer-groups/{name}"

    def put(self, status: int = 201, **fields: Any) -> dict[str, Any]:
        return ok(
            self.api.put(
                self.path, json={"check_mode": "webhook", "check_url": self.receiver.url, **fields}
            ),
            status,
        )

    def begin(self, **check: Any) -> str:
        message = {"topic": "orders", "message": {"key": "8812", "json": 1}}
        body = {
            "producer_group": self.name,
            "business_key": "order-8812",
            "messages": [message],
            "check": SOON | check,
        }
        return ok(self.api.post("/v1/transactions", json=body), 201)["transaction_id"]

    def look(self, transaction_id: str, **query: Any) -> dict[str, Any]:
        return ok(self.api.get(f"/v1/transactions/{transaction_id}", params=query))

    def outcome(self, transaction_id: str) -> dict[str, Any]:
        """Once it is no longer prepared."""
        return self.look(transaction_id, wait_ms=WAIT_MS)


@pytest.fixture
def shop(api, request) -> Iterator[Shop]:
    with Receiver(lambda _: decide("commit")) as receiver:
        shop = Shop(api, receiver, re.sub(r"[^a-z0-9_]+", "-", request.node.name)[-100:])
        yield shop
        # what is left of it is asked no more
        api.put(shop.path, json={"check_mode": "poll"}, headers={"If-Match": "*"})


def one_after_another(*answers: Said) -> Answering:
    """The last one again and again."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_a_check_says_what_it_asks_about_and_is_signed(shop):
    secret = shop.put()["signing_secret"]
    transaction_id = shop.begin()

    (request,) = shop.receiver.wait_for(1)

    check_id = verify([secret], request.headers, request.body, now=time.time())
    age_ms = request.check["age_ms"]
    assert request.check == {
        "kind": "transaction.check",
        "check_id": check_id,
        "transaction_id": transaction_id,
        "business_key": "order-8812",
        "age_ms": age_ms,
        "answer_number": 1,
    }
    assert check_id.startswith("chk_")
    assert age_ms >= 10
    assert request.path == "/mq/check?token=1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["host"] == httpx.URL(shop.receiver.url).netloc.decode()


@pytest.mark.parametrize(
    ("decision", "state"), [("commit", "committed"), ("rollback", "rolled_back")]
)
def test_an_answer_decides_at_once(shop, decision, state):
    shop.receiver.answering = lambda _: decide(decision, evidence={"row": "order_outbox:8812"})
    shop.put()
    transaction_id = shop.begin()

    found = shop.outcome(transaction_id)

    assert (found["state"], found["resolved_by"], found["late"]) == (state, "check", False)


def test_unknown_is_counted_and_asked_again_under_a_new_id_until_it_is_held(shop):
    shop.receiver.answering = lambda _: decide("unknown")
    shop.put()
    transaction_id = shop.begin(max_answers=3)

    found = shop.outcome(transaction_id)

    assert (found["state"], found["answers"], found["hold_reason"]) == (
        "held",
        3,
        "answers_exhausted",
    )
    checks = [request.check for request in shop.receiver.requests]
    assert [check["answer_number"] for check in checks] == [1, 2, 3]
    assert len({check["check_id"] for check in checks}) == 3


def test_the_producer_says_when_it_wants_to_be_asked_again(shop):
    shop.receiver.answering = one_after_another(
        decide("unknown", recheck_after_ms=86_400_000), decide("commit")
    )
    shop.put()
    transaction_id = shop.begin()
    shop.receiver.wait_for(1)

    found = until(
        lambda: (found := shop.look(transaction_id))["answers"] and found, "the answer is counted"
    )

    assert found["next_check_at"][:10] > found["prepared_at"][:10]
    assert len(shop.receiver.requests) == 1


NO_ANSWERS = {
    "a server error": Said(500, b'{"decision":"commit"}'),
    "not found": Said(404, b'{"decision":"commit"}'),
    "created": Said(201, b'{"decision":"commit"}'),
    "a text": Said(200, b"committed", {"Content-Type": "text/plain"}),
    "an exception with status 200": Said(
        200, b"Traceback: commit failed", {"Content-Type": "text/html"}
    ),
    "json without its type": Said(200, b'{"decision":"commit"}', {"Content-Type": "text/plain"}),
    "an unknown word": Said(200, b'{"decision":"committed"}'),
    "an empty body": Said(200, b""),
    "too long": Said(200, b'{"decision":"commit"}' + b" " * 65_536),
    "compressed": Said(
        200,
        b'{"decision":"commit"}',
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ),
}


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_what_is_no_answer_is_asked_again_under_the_same_id_and_never_counted(api, what):
    with Receiver(
        one_after_another(NO_ANSWERS[what], NO_ANSWERS[what], decide("rollback"))
    ) as receiver:
        shop = Shop(api, receiver, f"says-{what.replace(' ', '-')}")
        secret = shop.put()["signing_secret"]
        transaction_id = shop.begin()

        found = shop.outcome(transaction_id)

        assert (found["state"], found["answers"]) == ("rolled_back", 0)
        requests = receiver.requests
        assert len(requests) == 3
        assert len({request.headers["webhook-id"] for request in requests}) == 1
        for request in requests:
            verify([secret], request.headers, request.body, now=time.time())


def test_a_redirect_is_not_followed(shop):
    with Receiver(lambda _: decide("commit")) as elsewhere:
        shop.receiver.answering = one_after_another(
            Said(307, b"", {"Location": elsewhere.url}), decide("rollback")
        )
        shop.put()

        assert shop.outcome(shop.begin())["state"] == "rolled_back"
        assert elsewhere.requests == []


def test_who_asks_for_time_gets_it(shop):
    shop.receiver.answering = one_after_another(
        Said(503, b"", {"Retry-After": "1"}), decide("commit")
    )
    shop.put()

    assert shop.outcome(shop.begin())["state"] == "committed"

    first, second = shop.receiver.requests
    assert second.at - first.at >= 0.9


def test_a_try_that_takes_too_long_is_given_up_and_made_again(shop):
    answered = threading.Event()

    def answering(request: Request) -> Said:
        if len(shop.receiver.requests) == 1:
            answered.wait(20)
        return decide("commit")

    shop.receiver.answering = answering
    shop.put(timeout_ms=50)

    found = shop.outcome(shop.begin())

    assert found["state"] == "committed"
    answered.set()


def test_nobody_listening_is_unreachable_and_has_a_clock_of_its_own(shop):
    with Receiver(lambda _: decide("commit")) as closed:
        url = closed.url
    shop.put(check_url=url)
    held = shop.begin(unreachable_limit_ms=300)
    waiting = shop.begin()

    found = shop.outcome(held)

    assert (found["state"], found["hold_reason"], found["answers"]) == ("held", "unreachable", 0)
    assert found["last_failure"] == "unreachable: the host does not accept the connection"
    assert until(lambda: shop.look(waiting).get("last_failure"), "the try is recorded").startswith(
        "unreachable: "
    )
    # The endpoint is back, at another place.
    moved = {"check_mode": "webhook", "check_url": shop.receiver.url}
    ok(shop.api.put(shop.path, json=moved, headers={"If-Match": "*"}))
    assert shop.outcome(waiting)["state"] == "committed"


def test_410_disables_the_endpoint_until_the_group_is_put_again(shop):
    shop.receiver.answering = one_after_another(Said(410), decide("commit"))
    made = shop.put()
    transaction_id = shop.begin()

    found = until(
        lambda: (found := ok(shop.api.get(shop.path))).get("disabled_at") and found,
        "it is disabled",
    )

    assert found["revision"] == made["revision"] + 1
    assert len(shop.receiver.requests) == 1
    assert "disabled_at" not in shop.put(200)
    assert shop.outcome(transaction_id)["state"] == "committed"


def test_a_decision_while_the_check_is_under_way_holds(shop):
    go_on = threading.Event()

    def answering(request: Request) -> Said:
        go_on.wait(20)
        return decide("commit")

    shop.receiver.answering = answering
    shop.put()
    transaction_id = shop.begin()
    shop.receiver.wait_for(1)

    ok(shop.api.post(f"/v1/transactions/{transaction_id}/rollback"))
    go_on.set()

    other = shop.begin()
    assert shop.outcome(other)["state"] == "committed"
    found = shop.look(transaction_id)
    assert (found["state"], found["resolved_by"]) == ("rolled_back", "producer")


def test_no_more_checks_are_under_way_than_the_group_allows(shop):
    go_on = threading.Event()

    def answering(request: Request) -> Said:
        go_on.wait(20)
        return decide("commit")

    shop.receiver.answering = answering
    shop.put(concurrency=2)
    begun = [shop.begin() for _ in range(6)]
    shop.receiver.wait_under_way(2)
    go_on.set()

    assert {shop.outcome(one)["state"] for one in begun} == {"committed"}
    assert shop.receiver.most_under_way == 2


def test_after_a_rotation_both_secrets_verify(shop):
    old = shop.put()["signing_secret"]
    new = ok(shop.api.post(f"{shop.path}/rotate-secret"))["signing_secret"]
    shop.begin()

    (request,) = shop.receiver.wait_for(1)

    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        assert (
            verify([secret], request.headers, request.body, now=time.time())
            == request.check["check_id"]
        )


def test_checks_are_signed_with_the_own_secret_and_with_the_one_that_it_replaced(shop):
    own, other = (f"whsec_{base64.b64encode(bytes([n] * 24)).decode()}" for n in (1, 2))
    shop.put(signing_secret=own)
    shop.put(status=200, signing_secret=other)
    shop.begin()

    (request,) = shop.receiver.wait_for(1)

    for secret in (own, other):
        verify([secret], request.headers, request.body, now=time.time())


def test_a_host_that_is_not_listed_any_more_is_not_asked(tmp_path):
    with Receiver(lambda _: decide("commit")) as receiver:
        listed, unlisted = (Server(tmp_path / "data", environment=given) for given in (LISTED, {}))
        with listed, listed.client() as api:
            Shop(api, receiver).put()
            listed.terminate()
        with unlisted, unlisted.client() as api:
            shop = Shop(api, receiver)
            transaction_id = shop.begin()
            failure = until(
                lambda: shop.look(transaction_id).get("last_failure"), "the try is recorded"
            )
            assert failure.startswith("unreachable: a check may not be sent there")
            body = {"check_mode": "webhook", "check_url": receiver.url}
            assert_problem(api.put(shop.path, json=body), 422, "check_url_refused")
    assert receiver.requests == []


def test_the_service_stops_while_an_endpoint_hangs_and_asks_again_under_the_same_id(tmp_path):
    go_on = threading.Event()

    def hang(request: Request) -> Said:
        go_on.wait(20)
        return decide("commit")

    with (
        Receiver(hang) as receiver,
        Server(tmp_path / "data", environment=LISTED) as server,
        server.client() as api,
    ):
        shop = Shop(api, receiver)
        shop.put(timeout_ms=60_000)
        transaction_id = shop.begin()
        receiver.wait_for(1)

        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 10

        go_on.set()
        server.start()
        assert shop.outcome(transaction_id)["state"] == "committed"
        first, second = receiver.requests
        assert first.headers["webhook-id"] == second.headers["webhook-id"]


def test_failed_tries_are_remembered_across_kill_9(tmp_path):
    with (
        Receiver(lambda _: Said(500)) as receiver,
        Server(tmp_path / "data", environment=LISTED) as server,
        server.client() as api,
    ):
        shop = Shop(api, receiver)
        shop.put()
        transaction_id = shop.begin()
        until(lambda: shop.look(transaction_id).get("last_failure"), "the try is recorded")
        server.kill()

        receiver.answering = lambda _: Said(500) if not again.is_set() else decide("commit")
        again = threading.Event()
        server.start()
        assert shop.look(transaction_id)["last_failure"] == "unreachable: status 500"
        again.set()
        found = shop.outcome(transaction_id)
        assert (found["state"], found["answers"]) == ("committed", 0)
        assert len({json.loads(request.body)["check_id"] for request in receiver.requests}) == 1


LATER = {"first_after_ms": 3_600_000}


def check_now(shop: Shop, transaction_id: str, **fields: Any) -> dict[str, Any]:
    answer = ok(shop.api.post(f"/v1/transactions/{transaction_id}/check", json=fields))
    assert answer.pop("latency_ms", 0) >= 0
    return answer


@pytest.mark.parametrize(
    ("decision", "state"),
    [("commit", "committed"), ("rollback", "rolled_back"), ("unknown", "prepared")],
)
def test_a_producer_may_be_asked_before_its_check_is_due(shop, decision, state):
    shop.receiver.answering = lambda _: decide(decision, evidence={"table": "order_outbox"})
    shop.put()
    transaction_id = shop.begin(**LATER, interval_ms=3_600_000)

    said = check_now(shop, transaction_id)

    assert said == {"decision": decision, "state": state, "evidence": {"table": "order_outbox"}}
    found = shop.look(transaction_id)
    assert (found["state"], found["answers"]) == (state, decision == "unknown")
    assert found.get("resolved_by") == ("check" if state != "prepared" else None)


def test_a_dry_run_asks_and_changes_nothing(shop):
    shop.put()
    transaction_id = shop.begin(**LATER)

    said = check_now(shop, transaction_id, dry_run=True)

    assert said == {
        "decision": "commit",
        "state": "prepared",
        "would_change": "prepared → committed",
    }
    found = shop.look(transaction_id)
    assert (found["state"], found["answers"], found["revision"]) == ("prepared", 0, 1)
    shop.receiver.answering = lambda _: decide("unknown")
    assert check_now(shop, transaction_id, dry_run=True) == {
        "decision": "unknown",
        "state": "prepared",
    }


@pytest.mark.parametrize(
    ("rule", "change"), [("hold", "prepared → held"), ("rollback", "prepared → rolled_back")]
)
def test_a_dry_run_says_that_one_more_unknown_would_be_the_last(shop, rule, change):
    shop.receiver.answering = lambda _: decide("unknown")
    shop.put()
    transaction_id = shop.begin(**LATER, max_answers=1, on_exhausted=rule)

    said = check_now(shop, transaction_id, dry_run=True)

    assert (said["decision"], said["would_change"]) == ("unknown", change)
    assert shop.look(transaction_id)["state"] == "prepared"


def test_asked_out_of_turn_no_answer_is_none_and_says_why(shop):
    go_on = threading.Event()

    def hang(request: Request) -> Said:
        go_on.wait(20)
        return decide("commit")

    shop.put(timeout_ms=50)
    transaction_id = shop.begin(**LATER)

    shop.receiver.answering = hang
    slow = check_now(shop, transaction_id)
    go_on.set()
    shop.receiver.answering = lambda _: Said(404)
    wrong = check_now(shop, transaction_id)
    shop.receiver.answering = lambda _: Said(500)
    down = check_now(shop, transaction_id, dry_run=True)

    assert [(one["decision"], one["reason"], one["state"]) for one in (slow, wrong, down)] == [
        ("none", "timeout", "prepared"),
        ("none", "invalid", "prepared"),
        ("none", "unreachable", "prepared"),
    ]


def test_a_held_transaction_may_be_checked_and_a_decided_one_not(shop):
    shop.receiver.answering = lambda _: decide("unknown")
    shop.put()
    transaction_id = shop.begin(max_answers=1)
    assert shop.outcome(transaction_id)["state"] == "held"
    assert check_now(shop, transaction_id) == {"decision": "unknown", "state": "held"}

    shop.receiver.answering = lambda _: decide("rollback")
    said = check_now(shop, transaction_id, dry_run=True)
    assert said == {"decision": "rollback", "state": "held", "would_change": "held → rolled_back"}
    assert check_now(shop, transaction_id) == {"decision": "rollback", "state": "rolled_back"}

    found = shop.look(transaction_id)
    assert (found["resolved_by"], found["late"]) == ("check", True)
    again = shop.api.post(f"/v1/transactions/{transaction_id}/check")
    assert (
        assert_problem(again, 409, "transaction_already_resolved")["context"]["state"]
        == "rolled_back"
    )


def test_the_work_item_of_a_polled_group_is_due_at_once_and_has_no_dry_run(api):
    path = "/v1/producer-groups/polled"
    body = {
        "producer_group": "polled",
        "messages": [{"topic": "orders", "message": {"json": 1}}],
        "check": LATER,
    }
    transaction_id = ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]
    check = f"/v1/transactions/{transaction_id}/check"
    assert ok(api.post(f"{path}/checks/receive"))["checks"] == []

    assert_problem(api.post(check, json={"dry_run": True}), 422, "unsupported_combination")
    assert ok(api.post(check)) == {"state": "prepared"}

    (item,) = ok(api.post(f"{path}/checks/receive", json={"wait_ms": WAIT_MS}))["checks"]
    assert item["transaction_id"] == transaction_id
    assert_problem(api.post("/v1/transactions/nobody/check"), 404, "transaction_not_found")


def events(shop: Shop, transaction_id: str) -> list[dict[str, Any]]:
    return ok(shop.api.get(f"/v1/transactions/{transaction_id}/history"))["items"]


def test_the_history_tells_of_every_try_and_every_answer(shop):
    shop.receiver.answering = one_after_another(
        Said(500),
        decide("unknown", evidence={"row": "1"}),
        Said(404),
        decide("commit", evidence={"row": "2"}),
    )
    shop.put()
    transaction_id = shop.begin()
    shop.outcome(transaction_id)

    told = events(shop, transaction_id)

    assert [event["event"] for event in told] == [
        *(
            "half_stored",
            "check_sent",
            "check_failed",
            "check_sent",
            "check_answered",
            "check_sent",
            "check_failed",
        ),
        *("check_sent", "check_answered", "committed"),
    ]
    assert [event["at"] for event in told] == sorted(event["at"] for event in told)
    sent = [event for event in told if event["event"] == "check_sent"]
    assert [(event["attempt"], event["via"]) for event in sent] == [
        (1, "webhook"),
        (2, "webhook"),
    ] * 2
    failed = [event for event in told if event["event"] == "check_failed"]
    assert [(event["why"], event["detail"]) for event in failed] == [
        ("unreachable", "status 500"),
        ("invalid", "status 404"),
    ]
    first, second = [event for event in told if event["event"] == "check_answered"]
    assert (first["decision"], first["evidence"]) == ("unknown", {"row": "1"})
    assert (second["decision"], second["evidence"]) == ("commit", {"row": "2"})
    assert min(first["latency_ms"], second["latency_ms"]) >= 0
    assert told[-1]["by"] == "check"
    assert all(event["log_offset"] >= 0 for event in (told[0], told[-1]))


def test_the_history_tells_of_holds_and_what_people_did(shop):
    shop.receiver.answering = lambda _: decide("unknown")
    shop.put()
    transaction_id = shop.begin(max_answers=1)
    shop.outcome(transaction_id)
    shop.receiver.answering = lambda _: decide("unknown", recheck_after_ms=1)
    ok(shop.api.post(f"/v1/transactions/{transaction_id}/resume"))
    shop.outcome(transaction_id)
    ok(
        shop.api.post(
            f"/v1/transactions/{transaction_id}/resolve",
            json={"decision": "rollback", "reason": "INC-311"},
        )
    )

    told = [
        event for event in events(shop, transaction_id) if not event["event"].startswith("check_")
    ]

    assert [event["event"] for event in told] == [
        "half_stored",
        "held",
        "resumed",
        "held",
        "rolled_back",
    ]
    assert told[1]["hold_reason"] == "answers_exhausted"
    assert (told[-1]["by"], told[-1]["reason"]) == ("operator", "INC-311")


@pytest.mark.parametrize("is_held", [False, True])
def test_a_check_out_of_turn_that_gets_no_answer_is_in_the_history(shop, is_held):
    shop.receiver.answering = lambda _: decide("unknown") if is_held else Said(500)
    shop.put()
    transaction_id = shop.begin(**({"max_answers": 1} if is_held else LATER))
    if is_held:
        shop.outcome(transaction_id)
        shop.receiver.answering = lambda _: Said(500)
    before = shop.look(transaction_id)

    asked = ok(shop.api.post(f"/v1/transactions/{transaction_id}/check"))

    assert (asked["reason"], asked["detail"]) == ("unreachable", "status 500")
    until(
        lambda: (
            [event["event"] for event in events(shop, transaction_id)][-2:]
            == ["check_sent", "check_failed"]
        ),
        "the try is recorded",
    )
    after = shop.look(transaction_id)
    assert after.pop("last_failure") == "unreachable: status 500"
    assert after == before | {"revision": before["revision"] + 1}
    explained(shop, transaction_id)


def explained(shop: Shop, transaction_id: str) -> str:
    """All of it as one text."""
    words = ok(shop.api.get(f"/v1/transactions/{transaction_id}/explain"))
    assert set(words) == {"summary", "facts", "next"}
    for sentence in (words["summary"], words["next"], *words["facts"]):
        assert sentence.endswith(".")
    return " ".join([words["summary"], *words["facts"], words["next"]])


def test_a_transaction_is_explained_in_words(shop):
    shop.receiver.answering = lambda _: Said(503)
    shop.put()
    early, asked = shop.begin(**LATER), shop.begin()
    held = shop.begin(unreachable_limit_ms=50)
    # It is known before the history can tell: that reads the log, where it is seen once it is on
    # disk.
    until(
        lambda: "check_failed" in [event["event"] for event in events(shop, asked)],
        "the try is recorded",
    )
    shop.outcome(held)

    assert f"Its check is due at {shop.look(early)['next_check_at']}" in explained(shop, early)
    assert "gave no answer since 20" in explained(shop, asked)
    assert ": unreachable: status 503." in explained(shop, asked)
    assert "Its producer is asked until it answers, " in explained(shop, asked)
    assert " Without an answer it is held at" in explained(shop, asked)
    assert (
        f"is held since {events(shop, held)[-1]['at']}: its producer did not answer"
        in explained(shop, held)
    )
    assert "resolve it, or resume it" in explained(shop, held)
    ok(shop.api.post(f"/v1/transactions/{asked}/commit"))
    assert "was committed by its producer at" in explained(shop, asked)
    assert "the first decision wins" in explained(shop, asked)


def test_a_transaction_that_nobody_began_has_neither_history_nor_explanation(api):
    for what in ("history", "explain"):
        assert_problem(api.get(f"/v1/transactions/nobody/{what}"), 404, "transaction_not_found")


def test_tries_are_counted_by_what_came_of_them(api, shop):
    shop.receiver.answering = one_after_another(Said(500), Said(404), decide("commit"))
    shop.put()
    shop.outcome(shop.begin())

    metrics = api.get("/metrics").text

    for outcome in ("answered", "unreachable", "invalid"):
        assert f'escrowmq_checks_sent_total{{outcome="{outcome}"}}' in metrics
    assert 'escrowmq_transactions_decided_total{resolved_by="check",state="committed"}' in metrics
