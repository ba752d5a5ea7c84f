"""What a topic says of the JSON of its messages: compiled without a look outside, judged without a word of what was sent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.problems import Refusal
from app.registry.payload_schema import PayloadSchema


def compiled(schema: object) -> PayloadSchema:
    return PayloadSchema(json.dumps(schema).encode(), pointer="/schema/json")


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
        {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "type": "object"}}}
    )

    tree.check(b'{"next":{"next":{}}}', pointer="/json")
    with pytest.raises(Refusal) as refused:
        tree.check(b'{"next":{"next":1}}', pointer="/json")
    assert [error.pointer for error in refused.value.errors] == ["/json/next/next"]


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "2019-09", "2020-12"])
def test_every_draft_is_known(draft):
    slash = "https://json-schema.org/draft/" + draft if draft[0] == "2" else f"http://json-schema.org/{draft}"

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
