"""Begin, commit, roll back, resolve, list: what a producer is promised, over HTTP on a real
service.
"""

import threading

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server


def begin(api: httpx.Client, *topics: str, **fields) -> dict:
    messages = fields.pop("messages", None) or [
        {"topic": topic, "message": {"json": {"in": topic}}} for topic in topics
    ]
    return ok(
        api.post(
            "/v1/transactions", json={"producer_group": "shop", "messages": messages, **fields}
        ),
        201,
    )


def pull(api: httpx.Client, topic: str, queue: int = 0, **query) -> dict:
    return ok(api.get(f"/v1/topics/{topic}/queues/{queue}/messages", params=query))


def path_of(transaction: dict, verb: str = "") -> str:
    return f"/v1/transactions/{transaction['transaction_id']}{verb}"


def test_a_transaction_survives_kill_9_between_its_begin_and_its_commit_and_after_it(tmp_path):
    with Server(tmp_path / "data") as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        begun = begin(
            api,
            messages=[{"topic": "orders", "message": {"key": "8812", "json": {"order_id": 8812}}}],
        )
        rolled_back = begin(api, "orders")
        ok(api.post(path_of(rolled_back, "/rollback")))
        server.kill()

        server.start()
        assert pull(api, "orders")["messages"] == []
        assert ok(api.get(path_of(begun)))["state"] == "prepared"
        committed = ok(api.post(path_of(begun, "/commit")))
        server.kill()

        server.start()
        assert ok(api.get(path_of(begun)))["messages"] == committed["messages"]
        assert ok(api.post(path_of(begun, "/commit"))) == committed | {"replayed": True}
        assert_problem(api.post(path_of(begun, "/rollback")), 409, "transaction_already_resolved")
        assert ok(api.get(path_of(rolled_back)))["state"] == "rolled_back"
        (message,) = pull(api, "orders")["messages"]
        assert (message["key"], message["payload"]) == ("8812", '{"order_id":8812}')
        assert (
            message["message_id"]
            == begun["messages"][0]["message_id"]
            == committed["messages"][0]["message_id"]
        )


def test_a_begin_is_answered_with_everything_that_is_known(api, topic):
    answer = api.post(
        "/v1/transactions",
        json={
            "producer_group": "shop",
            "business_key": "order-8812",
            "messages": [{"topic": topic, "message": {"key": "8812", "json": {"order_id": 8812}}}],
            "check": {
                "first_after_ms": 10_000,
                "interval_ms": 30_000,
                "max_answers": 15,
                "unreachable_limit_ms": 86_400_000,
                "on_exhausted": "hold",
            },
        },
    )

    body = ok(answer, 201)
    assert answer.headers["location"] == path_of(body)
    assert 0 <= float(answer.headers["store-pressure"]) <= 1
    assert body["transaction_id"].startswith("txn_")
    assert (body["state"], body["producer_group"], body["business_key"]) == (
        "prepared",
        "shop",
        "order-8812",
    )
    assert (body["answers"], body["late"], body["revision"]) == (0, False, 1)
    assert [message["topic"] for message in body["messages"]] == [topic]
    assert body["messages"][0].keys() == {"message_id", "topic"}
    assert body["prepared_at"] < body["first_check_at"] == body["next_check_at"]
    assert ok(api.get(answer.headers["location"])) == body


def test_nobody_sees_the_messages_before_the_commit_and_everybody_after_it(api, make_topic):
    first, second = make_topic(), make_topic()
    begun = begin(api, first, second, first)
    assert pull(api, first)["result"] == pull(api, second)["result"] == "no_new_message"
    assert pull(api, first)["max_offset"] == 0

    committed = ok(api.post(path_of(begun, "/commit")))

    assert committed["state"] == "committed"
    assert committed["resolved_by"] == "producer"
    assert committed["replayed"] is False
    places = [
        (message["topic"], message["queue_id"], message["queue_offset"])
        for message in committed["messages"]
    ]
    assert places == [(first, 0, 0), (second, 0, 0), (first, 0, 1)]
    ids = [message["message_id"] for message in begun["messages"]]
    assert [message["message_id"] for message in pull(api, first)["messages"]] == [ids[0], ids[2]]
    assert [message["message_id"] for message in pull(api, second)["messages"]] == [ids[1]]
    seen = ok(api.get(path_of(begun)))
    assert seen["messages"] == committed["messages"]
    assert "next_check_at" not in seen
    assert (seen["resolved_by"], seen["resolved_at"]) == ("producer", committed["resolved_at"])


