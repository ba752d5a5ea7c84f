"""C14: whatever comes over HTTP is answered as the document says, and never with a 5xx that it does
not explain.

Two fuzzers: one that knows the OpenAPI document and keeps or breaks its rules, against a real
service and against the ASGI application under plain uvicorn; and one that spoils the bytes of
honest requests. At the end of the second one the books are balanced: what was acknowledged is
there, and nothing else.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response, SerializationContext
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.problems import PROBLEMS
from tests.fault.campaign_size import sized
from tests.fault.spoiled_bytes import ENVIRONMENT, Fuzzer
from tests.support import report_program
from tests.support.http import ok, until
from tests.support.server import AsgiServer, Server

pytestmark = pytest.mark.faults

DOCUMENT = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text("utf-8"))
OPERATIONS = {
    operation["operationId"]: operation
    for path in DOCUMENT["paths"].values()
    for operation in path.values()
}
CASES = sized(ci=15, full=250)  # of each operation
HONEST_CASES = CASES // 5  # of each operation and thing that exists, on top of them
MOST_ROUNDS = 20  # of them, where nothing was taken in the first
HOW = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
SPOILED = sized(ci=1_000, full=50_000)
SPOILED_SHARDS = 2

# What exists, so that not every request ends with a 404; anything else is made up.
EXISTING = {
    "topic": ["orders"],
    "queue_id": [0, 1],
    "group": ["billing", "pushed"],
    "producer_group": ["shop", "asked"],
    "node": ["shop-1"],
    "node_group": ["escrowmq"],
}
# What such a field may say, so that not every honest request is about something made up.
KNOWN_VALUES = {
    "topic": "orders",
    "queue_id": 0,
    "offset": 0,
    "cron": "0 6 * * 1-5",
    "time_zone": "Europe/Berlin",
}
CHANGED = "changed"  # a topic that nobody sends to: after a change it may take next to nothing
DELETED = "deleted"  # the topic that deleteTopic is asked about
# Lines about the machine: a disk or a processor that others use, too.
OF_THE_MACHINE = {"sync_is_slow", "sync_was_slow", "event_loop_stands_still", "event_loop_goes_on"}
# of a group that is asked by webhook; nobody is there, and no transaction of the group either
RECEIVER = "127.0.0.1:9"
OPEN_TRANSACTIONS = 4  # begun for each operation anew: each decides some
OPEN_SCHEDULES = 2
OPEN_REPORTS = 2
OPEN_MEMBERS = 2
# what members do: a group with members is used in no other way
OF_MEMBERS = {"heartbeatMember", "leaveGroup", "lockQueues", "unlockQueues"}
# a generated event is none: its attributes are headers that say nothing
EVENT = {"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/shop", "Ce-Type": "paid"}
ENDLESS = {"streamMessages"}  # asked for its head alone, which is refused in the same way
LONGEST_WAIT_MS = 20
CONFIG = {
    "checks": {
        "not_a_server_error": {
            "expected-statuses": ["200", "201", "202", "204", "206", "207", "4xx", "501", "504"]
        },  # 501: what this release does not offer
        # 207: refused entry by entry
        "negative_data_rejection": {"expected-statuses": ["207", "4xx", "501"]},
    }
}


def every_refusal_is_a_problem(_: CheckContext, answer: Response, case: Case) -> None:
    """With all its parts: the document leaves out of the schema what a problem inside of an answer
    does not have.
    """
    if answer.status_code < 400:
        return
    problem = answer.json()
    kind = PROBLEMS[problem["code"]]
    listed = case.operation.definition.raw["x-problems"]
    assert problem["code"] in listed[str(answer.status_code)]
    assert (problem["status"], problem["type"]) == (kind.status, f"/problems/{problem['code']}")
    assert (problem["title"], problem["retryable"]) == (kind.title, kind.retryable)
    assert problem["status"] == answer.status_code
    assert [problem["request_id"]] == answer.headers["request-id"]
    assert problem["instance"].startswith("/")
    assert problem["detail"]


@schemathesis.serializer("application/x-ndjson")
def as_bytes(_: SerializationContext, value: Any) -> bytes:
    """Whatever is generated is a line, or several."""
    return value if isinstance(value, bytes) else str(value).encode()


def a_broken_request_is_refused(context: CheckContext, answer: Response, case: Case) -> bool | None:
    """An optional body that is left out breaks nothing, although it is generated as if it did; nor
    do lines.
    """
    if case.operation.body and (case.body is NOT_SET or case.media_type == "application/x-ndjson"):
        return None
    return negative_data_rejection(context, answer, case)


CHECKS = [
    every_refusal_is_a_problem,
    a_broken_request_is_refused,
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module", params=[Server, AsgiServer], ids=["lane", "asgi"])
def server(request, tmp_path_factory) -> Iterator[Server]:
    environment = {
        "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["127.0.0.1"]',
        "ESCROWMQ_AUDIT__PROGRAM": json.dumps([sys.executable, report_program.__file__]),
        "ESCROWMQ_AUDIT__MAX_QUEUED": "1000000",
    }
    with request.param(
        tmp_path_factory.mktemp("fuzzed") / "data", dev=False, environment=environment
    ) as running:
        with running.client() as api:
            for topic in ("orders", CHANGED, DELETED):
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 2}), 201)
        yield running
        lines = [json.loads(line) for line in running.log().splitlines()]
        assert [
            line
            for line in lines
            if line["level"] != "info" and line["event"] not in OF_THE_MACHINE
        ] == []


@pytest.fixture(scope="module")
def document(server) -> schemathesis.BaseSchema:
    with server.client() as api:
        served = ok(api.get("/openapi.json"))
    config = schemathesis.Config.from_dict(CONFIG)
    return schemathesis.openapi.from_dict(spelled_out(served), config=config)


def spelled_out(document: dict[str, Any]) -> dict[str, Any]:
    """The document as strict as its extensions: each status by itself, and no word in a request
    but those that are listed.
    """
    schemas = document["components"]["schemas"]
    for operation in (one for path in document["paths"].values() for one in path.values()):
        for name in sets_in([operation.get("parameters"), operation.get("requestBody")], schemas):
            schemas[name]["enum"] = schemas[name]["x-extensible-enum"]
        responses = operation["responses"]
        for status in operation.get("x-statuses", ()):
            responses[status] = responses["2XX"]
        responses.pop("2XX", None)
        refusal = responses.pop("default")
        responses |= dict.fromkeys(operation["x-problems"], refusal)
    return document


def sets_in(node: Any, schemas: dict[str, Any]) -> Iterator[str]:
    """The names of the open sets of words that a part of the document refers to."""
    if isinstance(node, list):
        for item in node:
            yield from sets_in(item, schemas)
    elif isinstance(node, dict):
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if "x-extensible-enum" in schemas.get(name, {}):
            yield name
        yield from sets_in([schemas.get(name), *node.values()], schemas)


@pytest.mark.parametrize("operation_id", sorted(OPERATIONS))
def test_every_operation_answers_as_its_document_says_whatever_is_sent(
    server, document, operation_id
):
    statuses: Counter[int] = Counter()
    put_groups(server)
    existing = {
        **EXISTING,
        **({"topic": [CHANGED]} if operation_id == "updateTopic" else {}),
        **({"topic": [DELETED]} if operation_id == "deleteTopic" else {}),
        "transaction_id": begin_some(server, operation_id),
        "request_id": [ask_one(server)["request_id"] for _ in range(OPEN_SCHEDULES)],
        "message_id": [dead_letter_one(server)],
        "member_id": join_some(server) if operation_id in OF_MEMBERS else ["mem_nobody"],
        "task_id": [begin_task(server)],
        "report_id": [make_report(server) for _ in range(OPEN_REPORTS)],
        "schedule_id": [
            *[send_one(server, delay_ms=3_600_000)["schedule_id"] for _ in range(OPEN_SCHEDULES)],
            *[make_cron(server) for _ in range(OPEN_SCHEDULES)],
        ],
    }

    def ask(case: Case) -> None:
        case.query = waits_shortly(case.query)
        if operation_id in ENDLESS:
            statuses[ask_for_head(server, case)] += 1
            return
        answer = case.call(base_url=server.url, timeout=30)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    @seed(0)
    @settings(max_examples=CASES, **HOW)
    @given(case=any_case(document, operation_id, existing))
    def ask_anything(case: Case) -> None:
        ask(case)

    ask_anything()
    for path in paths(document, operation_id, existing) or [{}]:
        for number in range(MOST_ROUNDS):

            @seed(number)
            @settings(max_examples=HONEST_CASES, **HOW)
            @given(case=honest_case(document, operation_id, path), with_options=st.booleans())
            def ask_honestly(case: Case, with_options: bool) -> None:
                """Options contradict each other often: half of the requests have none, so that some
                are taken.
                """
                if not with_options:
                    case.headers = dict(EVENT) if operation_id == "publishCloudEvent" else {}
                    case.body = required_parts(case.body, body_schema(operation_id))
                known = KNOWN_VALUES | {"member_id": existing["member_id"][0]}
                case.body = about_existing(case.body, known)
                case.query = about_existing(case.query, known)
                ask(case)

            ask_honestly()
            if any(status < 300 for status in statuses):
                break

    # there is nothing to vary
    enough = CASES // 2 if OPERATIONS[operation_id].keys() & {"parameters", "requestBody"} else 1
    assert statuses.total() >= enough, "too few cases: they would prove nothing"
    assert any(status < 300 for status in statuses), f"nothing was ever taken: {statuses}"
    with server.client() as api:
        ok(api.get("/readyz"))


def put_groups(server: Server) -> None:
    """Before each operation: an earlier one may have put them otherwise, or deleted them."""
    with server.client() as api:
        for group in EXISTING["group"]:
            # without If-Match a PUT would not change back what an earlier one has changed
            api.delete(f"/v1/groups/{group}")
            body: dict[str, Any] = {"topics": [{"topic": "orders"}]}
            if group == "pushed":
                body = {"push": {"url": f"http://{RECEIVER}/messages"}}
            ok(api.put(f"/v1/groups/{group}", json=body), 201)
        for group in EXISTING["producer_group"]:
            by_webhook = {"check_mode": "webhook", "check_url": f"http://{RECEIVER}/checks"}
            path = f"/v1/producer-groups/{group}"
            known = {"If-Match": "*"} if api.get(path).is_success else {}
            assert api.put(
                path, json=by_webhook if group == "asked" else {}, headers=known
            ).is_success


def send_one(server: Server, **fields: Any) -> dict[str, Any]:
    """A message; its receipt."""
    with server.client() as api:
        receipt: dict[str, Any] = ok(
            api.post("/v1/topics/orders/messages", json={"payload": "x", **fields}), 201
        )
        return receipt


def make_cron(server: Server) -> str:
    """A cron schedule; its id."""
    with server.client() as api:
        body = {"cron": "@yearly", "topic": "orders", "message": {"payload": "x"}}
        return str(ok(api.post("/v1/schedules", json=body), 201)["schedule_id"])


def ask_one(server: Server) -> dict[str, Any]:
    """A request that nobody has replied to."""
    with server.client() as api:
        body = {"message": {"payload": "x"}, "timeout_ms": 3_600_000}
        request: dict[str, Any] = ok(api.post("/v1/topics/orders/requests", json=body), 202)
        return request


def dead_letter_one(server: Server) -> str:
    """A message that the group has given up; its id."""
    with server.client() as api:
        sent = send_one(server)["message_id"]
        while True:
            given = ok(
                api.post(
                    "/v1/groups/billing/receive", json={"max_messages": 1_000, "wait_ms": 1_000}
                )
            )["messages"]
            assert given
            for message in given:
                verb = "dead-letter" if message["message_id"] == sent else "ack"
                ok(
                    api.post(
                        f"/v1/groups/billing/{verb}",
                        json={"entries": [{"receipt_handle": message["receipt_handle"]}]},
                    )
                )
            if sent in [message["message_id"] for message in given]:
                return sent


def join_some(server: Server) -> list[str]:
    """Members of the group; their ids."""
    with server.client() as api:
        member = {"client_id": "a", "topics": [{"topic": "orders"}]}
        return [
            str(ok(api.post("/v1/groups/billing/members", json=member), 201)["member_id"])
            for _ in range(OPEN_MEMBERS)
        ]


def ask_for_head(server: Server, case: Case) -> int:
    """The status, which is one of the document's."""
    path = quote(case.formatted_path, safe="/%")
    answer = httpx.head(f"{server.url}{path}", params=case.query, timeout=30)
    assert str(answer.status_code) in case.operation.definition.raw["responses"]
    return answer.status_code


