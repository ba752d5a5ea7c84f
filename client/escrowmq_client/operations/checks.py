"""Operations of producer groups and of the checks of their transactions."""

from collections.abc import Iterable
from typing import Literal

from escrowmq_client.call import (
    Call,
    all_accepted,
    decoded,
    fields,
    if_revision,
    json_headers,
)
from escrowmq_client.models.checks import (
    AnswerInput,
    AnswersResult,
    CheckList,
    CheckTestResult,
    ProducerGroup,
)


def put_producer_group(
    producer_group: str,
    *,
    check_mode: Literal["poll", "webhook"] | None = None,
    check_url: str | None = None,
    timeout_ms: int | None = None,
    concurrency: int | None = None,
    signing_secret: str | None = None,
    if_match: int | None = None,
) -> Call[ProducerGroup]:
    """Create or update a producer group. Fields that are not given keep their value.

    With `check_mode="webhook"` the first answer holds the secret that checks are signed with,
    unless it is your own (`signing_secret`).
    `if_match`: the revision that is to be replaced as a whole.

    Raises Conflict; ProblemError (check_url_refused, revision_mismatch, validation_failed).
    """
    return Call(
        "putProducerGroup",
        "PUT",
        "/v1/producer-groups/{producer_group}",
        decoded(ProducerGroup),
        parts={"producer_group": producer_group},
        headers=json_headers(if_revision(if_match)),
        body=fields(
            check_mode=check_mode,
            check_url=check_url,
            timeout_ms=timeout_ms,
            concurrency=concurrency,
            signing_secret=signing_secret,
        ),
    )


def get_producer_group(producer_group: str) -> Call[ProducerGroup]:
    """Get a producer group. Raises NotFound (producer_group_not_found)."""
    return Call(
        "getProducerGroup",
        "GET",
        "/v1/producer-groups/{producer_group}",
        decoded(ProducerGroup),
        parts={"producer_group": producer_group},
    )


def rotate_signing_secret(
    producer_group: str, *, if_match: int | None = None
) -> Call[ProducerGroup]:
    """Rotate the signing secret of checks, and return the new one.

    For one day checks are signed with both. A call whose answer was lost is not repeated.

    Raises NotFound (producer_group_not_found); ProblemError (revision_mismatch).
    """
    return Call(
        "rotateSigningSecret",
        "POST",
        "/v1/producer-groups/{producer_group}/rotate-secret",
        decoded(ProducerGroup),
        parts={"producer_group": producer_group},
        headers=if_revision(if_match),
        repeatable=False,
    )


def test_check_endpoint(producer_group: str) -> Call[CheckTestResult]:
    """Test the check endpoint of a producer with transactions that do not exist.

    Each case says how a safe endpoint responds. The service stores nothing.

    Raises NotFound (producer_group_not_found); ProblemError (unsupported_combination).
    """
    return Call(
        "testCheckEndpoint",
        "POST",
        "/v1/producer-groups/{producer_group}/check-test",
        decoded(CheckTestResult),
        parts={"producer_group": producer_group},
        wait_ms=_TEST_MS,
    )


def receive_checks(
    producer_group: str,
    *,
    max_checks: int | None = None,
    wait_ms: int = 0,
    lease_ms: int | None = None,
) -> Call[CheckList]:
    """Receive checks to answer, under a lease; with `wait_ms` wait for one.

    A check that is not answered before its lease ends comes again with the same id. Creates the
    group if necessary. Raises Conflict if the group is checked by webhook.
    """
    return Call(
        "receiveChecks",
        "POST",
        "/v1/producer-groups/{producer_group}/checks/receive",
        decoded(CheckList),
        parts={"producer_group": producer_group},
        headers=json_headers(),
        body=fields(max_checks=max_checks, wait_ms=wait_ms or None, lease_ms=lease_ms),
        wait_ms=wait_ms,
    )


def answer_checks(producer_group: str, answers: Iterable[AnswerInput]) -> Call[AnswersResult]:
    """Answer checks: commit, rollback, or unknown while the transaction is still in progress.

    Raises Refused if an answer was refused: the transaction has the other decision
    (AlreadyResolved), or the check is unknown (Conflict: check_not_open). The others are accepted.
    """
    given = list(answers)
    return Call(
        "answerChecks",
        "POST",
        "/v1/producer-groups/{producer_group}/checks/answer",
        all_accepted(AnswersResult, "check_id", [answer.check_id for answer in given]),
        parts={"producer_group": producer_group},
        headers=json_headers(),
        body=fields(answers=given),
    )


_TEST_MS = 90_000  # its five cases, each as long as an endpoint may take