def test_a_rolled_back_message_is_never_seen_and_the_reason_is_kept(api, topic):
    begun = begin(api, topic)

    answer = ok(api.post(path_of(begun, "/rollback"), json={"reason": "payment refused"}))

    assert (answer["state"], answer["reason"], answer["replayed"]) == (
        "rolled_back",
        "payment refused",
        False,
    )
    assert answer["messages"] == begun["messages"]
    assert ok(api.get(path_of(begun)))["reason"] == "payment refused"
    assert pull(api, topic)["messages"] == []


@pytest.mark.parametrize(("first", "second"), [("commit", "rollback"), ("rollback", "commit")])
def test_the_first_decision_wins(api, topic, first, second):
    begun = begin(api, topic)
    state = ok(api.post(path_of(begun, f"/{first}")))["state"]

    assert ok(api.post(path_of(begun, f"/{first}")))["replayed"] is True
    problem = assert_problem(
        api.post(path_of(begun, f"/{second}")), 409, "transaction_already_resolved"
    )
    assert problem["context"] == {"state": state, "resolved_by": "producer"}
    assert problem["retryable"] is False
    assert_problem(api.post(path_of(begun, "/resume")), 409, "transaction_already_resolved")
    assert_problem(
        api.post(path_of(begun, "/resolve"), json={"decision": second}),
        409,
        "transaction_already_resolved",
    )
    assert ok(api.post(path_of(begun, "/resolve"), json={"decision": first}))["replayed"] is True
    assert len(pull(api, topic)["messages"]) == (first == "commit")