def begin_task(server: Server) -> str:
    """A task that may run or have ended; its id."""
    with server.client() as api:
        redrive = {"select": "ids", "message_ids": ["msg_nobody"]}
        return ok(api.post("/v1/groups/billing/dead-letters/redrive", json=redrive), 202)["task_id"]


def make_report(server: Server) -> str:
    """A report that is done; its id."""
    with server.client() as api:
        path = api.post("/v1/audit/reports", json={}).headers["location"]
        until(
            lambda: ok(api.get(path))["state"] == "done",
            "the report is made",
            seconds=report_program.PATIENCE_SECONDS,
        )
        return path.rpartition("/")[2]


def begin_some(server: Server, operation_id: str) -> list[str]:
    """New transactions that are open; their ids."""
    found = []
    with server.client() as api:
        for number in range(OPEN_TRANSACTIONS):
            message = {"topic": "orders", "message": {"payload": "x"}}
            begin = {
                "producer_group": "shop",
                "transaction_id": f"{operation_id}-{number}",
                "messages": [message],
            }
            found.append(ok(api.post("/v1/transactions", json=begin), 201)["transaction_id"])
    return found


def any_case(
    document: schemathesis.BaseSchema, operation_id: str, existing: dict[str, list[Any]]
) -> st.SearchStrategy[Case]:
    """Requests that keep the document's rules and ones that break them, about what exists and about
    what is made up.
    """
    operation = document.find_operation_by_id(operation_id)
    known = paths(document, operation_id, existing)
    return st.one_of(
        *(operation.as_strategy(mode) for mode in GenerationMode),
        *(
            operation.as_strategy(mode, path_parameters=path)
            for mode in GenerationMode
            for path in known
        ),
    )


