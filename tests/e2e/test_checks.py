"""Checkback by poll: who is asked, when, under which lease, and what an answer does.

All times are small ones.
"""

from typing import Any

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

SOON = {"first_after_ms": 10, "interval_ms": 10}
LEASE_MS = 100  # the shortest there is
WAIT_MS = 10_000  # never waited out: an answer comes as soon as there is a check


class Producer:
    """A producer group of its own, that begins transactions and answers checks."""

    def __init__(self, api: httpx.Client, topic: str, name: str) -> None:
        self.api = api
        self.topic = topic
        self.name = name

    def begin(self, **check: Any) -> str:
        body = {
            "producer_group": self.name,
            "business_key": "order-8812",
            "messages": [{"topic": self.topic, "message": {"key": "8812", "json": 1}}],
            "check": SOON | check,
        }
        return ok(self.api.post("/v1/transactions", json=body), 201)["transaction_id"]

    def receive(self, **fields: Any) -> list[dict[str, Any]]:
        return ok(self.api.post(f"/v1/producer-groups/{self.name}/checks/receive", json=fields))[
            "checks"
        ]

    def one(self, **fields: Any) -> dict[str, Any]:
        """The next check; waits for it."""
        (check,) = self.receive(**{"wait_ms": WAIT_MS, "max_checks": 1, **fields})
        return check

    def answers(self, *answers: dict[str, Any]) -> httpx.Response:
        return self.api.post(
            f"/v1/producer-groups/{self.name}/checks/answer", json={"answers": answers}
        )

    def answer(self, check: dict[str, Any], decision: str, **fields: Any) -> dict[str, Any]:
        answer = ok(self.answers({"check_id": check["check_id"], "decision": decision, **fields}))
        assert (answer["accepted"], answer["rejected"]) == (1, 0)
        assert answer["results"][0]["check_id"] == check["check_id"]
        return answer["results"][0]

    def refused(self, check: dict[str, Any], decision: str) -> dict[str, Any]:
        """The problem in the one result."""
        answer = ok(self.answers({"check_id": check["check_id"], "decision": decision}), 207)
        assert (answer["accepted"], answer["rejected"]) == (0, 1)
        (result,) = answer["results"]
        assert result["status"] == result["problem"]["status"] == 409
        assert not {"instance", "request_id"} & set(result["problem"])
        return result["problem"]

    def look(self, transaction_id: str, **query: Any) -> dict[str, Any]:
        return ok(self.api.get(f"/v1/transactions/{transaction_id}", params=query))

    def exhaust(self, **check: Any) -> str:
        """A transaction whose one allowed answer is used up."""
        transaction_id = self.begin(max_answers=1, **check)
        self.answer(self.one(), "unknown")
        return transaction_id


@pytest.fixture
def producer(api, topic) -> Producer:
    return Producer(api, topic, f"group-of-{topic}")


