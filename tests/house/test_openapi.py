"""The OpenAPI document that is committed, which clients are generated from."""

import json
import re
from typing import Any, get_args, get_type_hints

import jsonschema_rs
import msgspec
import pytest
from msgspec import UNSET
from openapi_spec_validator import OpenAPIV30SpecValidator, OpenAPIV31SpecValidator

from app.messages.schemas import MessageInput
from app.openapi.document import document_3_0
from app.operations import ALWAYS, OPERATIONS, READING, WRITING
from app.problems import PROBLEMS, Problem
from app.webhooks.answers import CheckQuestion
from cli import openapi
from delivery import trace
from delivery.groups import Start
from delivery.leases.tasks import TaskState
from delivery.requests.table import RequestState
from scheduler.cron_schedule import AnyCronMark, CatchUp, CronState
from scheduler.schedule import ScheduleState
from storage.message import Durability
from tests.house.source import ROOT
from txn.checkback_plan import HoldReason, OnExhausted
from txn.producer import Failure
from txn.states import Resolver, TxnEvent, TxnState

COMMITTED = ROOT / "openapi" / "openapi.json"

NOT_JSON = {
    "getMessagePayload": "application/octet-stream",
    "sendMessageStream": "application/x-ndjson",
    "downloadAuditReport": "application/octet-stream",
    "streamMessages": "text/event-stream",
}
# Sets of words that clients decide by: another one would be another contract.
CLOSED_IN_RESPONSES = {
    "TransactionState", "Resolver", "CheckDecision", "ScheduleState", "RequestState",
}  # fmt: skip
# The words that the service knows, of sets that are kept in another place than the document's.
KNOWN_WORDS = {
    "TransactionState": list(TxnState),
    "Resolver": list(Resolver),
    "HoldReason": list(HoldReason),
    "OnExhausted": list(OnExhausted),
    "CheckDecision": [TxnEvent.COMMIT, TxnEvent.ROLLBACK, TxnEvent.UNKNOWN],
    "GroupStart": list(Start),
    "CatchUp": list(CatchUp),
    "ScheduleState": {*ScheduleState, *CronState},
    "RequestState": list(RequestState),
    "TaskState": list(TaskState),
    "Durability": [one.value for one in Durability],
    "FiringKind": [mark.__struct_config__.tag for mark in AnyCronMark.__args__],
    "NoAnswerReason": {*Failure, "timeout", "disabled"},
    "TraceEventKind": {*trace.ACTS.values(), "born", "stored", "queued", "indexed"},
}
INT32 = {"status", "queue_id", "queues", "revision", "attempt", "attempts", "accepted", "rejected"}
BESIDE_JSON = {"pullMessages": ["application/vnd.escrowmq.records"]}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(COMMITTED.read_text("utf-8"))


def test_the_committed_document_is_the_one_that_the_service_has_now():
    assert COMMITTED.read_text("utf-8") == openapi.render(), "run `make openapi`"


def test_the_document_is_valid_openapi_3_1(document):
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_what_is_served_to_tools_that_know_3_0_only_is_valid_openapi_3_0(document):
    converted = document_3_0(document)

    assert converted["openapi"] == "3.0.3"
    OpenAPIV30SpecValidator(converted).validate()


def test_both_forms_have_the_same_operations_and_schemas(document):
    converted = document_3_0(document)

    assert operation_ids(converted) == operation_ids(document) == sorted(OPERATIONS)
    assert list(converted["components"]["schemas"]) == list(document["components"]["schemas"])


