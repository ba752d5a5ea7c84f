"""The routes of consuming under leases."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.consume import handlers
from app.consume.schemas import AckInput, DeadLetterInput, ExtendInput, NackInput, ReceivedMessages, ReceiveInput, SettleResults
from app.operations import WRITING, OperationRoute, answer, operation

router = APIRouter(route_class=OperationRoute)

Group = Annotated[str, Path(description="The consumer group's name.")]

_HANDLE = "lh_rJZHZGfSqG0AAAAAAAAAABZxB2cVYQAB"
_PROBLEMS = ["group_not_found", "reserved_topic", *WRITING]


@router.post(
    "/v1/groups/{group}/receive",
    **operation(
        "receiveMessages",
        tag="consume",
        body=ReceiveInput,
        example={"max_messages": 10, "lease_ms": 30_000, "wait_ms": 1_000, "worker": "billing-7f"},
        body_is_optional=True,
        answers={200: ReceivedMessages},
        problems=["unsupported_combination", "too_many_waiting", *_PROBLEMS],
    ),
)
async def receive_messages(group: Group, request: Request) -> Response:
    """Take messages under a lease. One that is not settled in time is handed out again."""
    return await answer(request, handlers.receive, group)


@router.post(
    "/v1/groups/{group}/ack",
    **operation(
        "ackMessages",
        tag="consume",
        body=AckInput,
        example={"entries": [{"receipt_handle": _HANDLE}]},
        answers={200: SettleResults, 207: SettleResults},
        problems=_PROBLEMS,
    ),
)
async def ack_messages(group: Group, request: Request) -> Response:
    """Acknowledge messages. On disk when it is answered. 207: at least one lease had ended; its result says so."""
    return await answer(request, handlers.ack, group)


@router.post(
    "/v1/groups/{group}/nack",
    **operation(
        "nackMessages",
        tag="consume",
        body=NackInput,
        example={"entries": [{"receipt_handle": _HANDLE, "delay_ms": 45_000, "reason": "db down"}]},
        answers={200: SettleResults, 207: SettleResults},
        problems=_PROBLEMS,
    ),
)
async def nack_messages(group: Group, request: Request) -> Response:
    """Refuse messages. They are handed out again after a wait, or given up where that was their last attempt."""
    return await answer(request, handlers.nack, group)


@router.post(
    "/v1/groups/{group}/extend",
    **operation(
        "extendLeases",
        tag="consume",
        body=ExtendInput,
        example={"entries": [{"receipt_handle": _HANDLE, "lease_ms": 60_000}]},
        answers={200: SettleResults, 207: SettleResults},
        problems=_PROBLEMS,
    ),
)
async def extend_leases(group: Group, request: Request) -> Response:
    """Keep messages for longer, counted from now. The handles stay the same."""
    return await answer(request, handlers.extend, group)


@router.post(
    "/v1/groups/{group}/dead-letter",
    **operation(
        "deadLetterMessages",
        tag="consume",
        body=DeadLetterInput,
        example={"entries": [{"receipt_handle": _HANDLE, "reason": "bad schema"}]},
        answers={200: SettleResults, 207: SettleResults},
        problems=_PROBLEMS,
    ),
)
async def dead_letter_messages(group: Group, request: Request) -> Response:
    """Give messages up. They go to the group's dead letters, whatever their attempt."""
    return await answer(request, handlers.dead_letter, group)
