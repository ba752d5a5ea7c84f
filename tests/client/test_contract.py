"""The client has every operation and every field of the OpenAPI document, and no other."""

import inspect
import json
import re
from datetime import UTC, datetime
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from escrowmq_client import AsyncClient, Client
from escrowmq_client.call import Call
from escrowmq_client.models import (
    admin,
    audit,
    checks,
    consume,
    dead_letters,
    groups,
    members,
    messages,
    names,
    problem,
    requests,
    schedules,
    tasks,
    topics,
    transactions,
)
from escrowmq_client.models.base import Input, Output, Time
from escrowmq_client.models.content import Content
from escrowmq_client.models.messages import MessageInput
from escrowmq_client.operations import consume as consuming
from escrowmq_client.operations import messages as sending
from escrowmq_client.operations import requests as requesting
from escrowmq_client.operations import transactions as deciding
from tests.house.source import ROOT

DOCUMENT = json.loads((ROOT / "openapi/openapi.json").read_text("utf-8"))
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]
MODULES = (
    admin, audit, checks, consume, dead_letters, groups, members, messages, names, problem,
    requests, schedules, tasks, topics, transactions,
)  # fmt: skip
# The schemas of bodies whose fields are parameters of a method.
BODIES = {
    "AckInput", "AnswersInput", "AuditReportInput", "BatchInput", "BeginInput", "CheckNowInput",
    "CronInput", "DeadLetterInput", "ExtendInput", "GroupInput", "HeartbeatInput",
    "JoinInput", "LocksInput", "NackInput", "NodeRegistration",
    "OffsetsInput", "ProducerGroupInput", "PromiseInput", "PromotionInput", "ReceiveChecksInput",
    "ReceiveInput", "RedriveInput", "ReplyInput", "RequestInput", "RescheduleInput", "ResetInput", "ResolveInput",
    "RetentionInput", "RollbackInput", "TopicChanges", "TopicDefinition",
    "TopicInput",
}  # fmt: skip
# A decoder has no type for text and bytes, so what a schedule returns is a model of its own.
SAME_FIELDS = {"ScheduledMessage": "MessageInput"}
# A broker may have stored a number that is no date.
TEXTS = {("AuditRecord", "at")}
# The client makes problems, too.
MAY_BE_ABSENT = {("Problem", "errors"), ("Problem", "context")}

PARAMETERS = {"Idempotency-Key": "idempotency_key", "If-Match": "if_match", "Range": "byte_range"}
# What a method has instead of a field, or under another name.
FIELDS = {
    "sendMessage": {"body": "message"},
    "publishCloudEvent": {"body": "body"},
    "sendMessageRaw": {"body": "body"},
    "sendMessageStream": {"body": "entries"},
    "replyToRequest": {"payload_encoding": None},
}
# Choices of the client: form of the body, values for all entries.
OF_ITS_OWN = {
    "sendMessageBatch": {"format"},
    "publishCloudEvent": {"headers"},
    "sendMessageRaw": {"content_type", "properties"},
    "sendMessageStream": {"format"},
    "pullMessages": {"raw"},
    "nackMessages": {"delay_ms", "reason", "unprocessed"},
    "extendLeases": {"lease_ms"},
    "deadLetterMessages": {"reason"},
}
# A dry run whose answer is another one is a method of its own.
PREVIEWS = {"deleteTopic", "createSchedule", "redriveDeadLetters", "runRetention"}
BESIDE_THE_OPERATIONS = {
    "call", "close", "hooks", "items", "pull", "preview_redrive", "preview_retention",
    "preview_schedule", "preview_topic_deletion", "request", "send", "send_stream", "transaction",
    "url",
}  # fmt: skip


def operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "put", "patch", "delete")
    }


# Methods that make calls themselves.
STREAMED = {"streamMessages"}


def called() -> list[str]:
    return sorted(set(operations()) - STREAMED)


def snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def models() -> dict[str, type[msgspec.Struct]]:
    return {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Input | Output)
        and value not in (Input, Output, Content)
    }


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_clients_have_one_method_for_each_operation():
    expected = {snake(name) for name in operations()} | BESIDE_THE_OPERATIONS

    assert public(Client) == public(AsyncClient) == expected


def test_every_schema_of_the_document_is_a_model_or_the_parameters_of_a_method():
    objects = {name for name, schema in SCHEMAS.items() if "properties" in schema}

    assert objects | BODIES == set(models()) - set(SAME_FIELDS) | BODIES


@pytest.mark.parametrize("name", sorted(models()))
def test_a_model_has_the_fields_of_its_schema(name):
    schema = SCHEMAS[SAME_FIELDS.get(name, name)]
    fields = {field.encode_name: field for field in msgspec.structs.fields(models()[name])}

    assert set(fields) == set(schema["properties"])
    for place, field in fields.items():
        is_required = place in schema.get("required", [])
        assert field.required == (is_required and (name, place) not in MAY_BE_ABSENT), (name, place)
        if (name, place) not in TEXTS:
            assert fits(schema["properties"][place], field.type), (name, place, field.type)


def fits(schema: dict[str, Any], kind: Any) -> bool:
    """Whether the type of a field is that of the schema."""
    kinds = (
        set(get_args(kind)) if isinstance(kind, UnionType) or get_origin(kind) is Union else {kind}
    )
    kinds -= {type(None), bytes, msgspec.UnsetType}
    if not kinds:
        return False
    (kind,) = kinds
    kind = datetime if kind == Time else kind
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if "properties" not in SCHEMAS[name]:  # words, or a map
            return fits(SCHEMAS[name], kind)
        return SAME_FIELDS.get(kind.__name__, kind.__name__) == name
    if get_origin(kind) is Literal:
        words = schema.get("enum") or schema.get("x-extensible-enum") or []
        return set(get_args(kind)) == set(words)
    match schema.get("type"):
        case "array":
            return get_origin(kind) is list and fits(schema["items"], get_args(kind)[0])
        case "object":
            values = schema.get("additionalProperties")
            named = isinstance(values, dict) and values
            return get_origin(kind) is dict and (
                fits(values, get_args(kind)[1]) if named else get_args(kind)[1] is Any
            )
        case "string":
            return kind is (datetime if schema.get("format") == "date-time" else str)
        case "integer":
            return kind is int
        case "number":
            return kind is float
        case "boolean":
            return kind is bool
        case None:
            return kind is Any
    return False


@cache
def functions() -> dict[str, Any]:
    """The function of each operation."""
    return {
        name: getattr(module, snake(name))
        for name in operations()
        for module in operation_modules()
        if hasattr(module, snake(name))
    }


def operation_modules() -> list[Any]:
    from escrowmq_client.operations import (
        admin,
        audit,
        checks,
        consume,
        dead_letters,
        groups,
        members,
        messages,
        names,
        offsets,
        pull,
        requests,
        schedules,
        tasks,
        topics,
        transactions,
    )

    return [
        admin, audit, checks, consume, dead_letters, groups, members, messages, names, offsets, pull,
        requests, schedules, tasks, topics, transactions,
    ]  # fmt: skip


def expected_parameters(name: str, operation: dict[str, Any]) -> dict[str, bool]:
    """Names of the parameters of a method, and whether they must be given."""
    found: dict[str, bool] = {}
    for parameter in operation.get("parameters", []):
        place = parameter["name"]
        if place == "Prefer" or place.startswith("Ce-"):
            continue  # `wait_ms` does it; `headers` has them
        found[PARAMETERS.get(place, snake_header(place))] = bool(parameter.get("required"))
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    body = schema.get("$ref", "").rpartition("/")[2]
    renamed = FIELDS.get(name, {})
    if "body" in renamed:
        found[renamed["body"]] = True
    elif body:
        required = SCHEMAS[body].get("required", [])
        for field in SCHEMAS[body].get("properties", {}):
            if renamed.get(field, field) is not None:
                found[field] = field in required
    if name in PREVIEWS:
        found.pop("dry_run", None)
    return {keyword(place): must for place, must in found.items()}


