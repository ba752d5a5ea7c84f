"""What a topic says of the JSON of its messages: compiled without a look outside, judged without a
word of what was sent.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.problems import Refusal, as_refusal
from app.registry.payload_schema import ChecksPending, PayloadSchema, RefusedSchema, until_checked
from app.registry.schema_process import SchemaProcess
from storage.errors import MessagingError


def compiled(schema: object) -> PayloadSchema:
    return PayloadSchema(
        json.dumps(schema).encode(), pointer="/schema/json", process=SchemaProcess(cpu_seconds=0.2)
    )


@contextmanager
def served(schema: object) -> Iterator[tuple[str, list[str]]]:
    """(where it can be got, what was asked for)."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(schema).encode())

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/schema.json", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_reference_to_the_network_is_refused_and_nobody_is_asked():
    with served({"type": "object"}) as (url, asked), pytest.raises(Refusal) as refused:
        compiled({"$ref": url})

    assert refused.value.errors[0].pointer == "/schema/json"
    assert asked == []


def test_a_reference_to_a_file_is_refused_although_it_is_there(tmp_path):
    (tmp_path / "schema.json").write_text('{"type":"object"}')

    with pytest.raises(Refusal):
        compiled({"$ref": (tmp_path / "schema.json").as_uri()})


def test_references_inside_of_a_schema_hold_however_often_they_lead_back():
    tree = compiled(
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "type": "object"}},
        }
    )

    tree.check(b'{"next":{"next":{}}}', pointer="/json")
    with pytest.raises(Refusal) as refused:
        tree.check(b'{"next":{"next":1}}', pointer="/json")
    assert [error.pointer for error in refused.value.errors] == ["/json/next/next"]


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "2019-09", "2020-12"])
def test_every_draft_is_known(draft):
    slash = (
        "https://json-schema.org/draft/" + draft
        if draft[0] == "2"
        else f"http://json-schema.org/{draft}"
    )

    compiled({"$schema": f"{slash}/schema", "type": "object"}).check(b"{}", pointer="/json")


def test_a_refusal_tells_the_place_and_the_reason_and_nothing_of_what_was_sent():
    card = compiled({"properties": {"a/b": {"properties": {"card": {"type": "integer"}}}}})

    with pytest.raises(Refusal) as refused:
        card.check(b'{"a/b":{"card":"4111 1111 1111 1111"}}', pointer="/payload")

    (error,) = refused.value.errors
    assert (error.pointer, error.code) == ("/payload/a~1b/card", "schema")
    assert "integer" in error.detail
    assert "4111" not in f"{error} {refused.value.detail}"


def test_of_a_message_with_many_faults_the_first_fifty_are_told():
    numbers = compiled({"items": {"type": "integer"}})

    with pytest.raises(Refusal) as refused:
        numbers.check(json.dumps(["x"] * 1_000).encode(), pointer="/json")

    assert len(refused.value.errors) == 50


def test_numbers_of_any_size_are_judged():
    big = compiled({"type": "integer", "minimum": 0})

    big.check(str(10**30).encode(), pointer="/json")
    with pytest.raises(Refusal):
        big.check(str(-(10**30)).encode(), pointer="/json")


# -----------------------------------------------------------------------------------------------
# checks beside the loop

TWICE = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}


def nested(levels: int, leaf: bytes = b"") -> bytes:
    return b"[" * levels + leaf + b"]" * levels


async def checked(schema: PayloadSchema, body: bytes) -> list[tuple[str, str]]:
    """(pointer, code) of each error, or of the refusal where it names none."""

    async def build() -> None:
        schema.check(body, pointer="/json")

    try:
        await until_checked(build)
    except MessagingError as error:
        refused = as_refusal(error)
        return [(one.pointer, one.code) for one in refused.errors] or [("", refused.code)]
    return []


@pytest.mark.parametrize("schema", [{}, True, {"type": "array"}])
def test_a_document_of_many_values_is_not_built_on_the_event_loop_however_cheap_its_check_is(
    schema,
):
    with pytest.raises(ChecksPending):
        compiled(schema).check(b"[" + b"[]," * 60_000 + b"[]]", pointer="/json")


@pytest.mark.parametrize(
    ("schema", "small", "large"),
    [
        (TWICE, nested(4), nested(20)),
        ({"items": {"type": "integer"}}, b"[1]", b"[" + b"1," * 200_000 + b"1]"),
        (
            {"uniqueItems": True},
            b'[{"a":1},{}]',
            json.dumps([{"a": number} for number in range(20_000)]).encode(),
        ),
        ({"pattern": r"^(.*a.{200}){3}$"}, b'"ab"', b'"' + b"ab" * 50_000 + b'"'),
        (
            {"enum": [{"a": [number]} for number in range(3_000)]},
            b"{}",
            b'[{"a":[2999]},' + b'{"a":[2998]},' * 100 + b"1]",
        ),
        ({"$dynamicRef": "#here", "$dynamicAnchor": "here"}, None, b"1"),
        (
            {
                "$defs": {"a": {"$id": "http://a.example/", "$defs": {"b": {}}}},
                "$ref": "http://a.example/#/$defs/b",
            },
            None,
            b"1",
        ),
    ],
    ids=["recursive", "items", "unique", "pattern", "enum", "dynamic", "base"],
)
def test_a_check_that_may_take_long_does_not_run_on_the_event_loop(schema, small, large):
    compiled_schema = compiled(schema)

    with pytest.raises(ChecksPending):
        compiled_schema.check(large, pointer="/json")
    if small is not None:
        with suppress(Refusal):
            compiled_schema.check(small, pointer="/json")


async def test_the_process_finds_the_errors_that_the_loop_would_find():
    numbers = compiled({"items": {"type": "integer"}})

    assert await checked(numbers, b"[" + b"1," * 200_000 + b"1]") == []
    assert await checked(numbers, b"[" + b"1," * 200_000 + b'"x"]') == [("/json/200000", "schema")]
    assert await checked(numbers, b"[" + b"1," * 200_000 + b"1") == [("/json", "schema")]


async def test_a_check_over_its_limit_of_time_is_an_answer_and_the_next_one_is_made():
    twice = compiled(TWICE)

    assert await checked(twice, nested(100, b"1")) == [("/json", "limit_reached")]
    assert await checked(twice, nested(8, b"[],[]")) == []
    assert await checked(twice, nested(100, b"1")) == [("/json", "limit_reached")]


async def test_the_answer_to_a_client_that_has_left_is_not_given_to_the_next():
    numbers, texts = (
        compiled({"items": {"type": "integer"}}),
        compiled({"items": {"type": "string"}}),
    )
    texts._process = numbers._process
    body = b"[" + b"1," * 200_000 + b"1]"
    assert await checked(numbers, body) == []
    leaving = asyncio.ensure_future(checked(numbers, body))
    for _ in range(10):  # until the process has the question
        await asyncio.sleep(0)

    leaving.cancel()
    await asyncio.wait([leaving])

    assert await checked(texts, body) == [("/json/0", "schema")]


async def test_more_checks_than_may_wait_are_refused_as_overloaded():
    twice = compiled(TWICE)

    found = await asyncio.gather(*(checked(twice, nested(20 + number)) for number in range(20)))

    assert (found.count([]), found.count([("", "overloaded")])) == (16, 4)


def test_a_stored_schema_over_a_limit_refuses_messages_and_says_why():
    with pytest.raises(Refusal) as refused:
        RefusedSchema("it is too large").check(b"1", pointer="/json")

    assert [(error.pointer, error.code) for error in refused.value.errors] == [
        ("/json", "limit_reached")
    ]
    assert "it is too large" in refused.value.detail