def honest_case(
    document: schemathesis.BaseSchema, operation_id: str, path: dict[str, Any]
) -> st.SearchStrategy[Case]:
    """Requests that keep the document's rules."""
    operation = document.find_operation_by_id(operation_id)
    return operation.as_strategy(GenerationMode.POSITIVE, path_parameters=path)


def paths(
    document: schemathesis.BaseSchema, operation_id: str, existing: dict[str, list[Any]]
) -> list[dict[str, Any]]:
    """Of an operation, the values of the names in its path, for each thing that exists."""
    names = {
        parameter.name for parameter in document.find_operation_by_id(operation_id).path_parameters
    }
    things = max((len(existing[name]) for name in names), default=0)
    return [
        {name: existing[name][number % len(existing[name])] for name in names}
        for number in range(things)
    ]


def body_schema(operation_id: str) -> dict[str, Any]:
    content = OPERATIONS[operation_id].get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return schema


def required_parts(value: Any, schema: dict[str, Any]) -> Any:
    """The value without what its schema calls optional."""
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        return [required_parts(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: required_parts(value[name], schema["properties"][name])
        for name in schema.get("required", ())
    }


def waits_shortly(values: Any) -> Any:
    """A long poll that is allowed is cut short; one that is not stays as it is."""
    wait_ms = values.get("wait_ms") if isinstance(values, dict) else None
    is_allowed = (
        isinstance(wait_ms, int)
        and not isinstance(wait_ms, bool)
        and LONGEST_WAIT_MS < wait_ms <= 30_000
    )
    return {**values, "wait_ms": LONGEST_WAIT_MS} if is_allowed else values


def about_existing(body: Any, known: dict[str, Any]) -> Any:
    """The values, with what exists wherever they name a topic, a place in one or a time zone, and
    with a short wait.
    """
    if isinstance(body, list):
        return [about_existing(item, known) for item in body]
    if not isinstance(body, dict):
        return body
    return {
        name: known[name] if name in known else about_existing(value, known)
        for name, value in waits_shortly(body).items()
    }


@pytest.mark.parametrize("shard", range(SPOILED_SHARDS))
def test_spoiled_bytes_are_refused_and_what_was_acknowledged_is_all_that_is_stored(shard, tmp_path):
    count = SPOILED // SPOILED_SHARDS
    with Server(tmp_path / "data", dev=False, environment=ENVIRONMENT) as server:
        fuzzer = Fuzzer(server, seed=shard)
        fuzzer.run(count)
        fuzzer.balance()

    assert not fuzzer.problems, "\n".join(fuzzer.problems[:20])
    assert fuzzer.silent < count / 50, "whoever sends nonsense is told so, or cut off"
    assert fuzzer.acknowledged > count / 20, "too little was taken: it would prove nothing"
    assert fuzzer.statuses[400] > count / 20, "too little was refused: it would prove nothing"
