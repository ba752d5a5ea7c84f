"""Parse a response as the answer to a check. Pure.

Only status 200, `application/json` and a known decision is one; everything else is a try that gave
no answer, whatever it says. A producer whose check failed and that says so with 200 and a text must
never commit anything.
"""

import json
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.codec import field_error
from app.named_schemas import Int32, Texts
from app.webhooks.received import Answer
from app.word_sets import CheckDecision, CheckQuestionKind
from txn.producer import Answered, Failed, Failure
from txn.states import TxnEvent

MAX_EVIDENCE_BYTES = 4_096
_MAX_SECONDS = 86_400
_BUSY = (408, 425, 429)


class CheckQuestion(msgspec.Struct, kw_only=True):
    """A check of one transaction, signed according to Standard Webhooks.

    The webhook-id is the check_id in every attempt.
    """

    kind: CheckQuestionKind = "transaction.check"
    check_id: str
    transaction_id: str
    business_key: str | UnsetType = UNSET
    age_ms: int
    answer_number: Annotated[
        Int32,
        Meta(
            description="From 1: the number of this answer, counted since the transaction was "
            "begun or resumed."
        ),
    ]


class CheckAnswer(msgspec.Struct, kw_only=True):
    """The producer's answer.

    Answer `unknown` while the transaction is still in progress. Unknown fields are ignored.
    """

    decision: CheckDecision
    recheck_after_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=86_400_000,
                description="Delay before the next check, instead of the interval.",
            ),
        ]
        | UnsetType
    ) = UNSET
    evidence: (
        Annotated[
            Texts, Meta(max_length=32, description="At most 32 texts; stored with the answer.")
        ]
        | UnsetType
    ) = UNSET


def read_answer(answer: Answer, *, now_ms: int) -> Answered | Failed:
    """Interpret the response of an endpoint."""
    if answer.status != 200:
        return _refused(answer, now_ms)
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        return _invalid(
            f"the content type is {_shown(content_type) or 'missing'}, not application/json"
        )
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return _invalid("the body is encoded although no encoding was asked for")
    try:
        found = json.loads(
            answer.body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number
        )
        if not isinstance(found, dict):
            return _invalid("the body is no JSON object")
        # Many libraries write null for what is absent.
        given = msgspec.convert(
            {name: value for name, value in found.items() if value is not None}, CheckAnswer
        )
    except msgspec.ValidationError as error:
        wrong = field_error(str(error), CheckAnswer)
        return _invalid(f"the body is no answer: {_shown(f'{wrong.pointer}: {wrong.detail}')}")
    except (ValueError, RecursionError) as error:
        return _invalid(f"the body is no answer: {_shown(str(error))}")
    if (
        given.evidence is not UNSET
        and len(msgspec.json.encode(given.evidence)) > MAX_EVIDENCE_BYTES
    ):
        return _invalid(f"the evidence is longer than {MAX_EVIDENCE_BYTES} bytes of JSON")
    return Answered(
        TxnEvent(given.decision),
        recheck_after_ms=None if given.recheck_after_ms is UNSET else given.recheck_after_ms,
        evidence=None if given.evidence is UNSET else given.evidence,
    )


def _refused(answer: Answer, now_ms: int) -> Failed:
    status = answer.status
    is_down = status >= 500 or status in _BUSY
    return Failed(
        Failure.UNREACHABLE if is_down or status == 410 else Failure.INVALID,
        f"status {status}",
        retry_after_ms=read_retry_after(answer.headers.get("retry-after"), now_ms),
        is_gone=status == 410,
        blames_host=is_down,
    )


def read_retry_after(text: str | None, now_ms: int) -> int | None:
    """Milliseconds; None where it is missing or neither seconds nor a date."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:10]), _MAX_SECONDS) * 1000
    try:
        moment_ms = int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0, moment_ms - now_ms), _MAX_SECONDS * 1000)


def _invalid(detail: str) -> Failed:
    return Failed(Failure.INVALID, detail)


def _shown(text: str) -> str:
    """Foreign text, made safe for a log and a problem."""
    return "".join([character if character.isprintable() else "?" for character in text[:200]])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