def test_two_hundred_commits_and_rollbacks_at_once_agree_on_one_decision(server, api, topic):
    begun = begin(api, topic)
    with server.client() as other:
        clients = [api, other]
        outcomes: list[tuple[str, int, dict]] = []

        def decide(number: int) -> None:
            verb = ("commit", "rollback")[number % 2]
            answer = clients[number % 2].post(path_of(begun, f"/{verb}"))
            outcomes.append((verb, answer.status_code, answer.json()))

        threads = [
            threading.Thread(target=lambda start=start: [decide(n) for n in range(start, 200, 10)])
            for start in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    winners = {verb for verb, status, _ in outcomes if status == 200}
    assert len(outcomes) == 200
    assert len(winners) == 1
    assert [body["replayed"] for _, status, body in outcomes if status == 200].count(False) == 1
    assert {status for _, status, _ in outcomes} == {200, 409}
    assert len(pull(api, topic)["messages"]) == (winners == {"commit"})


def test_an_operator_decides_with_a_reason(api, topic):
    begun = begin(api, topic)

    answer = ok(
        api.post(path_of(begun, "/resolve"), json={"decision": "commit", "reason": "INC-311"})
    )

    assert (answer["state"], answer["resolved_by"], answer["reason"]) == (
        "committed",
        "operator",
        "INC-311",
    )
    assert len(pull(api, topic)["messages"]) == 1


def test_resuming_a_prepared_transaction_changes_nothing(api, topic):
    begun = begin(api, topic)

    assert ok(api.post(path_of(begun, "/resume"))) == begun


def test_the_caller_may_choose_the_id(api, topic, server):
    begun = begin(api, topic, transaction_id=f"order-{topic}")
    assert begun["transaction_id"] == f"order-{topic}"

    again = {
        "transaction_id": f"order-{topic}",
        "producer_group": "shop",
        "messages": [{"topic": topic, "message": {"payload": "x"}}],
    }
    for state in ("prepared", "committed"):
        refused = api.post("/v1/transactions", json=again)
        assert_problem(refused, 409, "transaction_exists")
        assert refused.json()["context"] == {"transaction_id": f"order-{topic}", "state": state}
        ok(api.post(path_of(begun, "/commit")))


def test_the_names_that_are_reserved_for_topics_are_free_for_transactions(api, topic):
    assert (
        begin(api, topic, transaction_id=f"rmq_sys_{topic}")["transaction_id"] == f"rmq_sys_{topic}"
    )


def test_what_does_not_exist_is_404_on_every_verb(api):
    unknown = {"transaction_id": "txn_nobody"}
    assert_problem(api.get(path_of(unknown)), 404, "transaction_not_found")
    assert_problem(api.post(path_of(unknown, "/commit")), 404, "transaction_not_found")
    assert_problem(api.post(path_of(unknown, "/rollback")), 404, "transaction_not_found")
    assert_problem(api.post(path_of(unknown, "/resume")), 404, "transaction_not_found")
    assert_problem(
        api.post(path_of(unknown, "/resolve"), json={"decision": "commit"}),
        404,
        "transaction_not_found",
    )


def test_a_refused_begin_leaves_nothing_behind(api, topic):
    group = f"never-{topic}"
    body = {
        "producer_group": group,
        "messages": [
            {"topic": topic, "message": {"payload": "x"}},
            {"topic": "nowhere", "message": {"payload": "x"}},
        ],
    }

    assert_problem(
        api.post("/v1/transactions", json=body), 404, "topic_not_found", "/messages/1/topic"
    )

    assert_problem(api.get(f"/v1/producer-groups/{group}"), 404, "producer_group_not_found")
    assert ok(api.get("/v1/transactions", params={"producer_group": group}))["items"] == []


def test_a_producer_group_is_made_by_the_first_begin_that_names_it(api, topic):
    group = f"fresh-{topic}"
    begin(api, topic, producer_group=group)

    assert ok(api.get(f"/v1/producer-groups/{group}"))["check_mode"] == "poll"


def test_a_thousand_messages_are_one_transaction_and_one_more_is_too_many(api, topic):
    messages = [{"topic": topic, "message": {"json": number}} for number in range(1_001)]
    body = {"producer_group": "shop", "messages": messages}
    assert_problem(api.post("/v1/transactions", json=body), 422, "validation_failed", "/messages")

    begun = begin(api, messages=messages[:1_000])
    assert pull(api, topic)["max_offset"] == 0
    committed = ok(api.post(path_of(begun, "/commit")))

    assert [message["queue_offset"] for message in committed["messages"]] == list(range(1_000))
    page = pull(api, topic, max_messages=1_000)
    assert [message["payload"] for message in page["messages"]] == [
        str(number) for number in range(1_000)
    ]


def test_a_message_keeps_its_attributes_through_a_transaction(api, make_topic):
    topic = make_topic(queues=4)
    message = {
        "payload": "AAEC/w==",
        "payload_encoding": "base64",
        "content_type": "image/png",
        "key": "k",
        "tag": "t",
        "ordering_key": "o",
        "queue_id": 3,
        "properties": {"empty": "", "name": "wert ä"},
    }
    begun = begin(api, messages=[{"topic": topic, "message": message}])
    ok(api.post(path_of(begun, "/commit")))

    (seen,) = pull(api, topic, queue=3)["messages"]

    assert {name: seen[name] for name in message} == message
    assert seen["message_id"] == begun["messages"][0]["message_id"]
    assert seen["topic"] == topic
    assert seen["born_at"] <= seen["stored_at"]


# --------------------------------------------------------------------------------------------------
# lists


def test_a_list_can_be_narrowed_by_state_group_and_age(api, topic):
    group = f"list-{topic}"
    open_one, committed, rolled_back = (
        begin(api, topic, producer_group=group, business_key=f"b{n}") for n in range(3)
    )
    ok(api.post(path_of(committed, "/commit")))
    ok(api.post(path_of(rolled_back, "/rollback")))

    def listed(**query) -> list[str]:
        items = ok(api.get("/v1/transactions", params={"producer_group": group, **query}))["items"]
        return [item["transaction_id"] for item in items]

    ids = [one["transaction_id"] for one in (open_one, committed, rolled_back)]
    assert listed() == ids
    assert listed(state="prepared,held") == ids[:1]
    assert listed(state="committed") == ids[1:2]
    assert listed(state="rolled_back, committed") == ids[1:]
    assert listed(older_than_ms=3_600_000) == []
    assert until(lambda: listed(older_than_ms=1) == ids, "all three are older than a millisecond")
    (item,) = ok(
        api.get("/v1/transactions", params={"producer_group": group, "state": "prepared"})
    )["items"]
    assert item.keys() == {
        "transaction_id",
        "state",
        "producer_group",
        "business_key",
        "prepared_at",
        "age_ms",
        "answers",
    }
    assert item["age_ms"] >= 0


def test_a_list_of_a_business_key_goes_with_the_other_filters_and_with_pages(api, topic):
    group, key = f"keyed-{topic}", f"order {topic}/ü"
    ids = [
        begin(api, topic, producer_group=group, business_key=key)["transaction_id"]
        for _ in range(4)
    ]
    begin(api, topic, producer_group=f"other-{group}", business_key=key)
    begin(api, topic, producer_group=group, business_key=f"{key}x")
    begin(api, topic, producer_group=group)
    ok(api.post(f"/v1/transactions/{ids[0]}/commit"))
    ok(api.post(f"/v1/transactions/{ids[2]}/rollback"))

    def page(**query) -> tuple[list[str], str | None]:
        found = ok(api.get("/v1/transactions", params={"business_key": key, **query}))
        return [item["transaction_id"] for item in found["items"]], found.get("next_page_token")

    assert len(page()[0]) == 5
    assert page(producer_group=group) == (ids, None)
    assert page(producer_group=group, state="prepared") == ([ids[1], ids[3]], None)
    assert page(producer_group=group, state="committed,rolled_back")[0] == [ids[0], ids[2]]
    assert page(older_than_ms=3_600_000) == ([], None)
    first, token = page(producer_group=group, page_size=3)
    assert (first, page(producer_group=group, page_size=3, page_token=token)) == (
        ids[:3],
        (ids[3:], None),
    )
    assert page(producer_group=group, page_size=4) == (ids, None)
    assert page(business_key=key.removesuffix("ü")) == ([], None)
    assert_problem(
        api.get("/v1/transactions", params={"business_key": ""}),
        422,
        "validation_failed",
        "/query/business_key",
    )


def test_a_list_of_a_business_key_goes_on_with_what_only_the_log_has(tmp_path):
    environment = {"ESCROWMQ_TXN__DECIDED_KEPT": "2"}
    with Server(tmp_path / "data", environment=environment) as server, server.client() as api:
        ids = [
            begin(api, "orders", producer_group="shop", business_key="order-8812")["transaction_id"]
            for _ in range(6)
        ]
        for one in ids[:5]:
            ok(api.post(f"/v1/transactions/{one}/commit"))

        def pages(size: int) -> list[list[str]]:
            query, found = {"business_key": "order-8812", "page_size": size}, []
            while True:
                page = ok(api.get("/v1/transactions", params=query))
                found.append([item["transaction_id"] for item in page["items"]])
                if "next_page_token" not in page:
                    return found
                query["page_token"] = page["next_page_token"]

        expected = [ids[3], ids[4], ids[5], ids[2], ids[1], ids[0]]
        for _ in range(2):
            for size in (1, 2, 3, 4, 100):
                found = pages(size)
                assert [one for page in found for one in page] == expected
                assert len(found) == -(-len(expected) // size)
            assert server.terminate() == 0
            server.start()
        token = ok(
            api.get("/v1/transactions", params={"business_key": "order-8812", "page_size": 4})
        )["next_page_token"]
        refused = api.get("/v1/transactions", params={"page_token": token})
        assert_problem(refused, 400, "invalid_page_token")


def test_pages_cover_the_list_without_gap_or_double_although_it_changes_meanwhile(api, topic):
    group = f"pages-{topic}"
    ids = [begin(api, topic, producer_group=group)["transaction_id"] for _ in range(7)]
    seen = []
    query = {"producer_group": group, "page_size": 3}
    page = ok(api.get("/v1/transactions", params=query))
    seen += [item["transaction_id"] for item in page["items"]]
    ok(api.post(f"/v1/transactions/{ids[0]}/commit"))
    ids.append(begin(api, topic, producer_group=group)["transaction_id"])
    while "next_page_token" in page:
        page = ok(
            api.get("/v1/transactions", params=query | {"page_token": page["next_page_token"]})
        )
        seen += [item["transaction_id"] for item in page["items"]]

    assert seen == ids


def test_a_transaction_can_be_looked_at_as_it_stood(api, topic):
    begun = begin(api, topic)
    path = path_of(begun)
    until(lambda: "begun 0 ms ago" not in api.get(f"{path}/explain").text, "time goes on")
    decided = ok(api.post(f"{path}/rollback", json={"reason": "payment refused"}))

    before = ok(api.get(path, params={"as_of": begun["prepared_at"]}))
    after = ok(api.get(path, params={"as_of": decided["resolved_at"]}))
    # the past changes no more: there is nothing to wait for
    at_once = api.get(path, params={"as_of": begun["prepared_at"], "wait_ms": 20_000}, timeout=10)

    assert before == begun == ok(at_once)
    assert after == ok(api.get(path))
    assert (after["state"], after["reason"]) == ("rolled_back", "payment refused")


def test_before_its_begin_a_transaction_does_not_exist_and_nobody_looks_into_the_future(api, topic):
    path = path_of(begin(api, topic))

    early = assert_problem(
        api.get(path, params={"as_of": "2020-01-01T00:00:00Z"}), 404, "transaction_not_found"
    )

    assert "was begun after that time" in early["detail"]
    for parameters in (
        {"as_of": "2999-01-01T00:00:00Z"},
        {"as_of": "yesterday"},
    ):
        assert_problem(api.get(path, params=parameters), 422, "validation_failed", "/query/as_of")
    nobody = assert_problem(
        api.get("/v1/transactions/nobody", params={"as_of": "2020-01-01T00:00:00Z"}),
        404,
        "transaction_not_found",
    )
    assert "does not exist" in nobody["detail"]
