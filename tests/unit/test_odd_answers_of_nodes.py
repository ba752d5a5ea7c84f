"""Answers of another program in place of a machine of the service: errors with a reason."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from app.fencing.http_node import HttpNode
from app.fencing.promotion import NoAnswer
from app.names.http_server import HttpNameServer, reason_of, reason_without_answer
from app.names.options import NameOptions
from app.names.registrar import CannotRegister
from app.replicas import frames
from cli.common import Exit
from cli.replica import promote_url
from cli.store import recovery
from tests.unit.test_name_table import primary

NESTED = b'{"other":' + b"[" * 100_000
NO_TEXT = b'{"node":"\xff"}'


class Answers(BaseHTTPRequestHandler):
    status = 200
    body = b""
    content_type = "application/json"

    def answer(self) -> None:
        """Answer every request alike."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.status)
        self.send_header("Content-Type", self.content_type)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_PUT = do_POST = answer  # noqa: N815  the names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(params=[NESTED, NO_TEXT], ids=["nested", "not UTF-8"])
def body(request) -> bytes:
    return request.param


@pytest.fixture
def url(body) -> Iterator[str]:
    kind = type("Given", (Answers,), {"body": body})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("body", [NESTED], ids=["nested"])
async def test_a_name_server_with_such_an_answer_is_none(url):
    server = HttpNameServer(url, NameOptions(), api_key="")
    with pytest.raises(CannotRegister, match="cannot be read"):
        await server.register("a", primary())
    await server.aclose()


async def test_a_machine_with_such_an_answer_makes_no_promise(url):
    async with httpx.AsyncClient() as http:
        with pytest.raises(NoAnswer, match="cannot be read"):
            await HttpNode(url, http).get_promise()


def test_a_program_with_such_an_answer_is_not_promoted(url, capsys):
    status = promote_url.run(url, hand_over=False, accept_loss=False, yes=True, api_key=None)

    assert status == Exit.NOT_CARRIED_OUT
    assert "no machine of the service" in capsys.readouterr().err


def test_a_program_with_such_an_answer_has_no_reports_of_recovery(url):
    with pytest.raises(ValueError, match="did not return a report"):
        recovery.of_service(url, None)


def test_a_refusal_that_is_no_problem_document_is_shown(body):
    assert reason_of(httpx.Response(400, content=body)).startswith("400 {")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (httpx.ReadTimeout(""), "it does not answer in time"),
        (httpx.ReadError(""), "the connection was cut"),
        (httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused"),
    ],
)
def test_a_machine_without_an_answer_has_a_reason_in_words(error, reason):
    assert reason_without_answer(error) == reason


@pytest.mark.parametrize("charset", ["hex", "idna", "undefined"])
def test_a_refusal_in_an_encoding_of_no_text_is_shown(charset):
    headers = {"Content-Type": f"text/html; charset={charset}"}

    assert reason_of(httpx.Response(400, headers=headers, content=b"teapot")) == "400 teapot"


@pytest.mark.parametrize(
    "payload",
    [b"\x81\xa5other" + b"\x91" * 100_000, b"\x81\xa4node\xa1\xff"],
    ids=["nested", "text"],
)
def test_a_frame_of_a_replica_that_no_decoder_takes_is_a_bad_frame(payload):
    with pytest.raises(frames.BadFrame, match="cannot be read"):
        frames.decode(payload, frames.Hello)
