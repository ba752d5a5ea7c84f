"""What counts as an answer to a check: status 200, application/json and a known decision, nothing
else.
"""

import json

import pytest

from app.webhooks.answers import read_answer, read_retry_after
from app.webhooks.received import Answer
from txn.producer import Answered, Failed, Failure
from txn.states import TxnEvent

NOW_MS = 1_800_000_000_000
JSON = {"content-type": "application/json"}
COMMIT = b'{"decision":"commit"}'


def read(body: bytes = COMMIT, status: int = 200, headers=JSON) -> Answered | Failed:
    return read_answer(Answer(status, headers, body), now_ms=NOW_MS)


@pytest.mark.parametrize("decision", ["commit", "rollback", "unknown"])
def test_the_three_words_are_answers(decision):
    answer = read(json.dumps({"decision": decision}).encode())

    assert answer == Answered(TxnEvent(decision))


def test_an_answer_may_say_when_to_ask_again_and_what_it_found_and_more():
    body = {
        "decision": "unknown",
        "recheck_after_ms": 500,
        "evidence": {"row": "order_outbox:8812"},
        "took": 3,
        "note": None,
    }

    assert read(json.dumps(body).encode()) == Answered(
        TxnEvent.UNKNOWN, 0, 500, {"row": "order_outbox:8812"}
    )


def test_null_is_as_good_as_absent():
    assert read(b'{"decision":"commit","recheck_after_ms":null,"evidence":null}') == Answered(
        TxnEvent.COMMIT
    )


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8"]
)
def test_the_content_type_may_have_parameters_and_any_case(content_type):
    assert isinstance(read(headers={"content-type": content_type}), Answered)


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "text/html", "application/problem+json", "application/jsonl"],
)
def test_another_content_type_is_no_answer(content_type):
    failed = read(headers={} if content_type is None else {"content-type": content_type})

    assert (failed.why, failed.blames_host) == (Failure.INVALID, False)


@pytest.mark.parametrize(
    "body",
    [b"", b"commit", b'"commit"', b"[]", b"null", b"{}", b'{"decision":"COMMIT"}',
    b'{"decision":"committed"}',
     b'{"decision":" commit"}', b'{"decision":true}', b'{"decision":null}',
     b'{"decision":["commit"]}',
     b'{"Decision":"commit"}',
     b'{"decision":"commit"', b'{"decision":"commit"}}', b'{"decision":"commit"} x',
     b'\xef\xbb\xbf{"decision":"commit"}',
     '{"decision":"commit"}'.encode("utf-16"), b'{"decision":"commit","x":"\xff"}',
     b'{"decision":"commit","x":NaN}',
     b'{"decision":"rollback","decision":"commit"}',
     b'{"decision":"commit","evidence":{"a":"1","a":"2"}}',
     b'{"decision":"commit","recheck_after_ms":-1}',
     b'{"decision":"commit","recheck_after_ms":86400001}',
     b'{"decision":"commit","recheck_after_ms":"5"}',
     b'{"decision":"commit","recheck_after_ms":true}',
     b'{"decision":"commit","evidence":{"row":5}}', b'{"decision":"commit","evidence":"row"}',
     b'{"decision":"commit","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
     json.dumps({"decision": "commit", "evidence": {"row": "x" * 4_096}}).encode(),
     json.dumps({"decision": "commit", "evidence": {str(n): "" for n in range(33)}}).encode()],
)  # fmt: skip
def test_any_other_body_is_no_answer(body):
    failed = read(body)

    assert (failed.why, failed.blames_host, failed.is_gone) == (Failure.INVALID, False, False)
    assert failed.detail.isprintable()
    assert len(failed.detail) < 300


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            b'{"decision":"yes"}',
            "/decision: Invalid enum value 'yes': it is one of commit, rollback, unknown",
        ),
        (b'{"decsion":"commit"}', "/decision: Object missing required field `decision`"),
        (
            b'{"decision":"commit","recheck_after_ms":"1"}',
            "/recheck_after_ms: Expected `integer`, got `string`",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_told_by_its_field(body, detail):
    assert read(body).detail == f"the body is no answer: {detail}"


def test_an_encoded_body_is_no_answer():
    assert read(headers=JSON | {"content-encoding": "gzip"}).why is Failure.INVALID
    assert isinstance(read(headers=JSON | {"content-encoding": "identity"}), Answered)


@pytest.mark.parametrize(
    ("status", "why", "blames_host"),
    [
        *[
            (status, Failure.INVALID, False)
            for status in (201, 202, 204, 206, 301, 307, 400, 401, 404, 409)
        ],
        *[(status, Failure.UNREACHABLE, True) for status in (408, 429, 500, 502, 503)],
    ],
)
def test_a_commit_under_any_other_status_is_no_answer(status, why, blames_host):
    failed = read(status=status)

    assert (failed.why, failed.blames_host, failed.is_gone) == (why, blames_host, False)
    assert str(status) in failed.detail


def test_410_says_that_nobody_is_to_be_asked_there_any_more():
    assert read(status=410).is_gone


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert read(status=503, headers={"retry-after": "7"}).retry_after_ms == 7_000
    assert read_retry_after("Fri, 15 Jan 2027 08:00:30 GMT", NOW_MS) == 30_000
    assert read_retry_after("Fri, 15 Jan 2027 07:00:00 GMT", NOW_MS) == 0
    assert read_retry_after("9" * 400, NOW_MS) == 86_400_000
    for nonsense in (None, "", "soon", "-1", "1.5", "²", "Fri, 99 Jan 2027 08:00:30 GMT"):
        assert read_retry_after(nonsense, NOW_MS) is None