def test_what_3_0_has_no_word_for_is_said_in_its_own():
    schema = {"type": "string", "const": "poll", "examples": ["poll", "push"]}
    reference = {"$ref": "#/components/schemas/Mode", "description": "Of the group."}
    schemas = {"Mode": schema, "Modes": {"items": [schema]}, "Group": reference}

    converted = document_3_0(
        {
            "openapi": "3.1.0",
            "info": {"license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
            "components": {"schemas": schemas},
        }
    )

    said = {"type": "string", "enum": ["poll"], "example": "poll"}
    bare = {"$ref": "#/components/schemas/Mode"}
    assert converted == {
        "openapi": "3.0.3",
        "info": {"license": {"name": "Apache-2.0"}},
        "components": {"schemas": {"Mode": said, "Modes": {"items": [said]}, "Group": bare}},
    }
    assert "const" in schema, "the 3.1 document is left as it was"


def test_nothing_is_nullable_and_no_schema_is_put_together_of_others(document):
    """What generators stumble over: each makes a class of its own of it, or none."""
    for node in nodes(document):
        assert not {"allOf", "anyOf", "oneOf", "discriminator", "nullable"} & set(node)
        assert node.get("type") != "null"
        assert not isinstance(node.get("type"), list)


def test_every_operation_has_an_id_one_tag_and_a_summary(document):
    for operation in operations(document):
        name = operation["operationId"]
        assert len(operation["tags"]) == 1
        assert operation["summary"]
        assert not operation["summary"].endswith(".")
        good = [NOT_JSON.get(name, "application/json"), *BESIDE_JSON.get(name, [])]
        for status, answer in successes(operation).items():
            if status == "204":
                assert "content" not in answer
            else:
                assert list(answer["content"]) == good


# --------------------------------------------------------------------------------------------------
# the rules for client generators


def test_every_enum_is_a_component_and_none_is_inline(document):
    sets = {
        name: schema
        for name, schema in document["components"]["schemas"].items()
        if {"enum", "x-extensible-enum"} & schema.keys()
    }

    inline = [
        node for node in nodes(document) if {"enum", "x-extensible-enum", "const"} & set(node)
    ]
    assert inline == list(sets.values())
    for name, schema in sets.items():
        assert schema["type"] == "string", name
        assert schema["description"], name


def test_a_set_of_a_response_is_closed_only_where_no_later_release_can_add_a_word(document):
    schemas = document["components"]["schemas"]
    closed = {name for name, schema in schemas.items() if "enum" in schema}
    answered = {
        name
        for operation in operations(document)
        for name in reachable(list(successes(operation).values()), schemas)
    } | reachable({"$ref": "#/components/schemas/Problem"}, schemas)

    assert closed & answered == CLOSED_IN_RESPONSES
    assert {"ProblemCode", "Durability", "TaskKind", "SchemaMode"} <= answered - closed


@pytest.mark.parametrize("name", KNOWN_WORDS)
def test_a_set_has_the_words_of_the_service_and_no_others(document, name):
    schema = document["components"]["schemas"][name]

    words = schema.get("enum") or schema["x-extensible-enum"]
    assert sorted(words) == sorted(map(str, KNOWN_WORDS[name]))


def test_a_word_outside_of_an_open_set_is_refused_in_a_request_all_the_same():
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        msgspec.json.decode(b'{"payload":"x","require_durability":"certain"}', type=MessageInput)


def test_each_operation_lists_the_refusal_of_an_answer_that_has_no_room_in_memory(document):
    listed = {one["operationId"]: one["x-problems"]["503"] for one in operations(document)}
    assert [name for name, codes in listed.items() if "overloaded" not in codes] == []


def test_all_refusals_are_one_default_response_and_their_codes_are_listed_by_status(document):
    problem = document["components"]["responses"]["Problem"]
    assert list(problem["content"]) == ["application/problem+json"]
    common = document["info"]["description"]
    assert [code for code in (*ALWAYS, *READING, *WRITING) if f"`{code}`" not in common] == []
    for operation in operations(document):
        name, responses = operation["operationId"], operation["responses"]
        assert responses["default"] == {"$ref": "#/components/responses/Problem"}
        assert [status for status in responses if status[0] not in "2d"] == []
        listed = operation["x-problems"]
        assert sorted(code for codes in listed.values() for code in codes) == sorted(
            OPERATIONS[name].problem_codes
        )
        for status, codes in listed.items():
            assert {str(PROBLEMS[code].status) for code in codes} == {status}
            for code in codes:
                own = f"`{code}` ({status})" in operation.get("description", "")
                assert own != (code in (*ALWAYS, *READING, *WRITING)), (name, code)


def test_no_property_of_a_body_has_a_default_but_says_it_in_words(document):
    for name, schema in document["components"]["schemas"].items():
        for field, node in schema.get("properties", {}).items():
            assert "default" not in node, f"{name}.{field}"
            if "x-default" in node:
                assert "Default: " in node["description"], f"{name}.{field}"
    settings = document["components"]["schemas"]["TopicInput"]["properties"]
    assert settings["queues"]["x-default"] == 4


def test_a_field_of_a_response_is_required_where_the_encoder_always_writes_it(document):
    schemas = document["components"]["schemas"]
    kinds = {Problem, CheckQuestion, *every_answer()}
    for kind in kinds:
        always = [field for field in msgspec.structs.fields(kind) if field.default is not UNSET]
        assert schemas[kind.__name__].get("required", []) == [one.encode_name for one in always]
    assert {"errors", "context"} <= set(schemas["Problem"]["required"])
    assert "deduplicated" in schemas["Receipt"]["required"]


def test_every_integer_has_a_format_that_its_values_fit_in(document):
    for name, node in named(document):
        if node.get("type") != "integer":
            continue
        is_long = re.search(r"(_ms|-Ms|bytes|offset|offsets)$", name) is not None
        assert node["format"] in (["int64"] if is_long else ["int32", "int64"]), name
        if name in INT32:
            assert node["format"] == "int32", name
        assert node["format"] == "int64" or node.get("maximum", 0) < 1 << 31, name


def test_what_is_sent_to_a_webhook_is_a_callback_of_the_operation_that_takes_its_url(document):
    assert "webhooks" not in document
    calling = {one["operationId"]: one for one in operations(document) if "callbacks" in one}
    assert set(calling) == {"putProducerGroup", "putGroup"}
    check = calling["putProducerGroup"]["callbacks"]["transactionCheck"]
    push = calling["putGroup"]["callbacks"]["messageDelivery"]
    called = check["{$request.body#/check_url}"]["post"], push["{$request.body#/push/url}"]["post"]
    assert {"CheckQuestion", "CheckAnswer"} <= references(called[0])
    assert "PushedMessage" in references(called[1])
    for one in called:
        names = [parameter["name"] for parameter in one["parameters"]]
        assert names == ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"]


def test_an_operation_that_takes_no_field_has_no_body_in_the_document(document):
    schemas = document["components"]["schemas"]
    assert [name for name, one in schemas.items() if one.get("properties", one) == {}] == []
    without = {one["operationId"] for one in operations(document) if "requestBody" not in one}
    assert {"commitTransaction", "resumeTransaction", "rotateSigningSecret"} <= without


def test_a_body_may_be_omitted_exactly_where_each_of_its_fields_may(document):
    """But for the bodies that must have one of several fields, which a schema of ours leaves out."""
    has_one_of = {"sendMessage", "replyToRequest", "rescheduleMessage"}
    schemas = document["components"]["schemas"]
    for operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name, reference = operation["operationId"], content.get("schema", {}).get("$ref")
        if reference is not None:
            fields = schemas[reference.rpartition("/")[2]].get("required", [])
            is_required = bool(fields) or name in has_one_of
            assert operation["requestBody"]["required"] == is_required, name


def test_statuses_that_share_a_schema_are_one_response(document):
    for operation in operations(document):
        name, found = operation["operationId"], successes(operation)
        contents = [json.dumps(schemas_in(answer)) for answer in found.values()]
        assert len(set(contents)) == len(contents), name
        statuses = sorted(map(str, OPERATIONS[name].answers))
        assert operation.get("x-statuses", sorted(found)) == statuses
        assert ("2XX" in found) == ("x-statuses" in operation), name


def test_headers_of_responses_are_named_in_words_and_no_client_has_types_for_them(document):
    for operation in operations(document):
        for answer in operation["responses"].values():
            assert "headers" not in answer
        for header in OPERATIONS[operation["operationId"]].answer_headers:
            assert f"`{header}`" in json.dumps(successes(operation)), operation["operationId"]
            assert f"`{header}`: " in document["info"]["description"]
    assert "headers" not in document["components"]["responses"]["Problem"]
    problem = document["components"]["schemas"]["Problem"]
    assert problem["properties"]["retry_after_ms"]["format"] == "int64"
    assert "retry_after_ms" not in problem["required"]


def test_maps_are_components_and_every_object_says_what_else_it_may_have(document):
    schemas = document["components"]["schemas"]
    maps = [node for node in nodes(document) if isinstance(node.get("additionalProperties"), dict)]
    assert maps == [schemas["Counts"], schemas["Texts"]]
    for node in nodes(document):
        if node.get("type") == "object":
            assert "properties" in node or "additionalProperties" in node


def test_parameters_are_inline_and_none_has_the_name_of_a_schema(document):
    assert set(document["components"]) == {"schemas", "responses", "securitySchemes"}
    for operation in operations(document):
        assert [one for one in operation.get("parameters", []) if "$ref" in one] == []


def test_the_document_names_a_server_and_its_license(document):
    assert document["servers"][0]["url"] == "http://127.0.0.1:8080"
    assert document["info"]["license"]["identifier"] == "Apache-2.0"


def test_times_are_marked_as_times(document):
    not_times = [
        (schema, name)
        for schema, node in document["components"]["schemas"].items()
        for name, value in node.get("properties", {}).items()
        if (name == "at" or name.endswith("_at")) and value.get("type") == "string"
        if value.get("format") != "date-time"
    ]
    # A time that a broker stored may be no valid date, and is given as a number then.
    assert not_times == [("AuditRecord", "at")]

    parameters = {
        (parameter["name"], parameter["schema"].get("format"))
        for operation in operations(document)
        for parameter in operation.get("parameters", [])
        if parameter["name"].lower().endswith(("_at", "-at")) or parameter["name"] == "at"
    }
    # As a date-time, openapi-python-client would leave the raw send out: it makes no such header.
    assert parameters == {("at", "date-time"), ("Message-Deliver-At", None)}


# --------------------------------------------------------------------------------------------------
# examples, texts


def test_every_operation_that_answers_with_json_has_an_example_that_its_schema_takes_and_so_has_every_body(
    document,
):
    components = {"components": document["components"]}
    for operation in operations(document):
        name = operation["operationId"]
        answers = [answer.get("content", {}) for answer in successes(operation).values()]
        shown = [content for content in as_json(*answers) if "examples" in content]
        assert shown or not as_json(*answers), (
            f"{name} shows no answer: see tests/e2e/test_generated_client.py"
        )
        for content in shown + as_json(operation.get("requestBody", {}).get("content", {})):
            assert list(content["examples"]) == [name]
            validator = jsonschema_rs.validator_for(
                {**content["schema"], **components}, offline=True
            )
            validator.validate(content["examples"][name]["value"])


def test_the_paragraphs_of_a_schemas_description_are_lines_and_none_is_indented_as_code_would_be(
    document,
):
    texts = [
        schema["description"]
        for schema in document["components"]["schemas"].values()
        if "description" in schema
    ]
    assert any("\n\n" in text for text in texts)
    assert [text for text in texts if re.search(r"\n[ \n]*[ ]|[^\n]\n[^\n]", text)] == []


def test_every_schema_is_referred_to(document):
    components = document["components"]

    assert {*components["schemas"], *components["responses"]} == references(document)


def as_json(*contents: dict[str, Any]) -> list[dict[str, Any]]:
    return [content["application/json"] for content in contents if "application/json" in content]


def operation_ids(document: dict[str, Any]) -> list[str]:
    return sorted(operation["operationId"] for operation in operations(document))


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


def successes(operation: dict[str, Any]) -> dict[str, Any]:
    """The responses of success, by status."""
    responses = operation["responses"]
    return {status: answer for status, answer in responses.items() if status != "default"}


def every_answer() -> set[type[msgspec.Struct]]:
    """The structs of responses, and the structs in them that only responses have."""
    asked = [kind for one in OPERATIONS.values() for kind in one.answers.values()]
    waiting = [kind for kind in asked if kind is not None and issubclass(kind, msgspec.Struct)]
    found: set[type[msgspec.Struct]] = set()
    while waiting:
        kind = waiting.pop()
        if kind not in found and not kind.__struct_config__.forbid_unknown_fields:
            found.add(kind)
            waiting += [
                inner for field in get_type_hints(kind).values() for inner in structs(field)
            ]
    return found


def structs(hint: Any) -> list[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [inner for one in get_args(hint) for inner in structs(one)]


def schemas_in(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: one["schema"] for name, one in answer.get("content", {}).items()}


def references(node: Any) -> set[str]:
    """The names of the components that a part of the document refers to."""
    return {found["$ref"].rpartition("/")[2] for found in nodes(node) if "$ref" in found}


def reachable(node: Any, schemas: dict[str, Any]) -> set[str]:
    """The names of the schemas that a part of the document refers to, directly or not."""
    found: set[str] = set()
    waiting = [*references(node)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += references(schemas[name])
    return found


def named(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every schema that has a name: of properties, parameters, and the items in them."""
    found = [
        (name, node)
        for schema in document["components"]["schemas"].values()
        for name, node in schema.get("properties", {}).items()
    ]
    found += [
        (parameter["name"], parameter["schema"])
        for operation in operations(document)
        for parameter in operation.get("parameters", [])
    ]
    return [(name, node) for name, schema in found for node in nodes(schema)]


def nodes(node: Any) -> list[dict[str, Any]]:
    """Every object in the document but examples, which are the caller's."""
    if isinstance(node, list):
        return [found for item in node for found in nodes(item)]
    if not isinstance(node, dict):
        return []
    return [node] + [
        found
        for name, value in node.items()
        if name not in ("example", "examples")
        for found in nodes(value)
    ]
