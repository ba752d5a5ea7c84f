"""The OpenAPI document that is committed, which clients are generated from."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import OpenAPIV30SpecValidator, OpenAPIV31SpecValidator

from app.openapi import document_3_0
from app.operations import OPERATIONS
from cli import openapi
from tests.house.source import ROOT

COMMITTED = ROOT / "openapi" / "openapi.json"

NOT_JSON = {
    "getMessagePayload": "application/octet-stream",
    "sendMessageStream": "application/x-ndjson",
    "downloadAuditReport": "application/octet-stream",
}
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

    converted = document_3_0(
        {
            "openapi": "3.1.0",
            "components": {"schemas": {"Mode": schema, "Modes": {"items": [schema]}}},
        }
    )

    said = {"type": "string", "enum": ["poll"], "example": "poll"}
    assert converted == {
        "openapi": "3.0.3",
        "components": {"schemas": {"Mode": said, "Modes": {"items": [said]}}},
    }
    assert "const" in schema, "the 3.1 document is left as it was"


def test_nothing_is_nullable_and_no_union_needs_a_discriminator(document):
    """What generators stumble over: each makes a class of its own of it, or none."""
    for node in nodes(document):
        assert not {"anyOf", "oneOf", "nullable"} & set(node)
        assert node.get("type") != "null"
        assert not isinstance(node.get("type"), list)


def test_every_operation_has_an_id_one_tag_and_a_summary_and_names_its_refusals(document):
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["operationId"]
            assert len(operation["tags"]) == 1
            assert operation["summary"]
            assert not operation["summary"].endswith(".")
            statuses = operation["responses"]
            assert "default" not in statuses
            assert {"401", "422", "500", "503"} <= set(statuses)
            for status, answer in statuses.items():
                if status == "204":
                    assert "content" not in answer
                    continue
                name = operation["operationId"]
                good = [NOT_JSON.get(name, "application/json"), *BESIDE_JSON.get(name, [])]
                assert list(answer["content"]) == (
                    good if int(status) < 400 else ["application/problem+json"]
                )


def test_every_operation_that_answers_with_json_has_an_example_that_its_schema_takes_and_so_has_every_body(
    document,
):
    components = {"components": document["components"]}
    for operation in (one for path in document["paths"].values() for one in path.values()):
        name = operation["operationId"]
        answers = [
            answer.get("content", {})
            for status, answer in operation["responses"].items()
            if status < "300"
        ]
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
    references = {node["$ref"].rpartition("/")[2] for node in nodes(document) if "$ref" in node}

    assert set(document["components"]["schemas"]) == references


def as_json(*contents: dict[str, Any]) -> list[dict[str, Any]]:
    return [content["application/json"] for content in contents if "application/json" in content]


def operation_ids(document: dict[str, Any]) -> list[str]:
    return sorted(
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    )


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
