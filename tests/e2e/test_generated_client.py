"""A client that a generator makes of our document: made without a warning, and every operation of
it called on a live service.

The examples of the document are the bodies where they can be; an answer counts as success once the
client has parsed it into the model that the document promises. The generator is
openapi-python-client.
"""

import datetime
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.support import report_program
from tests.support.http import until
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "openapi" / "openapi.json"
PACKAGE = "generated_escrowmq_client"
# answers for the document; EXAMPLES=write adds those that are missing
EXAMPLES = ROOT / "app" / "examples.json"
KEY = "a-key"
SOON = {"first_after_ms": 10, "interval_ms": 10}  # checks that are due at once

Operations = dict[str, tuple[str, dict[str, Any]]]


def operations() -> Operations:
    """By operation id: the tag, and the operation."""
    document = json.loads(DOCUMENT.read_text("utf-8"))
    return {
        one["operationId"]: (one["tags"][0], one)
        for path in document["paths"].values()
        for one in path.values()
    }


OPERATIONS = operations()


class Generated:
    """The generated package, its client of a service, and which of its operations have been called
    with success.
    """

    def __init__(self, server: Server) -> None:
        self.models = importlib.import_module(f"{PACKAGE}.models")
        self.types = importlib.import_module(f"{PACKAGE}.types")
        self._url = server.url
        self.client = self.for_key(KEY)
        self.succeeded: set[str] = set()
        # the first one of each operation, by its status
        self.answers: dict[str, dict[str, Any]] = {}

    def for_key(self, key: str) -> Any:
        options = {
            "timeout": httpx.Timeout(30),
            "raise_on_unexpected_status": True,
            "httpx_args": {"trust_env": False},
        }
        return importlib.import_module(PACKAGE).AuthenticatedClient(
            base_url=self._url, token=key, **options
        )

    def module(self, operation_id: str) -> ModuleType:
        tag, _ = OPERATIONS[operation_id]
        name = re.sub(r"(?=[A-Z])", "_", operation_id).lower()
        return importlib.import_module(f"{PACKAGE}.api.{tag}.{name}")

    def model(self, name: str, **fields: Any) -> Any:
        """An instance of a model, as a caller who has JSON would make it."""
        return getattr(self.models, name).from_dict(fields)

    def body(self, operation_id: str, **changed: Any) -> Any:
        """The example of the document with these fields instead."""
        content = OPERATIONS[operation_id][1]["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].rpartition("/")[2]
        return self.model(name, **(content["examples"][operation_id]["value"] | changed))

    def call(self, operation_id: str, *arguments: Any, status: int, **keywords: Any) -> Any:
        """The parsed answer, of the type that the document has for this status."""
        response = self.module(operation_id).sync_detailed(
            *arguments, client=self.client, **keywords
        )
        assert response.status_code == status, response.content
        if status == 204:
            assert (response.parsed, response.content) == (None, b"")
            self.succeeded.add(operation_id)
            return None
        if status >= 400:
            codes = OPERATIONS[operation_id][1]["x-problems"][str(status)]
            assert response.parsed.code in codes
        schema = schema_of(operation_id, status)
        if schema.get("format") == "binary":
            assert response.parsed.payload.read() == response.content
            self.succeeded.add(operation_id)
            return response.parsed
        assert type(response.parsed).__name__ == schema["$ref"].rpartition("/")[2]
        # Nothing is lost and nothing is unknown: the model gives back what was sent, field by
        # field.
        assert as_plain(response.parsed.to_dict()) == as_plain(json.loads(response.content))
        assert unknown_fields(response.parsed) == []
        if status < 300:
            self.succeeded.add(operation_id)
            self.answers.setdefault(operation_id, {str(status): json.loads(response.content)})
        return response.parsed


def schema_of(operation_id: str, status: int) -> dict[str, Any]:
    """The schema that the document has for this status."""
    operation = OPERATIONS[operation_id][1]
    if status >= 400:
        return {"$ref": "#/components/schemas/Problem"}
    entry = "2XX" if str(status) in operation.get("x-statuses", ()) else str(status)
    contents = operation["responses"][entry]["content"].values()
    found: dict[str, Any] = next(iter(contents))["schema"]
    return found


def as_plain(value: Any) -> Any:
    """Times in one spelling: the client writes +00:00 and microseconds, the service Z and
    milliseconds.
    """
    if isinstance(value, dict):
        return {name: as_plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_plain(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", value):
        return datetime.datetime.fromisoformat(value)
    return value


def unknown_fields(value: Any) -> list[str]:
    """Fields of an answer that the document does not have.

    A map has no others; what stands in it is the sender's.
    """
    if isinstance(value, list):
        return [name for item in value for name in unknown_fields(item)]
    names = [field.name for field in getattr(type(value), "__attrs_attrs__", ())]
    if names in ([], ["additional_properties"]):
        return []
    known = [getattr(value, name) for name in names if name != "additional_properties"]
    # what is taken in has none
    return [*getattr(value, "additional_properties", ()), *unknown_fields(known)]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    environment = {
        "ESCROWMQ_API_KEYS": json.dumps([KEY]),
        "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["localhost"]',
        "ESCROWMQ_REPLICA__NODE": "bank-1",  # the examples do not name this machine
        "ESCROWMQ_AUDIT__PROGRAM": json.dumps([sys.executable, report_program.__file__]),
    }
    with Server(
        tmp_path_factory.mktemp("service") / "data", dev=False, environment=environment
    ) as running:
        yield running


@pytest.fixture(scope="module")
def generation(tmp_path_factory) -> Iterator[subprocess.CompletedProcess[str]]:
    """The run of the generator; what it made can be imported while the tests of this file run."""
    tools = Path(sys.executable).parent
    folder = tmp_path_factory.mktemp("generated")
    config = DOCUMENT.parent / "clients" / "openapi-python-client.yaml"
    command = [
        tools / "openapi-python-client",
        "generate",
        "--path",
        DOCUMENT,
        "--output-path",
        folder / PACKAGE,
    ]
    # it calls ruff
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [*command, "--meta", "none", "--config", config, "--fail-on-warning"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield done
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def generated(generation, server) -> Iterator[Generated]:
    made = Generated(server)
    yield made
    made.client.get_httpx_client().close()


def test_the_client_is_generated_without_a_warning(generation):
    assert generation.returncode == 0, generation.stdout + generation.stderr
    assert "warning" not in (generation.stdout + generation.stderr).lower()


def test_it_has_every_operation_of_the_document_and_no_other(generated):
    folder = Path(importlib.import_module(f"{PACKAGE}.api").__path__[0])
    made = {
        path.relative_to(folder).with_suffix("").as_posix()
        for path in folder.rglob("*.py")
        if path.stem != "__init__"
    }

    assert made == {
        f"{tag}/{generated.module(name).__name__.rpartition('.')[2]}"
        for name, (tag, _) in OPERATIONS.items()
    }


def test_every_operation_succeeds_and_its_answer_is_parsed(generated):
    make_topics(generated)
    send_and_pull(generated)
    publish_an_event(generated)
    look_up(generated)
    commit_offsets(generated)
    share_queues(generated)
    stream(generated)
    consume(generated)
    move_and_cancel(generated)
    fire_by_cron(generated)
    decide_transactions(generated)
    answer_checks(generated)
    configure_webhook(generated)
    configure_push(generated)
    look_at_the_disk(generated)
    look_up_names(generated)
    ask_and_reply(generated)
    look_after(generated)
    audit(generated)

    assert generated.succeeded == set(OPERATIONS)
    if os.environ.get("EXAMPLES") == "write":
        write_examples(generated.answers)


def test_what_is_refused_is_parsed_as_a_problem(generated):
    topic = make_topic(generated)
    too_late = {"message": {"json": 1, "delay_ms": 1 << 52}}

    refused = [
        generated.call("getTopic", "nobody-made-it", status=404),
        generated.call(
            "createTopic", body=generated.body("createTopic", topic="%RETRY%x"), status=422
        ),
        generated.call(
            "createTopic", body=generated.body("createTopic", topic=topic, queues=7), status=409
        ),
        generated.call("commitTransaction", "nobody-began-it", status=404),
        generated.call("getSchedule", "nobody-made-it", status=404),
        generated.call(
            "sendMessage",
            topic,
            body=generated.model("MessageInput", **too_late["message"]),
            status=422,
        ),
    ]

    assert [problem.code for problem in refused] == [
        "topic_not_found",
        "reserved_topic",
        "topic_exists",
        "transaction_not_found",
        "schedule_not_found",
        "validation_failed",
    ]
    assert [problem.retryable for problem in refused] == [False] * 6


def test_who_has_another_key_is_told_so_in_a_parsed_problem(generated, server):
    with generated.for_key("another") as stranger:
        answer = generated.module("listTopics").sync_detailed(client=stranger)

    assert (answer.status_code, answer.parsed.code) == (401, "unauthenticated")


# --------------------------------------------------------------------------------------------------
# what is called


def make_topic(generated: Generated) -> str:
    """A topic of one queue; its name."""
    name = f"topic-{next(_numbers)}"
    return generated.call(
        "createTopic", body=generated.model("TopicInput", topic=name, queues=1), status=201
    ).topic


_numbers = count(1)


def write_examples(answers: dict[str, dict[str, Any]]) -> None:
    """What is there stays as it is: it would be another one with each run."""
    kept = json.loads(EXAMPLES.read_text("utf-8")) if EXAMPLES.exists() else {}
    found = {
        name: kept.get(name, answers.get(name))
        for name in OPERATIONS
        if name in kept or name in answers
    }
    EXAMPLES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


def make_topics(generated: Generated) -> None:
    made = generated.call("createTopic", body=generated.body("createTopic"), status=201)
    assert generated.call("createTopic", body=generated.body("createTopic"), status=200) == made
    assert generated.call("getTopic", made.topic, status=200) == made
    put = generated.call("putTopic", "put", body=generated.body("putTopic"), status=201)
    assert generated.call("putTopic", "put", body=generated.body("putTopic"), status=200) == put
    assert generated.call("deleteTopic", "put", dry_run=True, status=200).queues == put.queues
    generated.call("deleteTopic", "put", if_match='"1"', status=204)
    assert made in generated.call("listTopics", page_size=1_000, status=200).items
    assert isinstance(made.created_at, datetime.datetime)
    changed = generated.call(
        "updateTopic", made.topic, body=generated.body("updateTopic"), if_match='"1"', status=200
    )
    assert (changed.revision, changed.max_delay_ms) == (2, 86_400_000)
    assert generated.call("getTopicStats", made.topic, status=200).queues == 4

    queues = generated.call("listQueues", made.topic, status=200).items
    assert [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in queues] == [
        (n, 0, 0) for n in range(4)
    ]


def send_and_pull(generated: Generated) -> None:
    topic, sent = make_topic(generated), generated.body("sendMessage")

    receipt = generated.call("sendMessage", topic, body=sent, idempotency_key="once", status=201)
    again = generated.call("sendMessage", topic, body=sent, idempotency_key="once", status=201)
    batch = generated.call(
        "sendMessageBatch", topic, body=generated.body("sendMessageBatch"), status=201
    )
    mixed = generated.body(
        "sendMessageBatch", atomic=False, entries=[{"message": {"json": 3}}, {"message": {}}]
    )
    partly = generated.call("sendMessageBatch", topic, body=mixed, status=207)
    raw = generated.types.File(payload=BytesIO(b"\x00\xff"))
    generated.call(
        "sendMessageRaw",
        topic,
        body=raw,
        message_key="8813",
        message_require_durability="synced",
        status=201,
    )

    lines = generated.types.File(payload=BytesIO(b'{"id":"1","message":{"payload":"streamed"}}\n'))
    answers = generated.call(
        "sendMessageStream", topic, body=lines, idempotency_key="all", status=200
    ).payload.getvalue()
    assert [json.loads(line)["status"] for line in answers.splitlines()] == [201]

    assert (again.message_id, receipt.deduplicated, again.deduplicated) == (
        receipt.message_id,
        False,
        True,
    )
    assert [(one.id, one.receipt.queue_offset) for one in batch.results] == [("a", 1), ("b", 2)]
    assert (partly.accepted, partly.rejected, partly.results[1].problem.code) == (
        1,
        1,
        "validation_failed",
    )
    page = generated.call("pullMessages", topic, 0, offset=0, wait_ms=1_000, status=200)
    assert [(one.payload, one.payload_encoding) for one in page.messages] == [
        ('{"order_id":8812,"total":"19.90"}', "utf8"),
        ('{"n":1}', "utf8"),
        ("two", "utf8"),
        ("3", "utf8"),
        ("AP8=", "base64"),
        ("streamed", "utf8"),
    ]
    first = page.messages[0]
    assert (first.key, first.tag, first.properties.to_dict()) == (
        "8812",
        "created",
        {"source": "shop"},
    )
    assert page.messages[-2].key == "8813"
    found = generated.call("searchOffset", topic, 0, at=first.stored_at, status=200)
    assert (found.offset, found.stored_at) == (0, receipt.stored_at)
    since = generated.call(
        "pullMessages", topic, 0, from_=first.stored_at, max_messages=1, status=200
    )
    assert since.messages == [first]


def publish_an_event(generated: Generated) -> None:
    topic = make_topic(generated)
    event = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/shop", "ce_type": "paid"}
    data = generated.types.File(payload=BytesIO(b"19.90"))

    published = generated.call("publishCloudEvent", topic, body=data, **event, status=201)

    (message,) = generated.call("pullMessages", topic, 0, status=200).messages
    assert (message.message_id, message.payload, message.tag) == (
        published.results[0].receipt.message_id,
        "19.90",
        "paid",
    )


def look_up(generated: Generated) -> None:
    topic = make_topic(generated)
    receipt = generated.call("sendMessage", topic, body=generated.body("sendMessage"), status=201)

    message = generated.call("getMessage", receipt.message_id, status=200)
    assert message.payload == '{"order_id":8812,"total":"19.90"}'
    (found,) = generated.call(
        "queryMessages", topic=topic, key="8812", from_=message.stored_at, status=200
    ).items
    assert found.to_dict() == message.to_dict()
    assert (
        generated.call("getMessageTrace", receipt.message_id, status=200).items[-1].event
        == "indexed"
    )
    generated.call("getMessagePayload", receipt.message_id, status=200)
    generated.call("getMessagePayload", receipt.message_id, range_="bytes=0-3", status=206)
    assert generated.call("getMessage", "msg_nobody", status=404).code == "message_not_found"


def look_at_the_disk(generated: Generated) -> None:
    disk = generated.call("getDisk", status=200)
    assert 0 < disk.used_ratio <= 1
    assert disk.clean_above < disk.force_above < disk.refuse_above
    task = generated.call("verifyStore", status=202)
    assert task.kind == "verify_store"
    assert (
        generated.call("runRetention", body=generated.body("runRetention"), status=200).total == 0
    )
    flushed = generated.call("flushStore", status=200)
    assert generated.call("getDurability", offset=flushed.synced_offset - 1, status=200).synced
    assert generated.call("getRecoveryReport", status=200).took_ms >= 0
    assert generated.call("listReplicas", status=200).items == []
    assert generated.call("getPromise", status=200).epoch == 0
    asked = generated.body("makePromise")
    assert not generated.call("makePromise", body=asked, status=200).granted
    asked = generated.body("promoteNode")
    assert generated.call("promoteNode", body=asked, status=200).epoch, "it is the service already"
    assert generated.call("getConfig", status=200).settings["ESCROWMQ_API_KEYS"] == "(set)"
    assert generated.call("getWhoami", status=200).authenticated
    assert generated.call("getVersion", status=200).name == "EscrowMQ"


def look_up_names(generated: Generated) -> None:
    given = generated.body("registerNode")
    node = {"node": "shop-1"}
    asked = generated.call("registerNode", **node, body=given, status=200)
    assert (asked.primary.node, asked.known_data_version) == ("shop-1", given.data_version)
    assert generated.call("listNodes", status=200).items[-1].node == "shop-1"
    group = generated.call("getNodeGroup", given.group, status=200)
    assert [one.number for one in group.nodes] == [0]
    assert generated.call("listClusters", status=200).items[0].groups[-1] == given.group
    routes = generated.call("getTopicRoutes", given.topics[0].topic, status=200).items
    (route,) = [one for one in routes if one.group == given.group]
    assert (route.read_queues, route.primary.url) == (4, given.url)
    generated.call("unregisterNode", **node, status=204)
    assert generated.call("getNodeGroup", "nobody", status=404).code == "name_not_found"


def audit(generated: Generated) -> None:
    asked = generated.body("createAuditReport")
    report_id = generated.call(
        "createAuditReport", body=asked, idempotency_key="march", status=202
    ).report_id
    generated.answers.pop("getAuditReport", None)
    until(
        lambda: (
            generated.module("getAuditReport")
            .sync_detailed(report_id, client=generated.client)
            .parsed.state
            == "done"
        ),
        "the report is made",
        seconds=report_program.PATIENCE_SECONDS,
    )
    report = generated.call("getAuditReport", report_id, status=200)
    assert report.verdicts.to_dict() == {"committed_once": 1, "final_missing": 2}
    assert report.findings.items[0].records[0].kind == "half"
    assert report.checks_asked == list(report.checks.to_dict()) == ["queues", "delays"]
    (gap,) = [one for one in report.findings.items if one.verdict == "queue_gap"]
    assert (gap.check, gap.evidence["topic"], gap.evidence["missing"]) == ("queues", "orders", 2)
    assert report_id in [
        one.report_id for one in generated.call("listAuditReports", state="done", status=200).items
    ]
    assert (
        len(generated.call("listAuditFindings", report_id, verdict="damaged", status=200).items)
        == 1
    )
    generated.call("downloadAuditReport", report_id, status=200)
    transaction = generated.call(
        "beginTransaction", body=generated.body("beginTransaction"), status=201
    )
    generated.call("commitTransaction", transaction.transaction_id, status=200)
    proof = generated.call("getTransactionProof", transaction.transaction_id, status=200)
    assert (proof.verdict, [one.kind for one in proof.records]) == (
        "committed_once",
        ["half", "final", "op"],
    )
    assert generated.call("listAuditSegments", status=200).items[0].begin == 0
    generated.call("deleteAuditReport", report_id, status=204)
    assert generated.call("getAuditReport", report_id, status=410).code == "report_expired"


def ask_and_reply(generated: Generated) -> None:
    topic = make_topic(generated)
    asking = generated.body("sendRequest")

    pending = generated.call("sendRequest", topic, body=asking, idempotency_key="q-55", status=202)
    assert generated.call("getRequest", pending.request_id, status=200) == pending
    answer = generated.call(
        "replyToRequest", pending.request_id, body=generated.body("replyToRequest"), status=200
    )
    replied = generated.call("sendRequest", topic, body=asking, idempotency_key="q-55", status=200)
    cancelled = generated.call("sendRequest", topic, body=asking, status=202)
    slow = generated.body("sendRequest", timeout_ms=1, wait_ms=1_000)

    assert (answer.state, answer.late, answer.settled) == ("replied", False, False)
    assert (replied.request_id, replied.state, replied.reply.payload) == (
        pending.request_id,
        "replied",
        '{"price":"4.20"}',
    )
    assert generated.call("cancelRequest", cancelled.request_id, status=200).state == "cancelled"
    assert generated.call("sendRequest", topic, body=slow, status=504).code == "reply_timeout"


def stream(generated: Generated) -> None:
    """The answer ends with the stream: here, with its group."""
    topic, group = make_topic(generated), f"streaming-{next(_numbers)}"
    reading = generated.body("putGroup", topics=[{"topic": topic}])
    generated.call("putGroup", group, body=reading, status=201)
    generated.call("sendMessage", topic, body=generated.body("sendMessage"), status=201)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            generated.module("streamMessages").sync_detailed, group, client=generated.client
        )
        until(
            lambda: generated.call("getGroupLag", group, status=200).messages_leased,
            "the message is streamed",
        )
        generated.call("deleteGroup", group, status=204)
        content = answer.result().content.decode()

    assert "event: message" in content
    assert "event: closing" in content
    generated.succeeded.add("streamMessages")


def commit_offsets(generated: Generated) -> None:
    topic = make_topic(generated)
    generated.call("sendMessage", topic, body=generated.body("sendMessage"), status=201)
    offsets = [{"topic": topic, "queue_id": 0, "offset": 1}]

    committed = generated.call(
        "commitOffsets",
        "warehouse",
        body=generated.body("commitOffsets", offsets=offsets),
        status=200,
    )

    assert [(one.topic, one.offset, one.max_offset) for one in committed.items] == [(topic, 1, 1)]
    assert generated.call("getOffsets", "warehouse", topic=topic, status=200) == committed


def share_queues(generated: Generated) -> None:
    topic, group = make_topic(generated), f"sharing-{next(_numbers)}"
    joining = generated.body("joinGroup", topics=[{"topic": topic}])
    member = generated.call("joinGroup", group, body=joining, status=201)
    (owned,) = member.assignment
    assert (owned.topic, owned.queue_id, owned.offset) == (topic, 0, 0)

    queues = [{"topic": topic, "queue_id": 0}]
    locking = generated.body("lockQueues", member_id=member.member_id, queues=queues)
    assert generated.call("lockQueues", group, body=locking, status=200).locked[0].queue_id == 0
    (seen,) = generated.call("listMembers", group, status=200).items
    assert (seen.client_id, seen.assignment[0].locked, seen.lag) == ("billing-7f", True, 0)
    offsets = [{"topic": topic, "queue_id": 0, "offset": 0}]
    beating = generated.body("heartbeatMember", generation=member.generation, offsets=offsets)
    beat = generated.call("heartbeatMember", group, member.member_id, body=beating, status=200)
    assert (beat.generation, beat.revoked, beat.assignment) == (1, [], member.assignment)
    assert (
        generated.call("unlockQueues", group, body=locking, status=200).released[0].topic == topic
    )
    generated.call("leaveGroup", group, member.member_id, status=204)

    gone = generated.call("heartbeatMember", group, member.member_id, body=beating, status=404)
    fenced = generated.body("commitOffsets", offsets=offsets, member_id=member.member_id)
    assert gone.code == "member_not_found"
    assert generated.call("commitOffsets", group, body=fenced, status=409).code == "fenced"


def consume(generated: Generated) -> None:
    topic = make_topic(generated)
    for _ in range(5):
        generated.call("sendMessage", topic, body=generated.body("sendMessage"), status=201)
    rules = generated.body(
        "putGroup", topics=[{"topic": topic}], backoff_ms=[60_000], skip_lag_over=1_000
    )
    group = generated.call("putGroup", "consumers", body=rules, status=201)
    assert generated.call("putGroup", "consumers", body=rules, status=200) == group
    assert generated.call("getGroup", "consumers", status=200) == group
    assert group in generated.call("listGroups", page_size=1_000, status=200).items

    received = generated.call(
        "receiveMessages", "consumers", body=generated.body("receiveMessages"), status=200
    )
    assert [(one.attempt, one.queue_offset) for one in received.messages] == [
        (1, offset) for offset in range(5)
    ]
    page = generated.call("listLeases", "consumers", page_size=2, status=200)
    assert [(one.message_id, one.attempt) for one in page.items] == [
        (one.message_id, 1) for one in received.messages[:2]
    ]
    rest = generated.call("listLeases", "consumers", page_token=page.next_page_token, status=200)
    assert [one.queue_offset for one in rest.items] == [2, 3, 4]
    assert not rest.next_page_token
    first, second, third, fourth, fifth = [one.receipt_handle for one in received.messages]
    (kept,) = settle(generated, "extendLeases", first, lease_ms=3_600_000).results
    assert kept.lease_expires_at > received.messages[0].lease_expires_at
    settle(generated, "ackMessages", first)
    settle(generated, "nackMessages", second, reason="db down")
    settle(generated, "deadLetterMessages", third, reason="bad schema")
    for verb in ("ackMessages", "nackMessages", "extendLeases", "deadLetterMessages"):
        refused = settle(generated, verb, third, status=207)
        assert refused.results[0].problem.code == "lease_expired"

    redrive_and_purge(generated, topic)
    lag = generated.call("getGroupLag", "consumers", status=200)
    assert (lag.messages_leased, lag.messages_waiting + lag.messages_ready) == (2, 2)
    (offset,) = generated.call("getOffsets", "consumers", status=200).items
    assert offset.offset == 3
    settle(generated, "ackMessages", fourth)
    settle(generated, "ackMessages", fifth)
    reset = generated.body("resetOffsets", topic=topic)
    assert (
        generated.call("resetOffsets", "consumers", body=reset, status=200).messages_affected == 5
    )
    generated.call("deleteGroup", "consumers", if_match='"1"', status=204)
    assert generated.call("getGroup", "consumers", status=404).code == "group_not_found"


def redrive_and_purge(generated: Generated, topic: str) -> None:
    (dead,) = generated.call("listDeadLetters", "consumers", page_size=10, status=200).items
    assert (dead.origin_topic, dead.reason, dead.attempts, dead.message.queue_offset) == (
        topic,
        "bad schema",
        1,
        2,
    )
    assert generated.call("getDeadLetter", "consumers", dead.message.message_id, status=200) == dead
    counted = generated.call(
        "redriveDeadLetters", "consumers", body=generated.body("redriveDeadLetters"), status=200
    )
    assert (counted.dry_run, counted.total) == (True, 1)
    wanted = generated.model("RedriveInput", select="query", topic=topic, reason_contains="schema")
    begun = generated.call(
        "redriveDeadLetters", "consumers", body=wanted, idempotency_key="once", status=202
    )
    again = generated.call(
        "redriveDeadLetters", "consumers", body=wanted, idempotency_key="once", status=202
    )
    assert begun.task_id == again.task_id
    until(
        lambda: generated.call("getTask", begun.task_id, status=200).state == "done",
        "the task is done",
    )
    (task,) = generated.call("listTasks", group="consumers", state="done", status=200).items
    assert (task.total, task.done, task.failed, task.failures, task.failures_omitted) == (
        1,
        1,
        0,
        [],
        0,
    )
    assert generated.call("cancelTask", task.task_id, status=200) == task
    assert (
        generated.call("getDeadLetter", "consumers", dead.message.message_id, status=404).code
        == "message_not_found"
    )
    assert generated.call("purgeDeadLetters", "consumers", status=200).purged == 0


def settle(
    generated: Generated, verb: str, handle: str, *, status: int = 200, **fields: Any
) -> Any:
    entries = [{"receipt_handle": handle, **fields}]
    return generated.call(
        verb, "consumers", body=generated.body(verb, entries=entries), status=status
    )


def move_and_cancel(generated: Generated) -> None:
    topic = make_topic(generated)
    body = generated.body("sendMessage", delay_ms=3_600_000)
    receipt = generated.call("sendMessage", topic, body=body, status=201)

    (listed,) = generated.call(
        "listSchedules", topic=topic, state="scheduled", page_size=10, status=200
    ).items
    assert (listed.schedule_id, listed.deliver_at) == (receipt.schedule_id, receipt.deliver_at)
    assert generated.call("getSchedule", receipt.schedule_id, status=200) == listed
    later = (receipt.deliver_at + datetime.timedelta(hours=1)).isoformat()
    moving = generated.model("RescheduleInput", deliver_at=later)
    moved = generated.call(
        "rescheduleMessage", receipt.schedule_id, body=moving, if_match='"1"', status=200
    )
    cancelled = generated.call("cancelSchedule", receipt.schedule_id, status=200)
    assert (moved.revision, moved.state, cancelled.state) == (2, "scheduled", "cancelled")
    assert (
        generated.call("rescheduleMessage", receipt.schedule_id, body=moving, status=409).code
        == "already_cancelled"
    )


def fire_by_cron(generated: Generated) -> None:
    topic = make_topic(generated)
    body = generated.body("createSchedule", topic=topic)

    preview = generated.call(
        "createSchedule",
        body=generated.body("createSchedule", topic=topic, dry_run=True),
        status=200,
    )
    made = generated.call("createSchedule", body=body, idempotency_key="cron", status=201)
    again = generated.call("createSchedule", body=body, idempotency_key="cron", status=201)
    assert (made.kind, made.deliver_at, again) == ("cron", preview.items[0].at, made)
    assert (
        generated.call("listOccurrences", made.schedule_id, count=10, status=200).items
        == preview.items
    )
    changing = generated.model("RescheduleInput", paused=True, message={"payload": "x"})
    paused = generated.call("rescheduleMessage", made.schedule_id, body=changing, status=200)
    (listed,) = generated.call(
        "listSchedules", topic=topic, kind="cron", state="paused", status=200
    ).items
    assert (paused.state, paused.message.payload, listed.schedule_id) == (
        "paused",
        "x",
        made.schedule_id,
    )
    assert generated.call("cancelSchedule", made.schedule_id, status=200).state == "cancelled"
    wrong = generated.body("createSchedule", topic=topic, cron="0 0 31 4 *")
    assert generated.call("createSchedule", body=wrong, status=422).code == "validation_failed"


def decide_transactions(generated: Generated) -> None:
    committed, rolled_back, resolved = (begin(generated, "deciders", {}) for _ in range(3))
    assert committed.state == "prepared"

    done = generated.call(
        "commitTransaction",
        committed.transaction_id,
        status=200,
    )
    again = generated.call("commitTransaction", committed.transaction_id, status=200)
    undone = generated.call(
        "rollbackTransaction",
        rolled_back.transaction_id,
        body=generated.body("rollbackTransaction"),
        status=200,
    )
    by_hand = generated.call(
        "resolveTransaction",
        resolved.transaction_id,
        body=generated.body("resolveTransaction"),
        status=200,
    )
    conflict = generated.call("rollbackTransaction", committed.transaction_id, status=409)

    assert (done.state, done.replayed, again.replayed, undone.state) == (
        "committed",
        False,
        True,
        "rolled_back",
    )
    assert (undone.reason, by_hand.resolved_by, by_hand.reason) == (
        "payment refused",
        "operator",
        "INC-311",
    )
    assert conflict.context.to_dict() == {"state": "committed", "resolved_by": "producer"}
    seen = generated.call("getTransaction", committed.transaction_id, status=200)
    assert (seen.state, seen.resolved_at, seen.messages) == (
        "committed",
        done.resolved_at,
        done.messages,
    )
    events = generated.call("getTransactionHistory", committed.transaction_id, status=200).items
    assert [event.event for event in events] == ["half_stored", "committed"]
    assert (
        "was committed by its producer"
        in generated.call("explainTransaction", committed.transaction_id, status=200).summary
    )
    listed = generated.call(
        "listTransactions", producer_group="deciders", state="committed,rolled_back", status=200
    )
    assert [one.transaction_id for one in listed.items] == [
        one.transaction_id for one in (committed, rolled_back, resolved)
    ]


def answer_checks(generated: Generated) -> None:
    group = generated.call(
        "putProducerGroup", "answerers", body=generated.body("putProducerGroup"), status=201
    )
    assert generated.call("putProducerGroup", "answerers", status=200) == group
    assert generated.call("getProducerGroup", "answerers", status=200) == group
    begun = begin(generated, "answerers", SOON | {"max_answers": 1})

    unknown = answered(generated, begun.transaction_id, "unknown", status=200)
    assert (unknown.accepted, unknown.results[0].state) == (1, "held")
    resumed = generated.call(
        "resumeTransaction",
        begun.transaction_id,
        status=200,
    )
    assert (resumed.state, resumed.answers) == ("prepared", 0)
    assert generated.call("checkTransaction", begun.transaction_id, status=200).state == "prepared"
    committed = answered(generated, begun.transaction_id, "commit", status=200)
    assert committed.results[0].state == "committed"
    refused = generated.call(
        "answerChecks", "answerers", body=generated.body("answerChecks"), status=207
    )
    assert refused.results[0].problem.code == "check_not_open"


def configure_webhook(generated: Generated) -> None:
    wanted = generated.body(
        "putProducerGroup", check_mode="webhook", check_url="https://93.184.215.14/mq/check"
    )
    group = generated.call("putProducerGroup", "asked", body=wanted, status=201)
    rotated = generated.call("rotateSigningSecret", "asked", status=200)
    found = generated.call("getProducerGroup", "asked", status=200)

    assert len({group.signing_secret, rotated.signing_secret, found.signing_secret}) == 3
    assert isinstance(rotated.previous_secret_expires_at, datetime.datetime)
    assert "signing_secret" not in found.to_dict()
    refused = generated.call(
        "putProducerGroup", "asked", body=generated.body("putProducerGroup", **LOCAL), status=422
    )
    assert refused.code == "check_url_refused"
    elsewhere = generated.body("putProducerGroup", **NOBODY_THERE)
    generated.call("putProducerGroup", "asked", body=elsewhere, if_match='"2"', status=200)
    tested = generated.call("testCheckEndpoint", "asked", status=200)
    assert (tested.passed, len(tested.cases)) == (False, 5)


def configure_push(generated: Generated) -> None:
    push = {"url": "https://93.184.215.14/in"}
    made = generated.call(
        "putGroup", "pushed", body=generated.body("putGroup", topics=[], push=push), status=201
    )
    rotated = generated.call("rotateGroupSigningSecret", "pushed", status=200)

    assert made.push.url == push["url"]
    assert len({made.signing_secret, rotated.signing_secret}) == 2
    assert isinstance(rotated.previous_secret_expires_at, datetime.datetime)


NOBODY_THERE = {"check_mode": "webhook", "check_url": "http://localhost:9/"}
LOCAL = {"check_mode": "webhook", "check_url": "https://127.0.0.1/"}


def look_after(generated: Generated) -> None:
    loops = generated.call("listLoops", status=200).items
    assert {"schedules", "cron", "checkback"} <= {loop.loop for loop in loops}
    store = generated.call("getStore", status=200)
    assert store.log.segments >= 1
    assert store.rates.window_ms > 0
    assert store.rates.messages_in_per_second >= 0


def begin(generated: Generated, group: str, check: dict[str, Any]) -> Any:
    topic = make_topic(generated)
    messages = [{"topic": topic, "message": {"key": "8812", "json": {"order_id": 8812}}}]
    body = generated.body("beginTransaction", producer_group=group, messages=messages, check=check)
    return generated.call("beginTransaction", body=body, status=201)


def answered(generated: Generated, transaction_id: str, decision: str, *, status: int) -> Any:
    """Take the next check of the group, which is about this transaction, and answer it so."""
    wanted = generated.body("receiveChecks", max_checks=1, wait_ms=10_000)
    (check,) = generated.call("receiveChecks", "answerers", body=wanted, status=200).checks
    assert check.transaction_id == transaction_id
    (answer,) = OPERATIONS["answerChecks"][1]["requestBody"]["content"]["application/json"][
        "examples"
    ]["answerChecks"]["value"]["answers"]
    body = generated.body(
        "answerChecks", answers=[answer | {"check_id": check.check_id, "decision": decision}]
    )
    return generated.call("answerChecks", "answerers", body=body, status=status)