def seen(api: httpx.Client, topic: str) -> int:
    return len(ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"])


def test_a_check_says_what_it_asks_about(producer):
    transaction_id = producer.begin()

    check = producer.one(lease_ms=15_000)

    assert check["check_id"].startswith("chk_")
    assert check["transaction_id"] == transaction_id
    assert (check["business_key"], check["answer_number"]) == ("order-8812", 1)
    (message,) = check["messages"]
    assert (message["topic"], message["key"]) == (producer.topic, "8812")
    assert message["message_id"] == producer.look(transaction_id)["messages"][0]["message_id"]
    assert check["age_ms"] >= 10
    assert check["prepared_at"] < check["lease_expires_at"]


@pytest.mark.parametrize(
    ("decision", "state"), [("commit", "committed"), ("rollback", "rolled_back")]
)
def test_an_answer_decides(producer, decision, state):
    transaction_id = producer.begin()
    check = producer.one()

    assert producer.answer(check, decision, evidence={"row": "order_outbox:8812"}) == {
        "check_id": check["check_id"],
        "status": 200,
        "state": state,
    }

    decided = producer.look(transaction_id)
    assert (decided["state"], decided["resolved_by"], decided["late"]) == (state, "check", False)
    assert seen(producer.api, producer.topic) == (decision == "commit")


def test_nobody_is_asked_before_the_first_check_is_due_nor_after_the_decision(producer):
    decided, early = producer.begin(), producer.begin(first_after_ms=3_600_000)
    ok(producer.api.post(f"/v1/transactions/{decided}/commit"))
    due = producer.begin()

    assert producer.one()["transaction_id"] == due
    assert producer.receive() == []
    assert producer.look(early)["answers"] == 0


def test_a_check_whose_lease_ends_comes_again_under_the_same_id(producer):
    producer.begin()
    first = producer.one(lease_ms=LEASE_MS)

    again = producer.one(lease_ms=LEASE_MS)

    assert again["check_id"] == first["check_id"]
    assert again["answer_number"] == 1
    assert again["lease_expires_at"] > first["lease_expires_at"]


def test_a_leased_check_is_nobody_elses(producer):
    producer.begin()
    producer.one(lease_ms=60_000)

    assert producer.receive() == []


def test_unknown_is_counted_once_and_asks_again_under_a_new_id(producer):
    transaction_id = producer.begin()
    check = producer.one()
    assert producer.answer(check, "unknown")["state"] == "prepared"
    assert producer.answer(check, "unknown")["state"] == "prepared"  # taken, and not counted
    again = producer.one()

    found = producer.look(transaction_id)

    assert (found["answers"], found["last_answer"]) == (1, "unknown")
    assert again["check_id"] != check["check_id"]
    assert again["answer_number"] == 2
    # A late answer to the first one counts while the transaction is open.
    assert producer.answer(check, "commit")["state"] == "committed"
    assert producer.answer(again, "commit")["state"] == "committed"
    assert producer.refused(again, "rollback")["code"] == "transaction_already_resolved"
    assert producer.refused(check, "unknown")["code"] == "transaction_already_resolved"


def test_the_producer_says_when_it_wants_to_be_asked_again(producer):
    transaction_id = producer.begin()
    check = producer.one()

    producer.answer(check, "unknown", recheck_after_ms=86_400_000)

    found = producer.look(transaction_id)
    assert found["next_check_at"][:10] > found["prepared_at"][:10]
    assert producer.receive() == []


def test_exhausted_means_held_and_a_person_decides(producer):
    transaction_id = producer.begin(max_answers=2)
    producer.answer(producer.one(), "unknown")
    last = producer.one()

    assert producer.answer(last, "unknown")["state"] == "held"

    held = producer.look(transaction_id)
    assert (held["state"], held["answers"], held["last_answer"]) == ("held", 2, "unknown")
    assert (held["hold_reason"], held["late"]) == ("answers_exhausted", False)
    assert "next_check_at" in held
    assert producer.receive() == []
    (item,) = ok(
        producer.api.get(
            "/v1/transactions", params={"state": "held", "producer_group": producer.name}
        )
    )["items"]
    assert (item["transaction_id"], item["hold_reason"]) == (transaction_id, "answers_exhausted")
    answer = ok(
        producer.api.post(f"/v1/transactions/{transaction_id}/resolve", json={"decision": "commit"})
    )
    assert answer["resolved_by"] == "operator"
    assert producer.look(transaction_id)["late"] is True
    assert seen(producer.api, producer.topic) == 1


def test_the_time_of_the_check_that_was_due_stays_while_held_and_is_gone_once_decided(producer):
    begun_id = producer.begin(max_answers=1, interval_ms=60_000)
    check = producer.one()
    due_at = producer.look(begun_id)["next_check_at"]

    producer.answer(check, "unknown")

    held = producer.look(begun_id)
    assert held["state"] == "held"
    assert producer.receive() == []
    assert producer.look(begun_id)["next_check_at"] == held["next_check_at"] > due_at
    resumed = ok(producer.api.post(f"/v1/transactions/{begun_id}/resume"))
    assert due_at < resumed["next_check_at"] < held["next_check_at"]
    ok(producer.api.post(f"/v1/transactions/{begun_id}/rollback"))
    assert "next_check_at" not in producer.look(begun_id)


def test_a_held_transaction_that_is_resumed_is_asked_from_the_beginning(producer):
    transaction_id = producer.exhaust()

    resumed = ok(producer.api.post(f"/v1/transactions/{transaction_id}/resume"))

    assert (resumed["state"], resumed["answers"]) == ("prepared", 0)
    assert "hold_reason" not in resumed
    check = producer.one()
    assert (check["transaction_id"], check["answer_number"]) == (transaction_id, 1)
    producer.answer(check, "rollback")
    found = producer.look(transaction_id)
    assert (found["state"], found["resolved_by"], found["late"]) == ("rolled_back", "check", True)


def test_on_exhausted_rollback_rolls_back_by_policy(producer):
    transaction_id = producer.exhaust(on_exhausted="rollback")

    found = producer.look(transaction_id)

    assert (found["state"], found["resolved_by"]) == ("rolled_back", "policy")
    assert seen(producer.api, producer.topic) == 0


def test_a_producer_that_nobody_reaches_has_a_clock_of_its_own(producer):
    held = producer.begin(unreachable_limit_ms=10)
    rolled_back = producer.begin(unreachable_limit_ms=10, on_exhausted="rollback")

    found = producer.look(held, wait_ms=WAIT_MS)
    assert (found["state"], found["hold_reason"], found["answers"]) == ("held", "unreachable", 0)
    found = producer.look(rolled_back, wait_ms=WAIT_MS)
    assert (found["state"], found["resolved_by"]) == ("rolled_back", "policy")


def test_a_transaction_says_whether_a_check_is_open_and_its_history_when_each_was_taken(producer):
    transaction_id = producer.begin(interval_ms=86_400_000)
    check = producer.one()
    assert producer.look(transaction_id)["checking"] is True
    producer.answer(check, "unknown", evidence={"row": "none yet"})
    assert producer.look(transaction_id)["checking"] is False
    producer.answer(check, "commit", evidence={"row": "8812"})

    told = ok(producer.api.get(f"/v1/transactions/{transaction_id}/history"))["items"]

    assert [event["event"] for event in told] == [
        *("half_stored", "check_sent", "check_answered", "check_answered", "committed")
    ]
    assert (told[1]["via"], told[1]["attempt"]) == ("poll", 1)
    assert [event["evidence"] for event in told[2:4]] == [{"row": "none yet"}, {"row": "8812"}]


def test_a_check_that_nobody_was_given_cannot_be_answered(producer):
    transaction_id = producer.begin(first_after_ms=86_400_000)

    for number in (1, 2):
        problem = producer.refused({"check_id": f"chk_{number}_{transaction_id}"}, "commit")
        assert problem["code"] == "check_not_open"

    assert producer.look(transaction_id)["state"] == "prepared"


def test_a_late_answer_still_decides_a_held_transaction(producer):
    transaction_id = producer.begin(unreachable_limit_ms=1_000)
    check = producer.one()
    assert producer.look(transaction_id, wait_ms=WAIT_MS)["state"] == "held"

    assert producer.answer(check, "unknown")["state"] == "held"  # decides nothing
    assert producer.answer(check, "commit")["state"] == "committed"

    found = producer.look(transaction_id)
    assert (found["resolved_by"], found["late"]) == ("check", True)


def test_another_groups_check_and_one_that_nobody_made_are_not_open(producer, api, topic):
    producer.begin()
    check = producer.one()
    stranger = Producer(api, topic, f"stranger-to-{topic}")
    stranger.receive()  # makes the group

    assert stranger.refused(check, "commit")["code"] == "check_not_open"
    for made_up in (
        "chk_2_nobody",
        "nonsense",
        "chk_99_" + check["transaction_id"],
        "chk_0_" + check["transaction_id"],
        "ä",
    ):
        assert producer.refused({"check_id": made_up}, "commit")["code"] == "check_not_open"
    assert producer.look(check["transaction_id"])["state"] == "prepared"


def test_some_answers_may_be_refused_while_others_are_taken(producer):
    ids = {producer.begin() for _ in range(3)}
    checks: list[dict[str, Any]] = []
    until(
        lambda: checks.extend(producer.receive(wait_ms=100)) or len(checks) == 3,
        "three checks are due",
    )
    ok(producer.api.post(f"/v1/transactions/{checks[1]['transaction_id']}/rollback"))

    answer = ok(
        producer.answers(
            *({"check_id": check["check_id"], "decision": "commit"} for check in checks)
        ),
        207,
    )

    assert {check["transaction_id"] for check in checks} == ids
    assert (answer["accepted"], answer["rejected"]) == (2, 1)
    assert [result["status"] for result in answer["results"]] == [200, 409, 200]
    assert [result.get("state") for result in answer["results"]] == ["committed", None, "committed"]
    assert answer["results"][1]["problem"]["context"] == {
        "state": "rolled_back",
        "resolved_by": "producer",
    }


def test_a_decision_word_that_is_none_refuses_the_whole_body(producer):
    transaction_id = producer.begin()
    check = producer.one()
    answers = [
        {"check_id": check["check_id"], "decision": "commit"},
        {"check_id": check["check_id"], "decision": "comit"},
    ]

    assert_problem(producer.answers(*answers), 422, "validation_failed", "/answers/1/decision")

    assert producer.look(transaction_id)["state"] == "prepared"


def test_a_group_that_nobody_has_made_may_wait_for_checks_but_not_answer_them(api, topic):
    nobody = Producer(api, topic, f"nobody-{topic}")
    assert_problem(
        nobody.answers({"check_id": "chk_1_x", "decision": "commit"}),
        404,
        "producer_group_not_found",
    )

    assert nobody.receive() == []

    assert ok(api.get(f"/v1/producer-groups/{nobody.name}"))["check_mode"] == "poll"


def test_receive_takes_no_body_and_hands_out_as_many_as_are_wanted(producer):
    for _ in range(3):
        producer.begin()
    until(
        lambda: ok(
            producer.api.get(
                "/v1/transactions", params={"producer_group": producer.name, "older_than_ms": 200}
            )
        )["items"][2:],
        "all three are old enough to be asked about",
    )

    two = producer.receive(max_checks=2)
    rest = ok(producer.api.post(f"/v1/producer-groups/{producer.name}/checks/receive"))["checks"]

    assert len(two) == 2
    assert len(rest) == 1
    assert not {check["check_id"] for check in two} & {check["check_id"] for check in rest}


def test_counts_and_open_checks_survive_kill_9(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        producer = Producer(api, "orders", "shop")
        counted, held = producer.begin(max_answers=3), producer.begin(max_answers=1)
        first = {
            check["transaction_id"]: check
            for check in (producer.one(lease_ms=60_000), producer.one(lease_ms=60_000))
        }
        producer.answer(first[counted], "unknown", recheck_after_ms=0)
        producer.answer(first[held], "unknown")
        second = producer.one(lease_ms=60_000)
        server.kill()

        server.start()
        found = producer.look(counted)
        assert (found["state"], found["answers"], found["last_answer"]) == (
            "prepared",
            1,
            "unknown",
        )
        assert producer.look(held)["hold_reason"] == "answers_exhausted"
        assert producer.one(lease_ms=60_000)["check_id"] == second["check_id"]
        assert producer.answer(second, "commit")["state"] == "committed"