def snake_header(name: str) -> str:
    return name.removeprefix("Message-").replace("-", "_").lower()


def keyword(name: str) -> str:
    return f"{name}_" if name == "from" else name


@pytest.mark.parametrize("name", called())
def test_a_method_takes_what_its_operation_takes(name):
    _, _, operation = operations()[name]
    given = inspect.signature(functions()[name]).parameters

    expected = expected_parameters(name, operation)
    assert set(given) - OF_ITS_OWN.get(name, set()) == set(expected)
    for place, must_be_given in expected.items():
        has_none = given[place].default is inspect.Parameter.empty
        assert has_none == must_be_given, (name, place)


@pytest.mark.parametrize("name", called())
def test_a_call_is_not_repeated_where_the_document_says_that_it_is_sent_once(name):
    _, _, operation = operations()[name]

    assert call_of(name).repeatable == (not operation.get("x-send-once", False))


def test_an_operation_that_is_sent_once_takes_no_key_that_would_make_it_repeatable():
    once = {name for name, (_, _, one) in operations().items() if "x-send-once" in one}

    assert once == {"joinGroup", "resetOffsets", "rotateGroupSigningSecret", "rotateSigningSecret"}
    assert not [name for name in once if "Idempotency-Key" in call_of(name).headers]


@pytest.mark.parametrize("name", called())
def test_a_call_goes_to_the_path_of_its_operation(name):
    method, path, operation = operations()[name]
    call = call_of(name)

    assert (call.operation, call.method, call.route) == (name, method, path)
    assert not re.search(r"[{}]", call.path)
    has_key = "Idempotency-Key" in {one["name"] for one in operation.get("parameters", [])}
    assert ("Idempotency-Key" in call.headers) == has_key


def call_of(name: str) -> Call[Any]:
    """Make a call of the operation with what it must be given, and no more."""
    function = functions()[name]
    given = {
        place: example(place)
        for place, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    call: Call[Any] = function(**given)
    return call


def example(place: str) -> Any:
    values: dict[str, Any] = {
        "message": MessageInput(json=1),
        "messages": [],
        "entries": [],
        "answers": [],
        "offsets": [],
        "queues": [],
        "topics": [],
        "queue_id": 0,
        "body": b"",
        "headers": {},
        "at": datetime(2026, 3, 2, tzinfo=UTC),
    }
    return values.get(place, "a")


@pytest.mark.parametrize("name", called())
def test_help_shows_the_parameters_the_result_and_a_docstring(name):
    for kind in (Client, AsyncClient):
        method = getattr(kind, snake(name))
        signature = inspect.signature(method)

        own = list(inspect.signature(functions()[name]).parameters)
        assert list(signature.parameters) == ["self", *own]
        assert "Call" not in str(signature.return_annotation)
        assert inspect.getdoc(method) == inspect.getdoc(functions()[name])
        assert method.__name__ == snake(name)


def test_a_call_that_creates_keeps_its_key_and_others_have_another():
    first, second = (sending.send("orders", json=1) for _ in range(2))

    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
    assert sending.send("orders", json=1, idempotency_key="k").headers["Idempotency-Key"] == "k"


def test_a_receive_has_an_attempt_id_that_makes_it_repeatable():
    first, second = (consuming.receive_messages("billing") for _ in range(2))

    ids = [msgspec.json.decode(call.body)["attempt_id"] for call in (first, second)]
    assert ids[0] != ids[1]


def test_a_name_is_encoded_in_the_path():
    assert deciding.commit_transaction("a/b ü").path == "/v1/transactions/a%2Fb%20%C3%BC/commit"


def test_json_that_is_null_is_sent_and_fields_that_are_none_are_not():
    assert msgspec.json.decode(sending.send("orders", json=None).body) == {"json": None}
    assert msgspec.json.decode(requesting.reply_to_request("r", json=None).body) == {"json": None}
    assert msgspec.json.decode(sending.send("orders", payload="x").body) == {"payload": "x"}
