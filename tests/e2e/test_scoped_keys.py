"""Keys that may do some things only: what each is refused, and what it gets."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

import app.main  # noqa: F401 - it declares all operations
from app.http.access import SCOPES
from app.operations import OPERATIONS, Operation
from tests.support.http import assert_problem, ok
from tests.support.server import Server

FULL = "the key of the operator"
SHOP = "the key of the shop"
KEYS = [
    *({"name": scope, "key": f"a key for {scope}", "scopes": [scope]} for scope in SCOPES),
    {
        "name": "shop",
        "key": SHOP,
        "scopes": list(SCOPES),
        "topics": ["orders", "orders.*"],
        "groups": ["shop*"],
    },
]
OWN = {"topic": "orders", "group": "shop", "producer_group": "shop"}
FOREIGN = {"topic": "salaries", "group": "payroll", "producer_group": "payroll"}


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Server]:
    environment = {
        "ESCROWMQ_API_KEYS": json.dumps([FULL]),
        "ESCROWMQ_SCOPED_KEYS": json.dumps(KEYS),
        "ESCROWMQ_TESTING__ENABLED": "true",
    }
    directory = tmp_path_factory.mktemp("keys")
    with Server(directory / "data", environment=environment) as server:
        yield server


@pytest.fixture
def shop(service) -> Iterator[httpx.Client]:
    """With the key for some topics and groups."""
    with of(service, SHOP) as client:
        yield client


@pytest.fixture
def operator(service) -> Iterator[httpx.Client]:
    with of(service, FULL) as client:
        yield client


def of(service: Server, key: str) -> httpx.Client:
    return service.client(headers={"Authorization": f"Bearer {key}"})


def ask(
    client: httpx.Client, operation: Operation, parts: Mapping[str, str] = {}, **given: Any
) -> httpx.Response:
    """Send the request of an operation, with its example where no body is given."""
    named = {name: "0" if name == "queue_id" else "some" for name in operation.path_parts}
    path = operation.path.format(**{**named, **parts})
    if operation.body is not None:
        given.setdefault("json", operation.example)
    return client.request(operation.method, path, **given)


def begin(client: httpx.Client, names: Mapping[str, str]) -> httpx.Response:
    message = {"topic": names["topic"], "message": {"payload": "x"}}
    body = {"producer_group": names["producer_group"], "messages": [message]}
    return client.post("/v1/transactions", json=body)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_is_refused_every_operation_for_which_it_lacks_the_scope(service, scope):
    with of(service, f"a key for {scope}") as client:
        lacking = [one for one in OPERATIONS.values() if scope not in one.scopes]
        for operation in lacking:
            answer = ask(client, operation)

            problem = assert_problem(answer, 403, "forbidden")
            assert problem["context"] == {"scope": operation.scopes[0]}, operation.operation_id
        assert lacking


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_gets_what_its_scope_is_for(service, operator, scope):
    operator.post("/v1/topics", json={"topic": "orders"})
    allowed = {
        "send": ("POST", "/v1/topics/orders/messages", {"payload": "x"}),
        "receive": ("PUT", "/v1/groups/readers", {"topics": [{"topic": "orders"}]}),
        "transact": ("PUT", "/v1/producer-groups/writers", {}),
        "operate": ("GET", "/v1/groups", None),
        "audit": ("GET", "/v1/audit/segments", None),
        "admin": ("GET", "/v1/admin/store", None),
    }
    method, path, body = allowed[scope]
    with of(service, f"a key for {scope}") as client:
        answer = client.request(method, path, json=body)
        found = ok(client.get("/v1/whoami"))

    assert answer.is_success, answer.text
    assert found == {
        "authenticated": True,
        "namespace": "default",
        "key": scope,
        "scopes": [scope],
        "topics": ["*"],
        "groups": ["*"],
    }


def test_a_key_for_some_topics_and_groups_is_refused_the_others_in_every_path(shop):
    checked = 0
    for operation in OPERATIONS.values():
        kinds = [name for name in operation.path_parts if name in FOREIGN]
        if kinds:
            answer = ask(shop, operation, FOREIGN)

            kind = "topic" if kinds[0] == "topic" else "group"
            problem = assert_problem(answer, 403, "forbidden")
            assert problem["context"] == {kind: FOREIGN[kind]}, operation.operation_id
            checked += 1
    assert checked > 40


def test_a_key_for_some_topics_and_groups_is_refused_what_is_about_the_whole_service(shop):
    checked = 0
    for operation in OPERATIONS.values():
        names_one = any(name in FOREIGN for name in operation.path_parts)
        if not names_one and not operation.checks_access and list(operation.scopes) != list(SCOPES):
            problem = assert_problem(ask(shop, operation), 403, "forbidden")
            assert problem["context"] == {}, operation.operation_id
            checked += 1
    assert checked > 20


def test_a_key_for_some_topics_and_groups_is_refused_what_others_have(shop, operator):
    """By the ids of what they have, in the body, and in the query: a request for each operation
    whose path does not say whom it is about.
    """
    operator.post("/v1/topics", json={"topic": "salaries"})
    begun = ok(begin(operator, FOREIGN), 201)["transaction_id"]
    transaction = {"transaction_id": begun}
    sent = ok(operator.post("/v1/topics/salaries/messages", json={"payload": "x"}), 201)
    message = {"message_id": sent["message_id"]}
    delayed = ok(
        operator.post("/v1/topics/salaries/messages", json={"payload": "x", "delay_ms": 600_000}),
        201,
    )
    schedule = {"schedule_id": delayed["schedule_id"]}
    cron = {"cron": "0 9 * * *", "topic": "salaries", "message": {"payload": "x"}}
    cron_schedule = {
        "schedule_id": ok(operator.post("/v1/schedules", json=cron), 201)["schedule_id"]
    }
    asked = ok(
        operator.post("/v1/topics/salaries/requests", json={"message": {"payload": "x"}}), 202
    )
    request = {"request_id": asked["request_id"]}
    ok(operator.put("/v1/groups/payroll", json={"topics": [{"topic": "salaries"}]}), 201)
    redrive = operator.post("/v1/groups/payroll/dead-letters/redrive", json={"select": "all"})
    task = {"task_id": ok(redrive, 202)["task_id"]}
    subscribed = {"topics": [{"topic": "orders"}, {"topic": "salaries"}]}
    decided = (
        "getTransaction", "getTransactionHistory", "explainTransaction", "commitTransaction",
        "rollbackTransaction", "checkTransaction", "resolveTransaction", "resumeTransaction",
    )  # fmt: skip
    looked_up = ("getMessage", "getMessagePayload", "getMessageTrace")
    scheduled = ("getSchedule", "listOccurrences", "rescheduleMessage", "cancelSchedule")
    with_id = {
        **dict.fromkeys(decided, (transaction,)),
        **dict.fromkeys(looked_up, (message, {"message_id": delayed["message_id"]})),
        **dict.fromkeys(("getRequest", "cancelRequest", "replyToRequest"), (request,)),
        **dict.fromkeys(scheduled, (schedule, cron_schedule)),
        **dict.fromkeys(("getTask", "cancelTask"), (task,)),
    }
    without: dict[str, list[dict[str, Any]]] = {
        "beginTransaction": [
            {"json": _transaction("orders", "payroll")},
            {"json": _transaction("salaries", "shop")},
        ],
        "queryMessages": [
            {"params": {"topic": "salaries", "key": "k"}},
            {"params": {"log_offset": sent["log_offset"]}},
        ],
        "createSchedule": [{"json": cron}],
        "listSchedules": [{}, {"params": {"topic": "salaries"}}],
        "putGroup": [{"json": subscribed}],
    }
    lists = {"listTopics", "listGroups", "listTransactions", "listTasks"}

    for operation in OPERATIONS.values():
        if operation.checks_access and operation.operation_id not in lists:
            asked_for = [(parts, {}) for parts in with_id.get(operation.operation_id, ())]
            asked_for += [(OWN, given) for given in without.get(operation.operation_id, ())]
            assert asked_for, f"{operation.operation_id} has no request here"
            for parts, given in asked_for:
                problem = assert_problem(ask(shop, operation, parts, **given), 403, "forbidden")
                assert set(problem["context"].values()) <= {"salaries", "payroll"}

    assert ok(operator.get(f"/v1/transactions/{begun}"))["state"] == "prepared"
    assert ok(operator.get(f"/v1/schedules/{schedule['schedule_id']}"))["state"] == "scheduled"
    assert ok(operator.get(f"/v1/requests/{request['request_id']}"))["state"] == "pending"


def _transaction(topic: str, group: str) -> dict[str, Any]:
    message = {"topic": topic, "message": {"payload": "x"}}
    return {"producer_group": group, "messages": [message]}


def test_a_key_for_some_topics_and_groups_lists_what_is_theirs(shop, operator):
    for names in (OWN, FOREIGN):
        operator.post("/v1/topics", json={"topic": names["topic"]})
        operator.put(f"/v1/groups/{names['group']}", json={"topics": [{"topic": names["topic"]}]})
        ok(begin(operator, names), 201)
        operator.post(f"/v1/groups/{names['group']}/dead-letters/redrive", json={"select": "all"})

    def found(client: httpx.Client, path: str, field: str) -> set[str]:
        return {one[field] for one in ok(client.get(path))["items"]}

    for path, field, own, foreign in (
        ("/v1/topics", "topic", "orders", "salaries"),
        ("/v1/groups", "group", "shop", "payroll"),
        ("/v1/transactions", "producer_group", "shop", "payroll"),
        ("/v1/tasks", "group", "shop", "payroll"),
    ):
        assert found(shop, path, field) == {own}, path
        assert found(operator, path, field) >= {own, foreign}, path


def test_a_key_for_some_topics_and_groups_does_its_work(shop):
    ok(shop.put("/v1/topics/orders.paid", json={}), 201)
    ok(shop.put("/v1/groups/shop-billing", json={"topics": [{"topic": "orders.paid"}]}), 201)
    names = {"topic": "orders.paid", "producer_group": "shop"}
    begun = ok(begin(shop, names), 201)
    ok(shop.post(f"/v1/transactions/{begun['transaction_id']}/commit"))
    (received,) = ok(shop.post("/v1/groups/shop-billing/receive", json={"wait_ms": 5_000}))[
        "messages"
    ]
    entry = {"receipt_handle": received["receipt_handle"]}
    acknowledged = ok(shop.post("/v1/groups/shop-billing/ack", json={"entries": [entry]}))
    found = ok(shop.get(f"/v1/messages/{received['message_id']}/trace"))

    assert acknowledged["results"][0]["status"] == 200
    assert found["topic"] == "orders.paid"
    assert [group["group"] for group in found["groups"]] == ["shop-billing"]


def test_a_trace_shows_only_the_groups_that_the_key_is_for(shop, operator):
    ok(operator.put("/v1/topics/orders.sent", json={}), 201)
    for group in ("shop-a", "payroll-a"):
        ok(operator.put(f"/v1/groups/{group}", json={"topics": [{"topic": "orders.sent"}]}), 201)
    sent = ok(operator.post("/v1/topics/orders.sent/messages", json={"payload": "x"}), 201)
    for group in ("shop-a", "payroll-a"):
        ok(operator.post(f"/v1/groups/{group}/receive", json={"wait_ms": 5_000}))
    path = f"/v1/messages/{sent['message_id']}/trace"

    def groups(client: httpx.Client) -> set[str]:
        trace = ok(client.get(path))
        return {one["group"] for one in [*trace["groups"], *trace["items"]] if "group" in one}

    assert groups(operator) == {"shop-a", "payroll-a"}
    assert groups(shop) == {"shop-a"}


def test_the_handle_of_another_group_settles_nothing(shop, operator):
    ok(operator.put("/v1/topics/salaries.due", json={}), 201)
    ok(operator.put("/v1/groups/payroll-b", json={"topics": [{"topic": "salaries.due"}]}), 201)
    ok(operator.put("/v1/groups/shop-b", json={"topics": [{"topic": "salaries.due"}]}), 201)
    ok(operator.post("/v1/topics/salaries.due/messages", json={"payload": "x"}), 201)
    (received,) = ok(operator.post("/v1/groups/payroll-b/receive", json={"wait_ms": 5_000}))[
        "messages"
    ]
    entry = {"receipt_handle": received["receipt_handle"]}

    refused = ok(shop.post("/v1/groups/shop-b/ack", json={"entries": [entry]}), 207)

    assert (refused["accepted"], refused["rejected"]) == (0, 1)
    assert len(ok(operator.get("/v1/groups/payroll-b/leases"))["items"]) == 1


def test_the_controls_for_tests_need_a_key_that_may_do_everything(service, shop, operator):
    assert ok(operator.get("/v1/dev/clock"))["ahead_ms"] == 0
    assert_problem(shop.get("/v1/dev/clock"), 403, "forbidden")
    with of(service, "a key for send") as client:
        assert_problem(client.post("/v1/dev/clock/advance", json={"by_ms": 1}), 403, "forbidden")


def test_a_service_with_scoped_keys_alone_asks_for_a_key_and_may_leave_loopback(tmp_path):
    keys = {"ESCROWMQ_SCOPED_KEYS": json.dumps(KEYS)}
    with Server(tmp_path / "data", "--host", "0.0.0.0", environment=keys) as server:
        with server.client() as client:
            assert_problem(client.get("/v1/whoami"), 401, "unauthenticated")
        with of(server, SHOP) as client:
            assert ok(client.get("/v1/whoami"))["key"] == "shop"
        log = server.log()

    assert not [one["key"] for one in KEYS if one["key"] in log]
