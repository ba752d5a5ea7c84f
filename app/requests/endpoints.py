"""The routes of request and reply."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.messages import send
from app.operations import IDEMPOTENCY_KEY, WRITING, HeaderParameter, OperationRoute, answer, operation
from app.requests import handlers
from app.requests.schemas import ReplyInput, ReplyResult, RequestInput, RequestQuery, RequestView

router = APIRouter(route_class=OperationRoute)

Topic = Annotated[str, Path(description="The topic's name.")]
RequestId = Annotated[str, Path(description="The request's id.")]

_PREFER = HeaderParameter("Prefer", "wait=10: another way to say `wait_ms`, in seconds.", {"type": "string"})
_KEPT = ("request_not_found", "message_expired", "record_corrupt", "not_supported_by_engine")


@router.post(
    "/v1/topics/{topic}/requests",
    **operation(
        "sendRequest",
        tag="requests",
        body=RequestInput,
        example={"message": {"json": {"sku": "A1"}}, "timeout_ms": 30_000, "wait_ms": 0},
        answers={200: RequestView, 202: RequestView},
        answer_headers=("Location", "Store-Pressure", "Idempotency-Replayed"),
        headers=[IDEMPOTENCY_KEY, _PREFER],
        problems=(
            "topic_not_found", "queue_not_found", "idempotency_in_progress", "idempotency_key_reused", "message_too_large",
            "message_expired", "unsupported_combination", "reserved_topic", "too_many_waiting", "reply_timeout",
            "record_corrupt", *WRITING,
        ),
    ),
)  # fmt: skip
async def send_request(topic: Topic, request: Request) -> Response:
    """Send a message that is to be replied to. 202: there is no reply yet; GET it where Location says, from anywhere."""
    return await answer(request, handlers.ask, topic, limit=send.limit)


@router.get(
    "/v1/requests/{request_id}",
    **operation(
        "getRequest",
        tag="requests",
        query=RequestQuery,
        answers={200: RequestView},
        headers=[_PREFER],
        problems=(*_KEPT, "too_many_waiting"),
    ),
)
async def get_request(request_id: RequestId, request: Request) -> Response:
    """Look at a request and its reply. With `wait_ms` the answer waits until it is closed."""
    return await answer(request, handlers.get, request_id)


@router.delete(
    "/v1/requests/{request_id}",
    **operation(
        "cancelRequest", tag="requests", answers={200: RequestView}, problems=(*_KEPT, "request_closed", *WRITING)
    ),
)  # fmt: skip
async def cancel_request(request_id: RequestId, request: Request) -> Response:
    """Cancel a request. Its message is not handed out any more, and a reply to it is refused."""
    return await answer(request, handlers.cancel, request_id)


@router.post(
    "/v1/requests/{request_id}/reply",
    **operation(
        "replyToRequest",
        tag="requests",
        body=ReplyInput,
        example={"json": {"price": "4.20"}},
        answers={200: ReplyResult},
        answer_headers=("Store-Pressure", "Idempotency-Replayed"),
        headers=[IDEMPOTENCY_KEY],
        problems=(*_KEPT, "request_closed", "idempotency_key_reused", "message_too_large", *WRITING),
    ),
)
async def reply_to_request(request_id: RequestId, request: Request) -> Response:
    """Reply to a request, and acknowledge its message in the same step. A late reply is kept and marked."""
    return await answer(request, handlers.answer, request_id)
