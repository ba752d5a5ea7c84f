"""The routes of producer groups and checks."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.operations import IF_MATCH, WRITING, OperationRoute, answer, operation
from app.producer_groups import handlers
from app.producer_groups.schemas import (
    AnswersInput,
    AnswersResult,
    CheckList,
    CheckTestInput,
    CheckTestResult,
    ProducerGroup,
    ProducerGroupInput,
    ReceiveChecksInput,
    RotateSecretInput,
)

router = APIRouter(route_class=OperationRoute)

Name = Annotated[str, Path(description="The producer group's name.")]


@router.put(
    "/v1/producer-groups/{producer_group}",
    **operation(
        "putProducerGroup",
        tag="checks",
        body=ProducerGroupInput,
        example={"check_mode": "poll"},
        answer_headers=["ETag"],
        body_is_optional=True,
        answers={201: ProducerGroup, 200: ProducerGroup},
        headers=[IF_MATCH],
        problems=["check_conflict", "reserved_topic", "revision_mismatch", "check_url_refused", "storage_full"],
    ),
)
async def put_producer_group(producer_group: Name, request: Request) -> Response:
    """Create a producer group or change it. With `webhook` the first answer holds the secret that checks are signed with."""
    return await answer(request, handlers.put, producer_group)


@router.get(
    "/v1/producer-groups/{producer_group}",
    **operation(
        "getProducerGroup",
        tag="checks",
        answer_headers=["ETag"],
        answers={200: ProducerGroup},
        problems=["producer_group_not_found", "reserved_topic"],
    ),
)
async def get_producer_group(producer_group: Name, request: Request) -> Response:
    """Look at a producer group."""
    return await answer(request, handlers.get, producer_group)


@router.post(
    "/v1/producer-groups/{producer_group}/rotate-secret",
    **operation(
        "rotateSigningSecret",
        tag="checks",
        body=RotateSecretInput,
        example={},
        body_is_optional=True,
        answer_headers=["ETag"],
        answers={200: ProducerGroup},
        headers=[IF_MATCH],
        problems=[
            "producer_group_not_found", "reserved_topic", "revision_mismatch", "unsupported_combination", "storage_full",
        ],
    ),
)  # fmt: skip
async def rotate_signing_secret(producer_group: Name, request: Request) -> Response:
    """Replace the secret that checks are signed with. The answer holds the new one; for a day checks are signed with both."""
    return await answer(request, handlers.rotate_secret, producer_group)


@router.post(
    "/v1/producer-groups/{producer_group}/check-test",
    **operation(
        "testCheckEndpoint",
        tag="checks",
        body=CheckTestInput,
        example={},
        body_is_optional=True,
        answers={200: CheckTestResult},
        problems=["producer_group_not_found", "reserved_topic", "unsupported_combination", "too_many_waiting"],
    ),
)
async def test_check_endpoint(producer_group: Name, request: Request) -> Response:
    """Ask a producer's endpoint about made-up transactions. Each case says what a safe endpoint does; nothing is written."""
    return await answer(request, handlers.test_endpoint, producer_group)


@router.post(
    "/v1/producer-groups/{producer_group}/checks/receive",
    **operation(
        "receiveChecks",
        tag="checks",
        body=ReceiveChecksInput,
        example={"max_checks": 50, "wait_ms": 1_000, "lease_ms": 15_000},
        body_is_optional=True,
        answers={200: CheckList},
        problems=["reserved_topic", "too_many_waiting", *WRITING],
    ),
)
async def receive_checks(producer_group: Name, request: Request) -> Response:
    """Take checks to answer, under a lease. One that is not answered in time comes again under the same id."""
    return await answer(request, handlers.receive_checks, producer_group)


@router.post(
    "/v1/producer-groups/{producer_group}/checks/answer",
    **operation(
        "answerChecks",
        tag="checks",
        body=AnswersInput,
        example={"answers": [{"check_id": "chk_1_order-8812", "decision": "commit", "evidence": {"row": "order_outbox:8812"}}]},
        answers={200: AnswersResult, 207: AnswersResult},
        problems=["producer_group_not_found", "reserved_topic"],
    ),
)
async def answer_checks(producer_group: Name, request: Request) -> Response:
    """Answer checks. 207: at least one of the answers was refused; its result says why."""
    return await answer(request, handlers.answer_checks, producer_group)
