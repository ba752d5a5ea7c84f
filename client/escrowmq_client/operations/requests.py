"""Operations of requests and their replies."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw

from escrowmq_client import encoding
from escrowmq_client.call import Call, decoded, fields, json_headers, keyed, query
from escrowmq_client.models.messages import MessageInput, PayloadView
from escrowmq_client.models.requests import ReplyResult, RequestView


def send_request(
    topic: str,
    message: MessageInput,
    *,
    timeout_ms: int | None = None,
    wait_ms: int = 0,
    idempotency_key: str | None = None,
) -> Call[RequestView]:
    """Send a message that expects a reply; with `wait_ms` wait for it.

    If its state is `pending`, get the reply later with `get_request`. `request` does both.

    Raises ProblemError (reply_timeout: the deadline passed during the call, `context` has the
    request_id); NotFound (topic_not_found); Overloaded; and what `send_message` raises.
    """
    return Call(
        "sendRequest",
        "POST",
        "/v1/topics/{topic}/requests",
        decoded(RequestView),
        parts={"topic": topic},
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            message=encoding.for_json(message), timeout_ms=timeout_ms, wait_ms=wait_ms or None
        ),
        wait_ms=wait_ms,
    )


def get_request(
    request_id: str, *, payload: PayloadView | None = None, wait_ms: int = 0
) -> Call[RequestView]:
    """Get a request and its reply; with `wait_ms` as soon as it is closed.

    Raises NotFound (request_not_found); ProblemError (message_expired).
    """
    return Call(
        "getRequest",
        "GET",
        "/v1/requests/{request_id}",
        decoded(RequestView),
        parts={"request_id": request_id},
        query=query(payload=payload, wait_ms=wait_ms or None),
        wait_ms=wait_ms,
    )


def cancel_request(request_id: str) -> Call[RequestView]:
    """Cancel a request: its message is no longer delivered, and a reply to it is rejected.

    Raises Conflict (request_closed); NotFound (request_not_found).
    """
    return Call(
        "cancelRequest",
        "DELETE",
        "/v1/requests/{request_id}",
        decoded(RequestView),
        parts={"request_id": request_id},
    )


def reply_to_request(
    request_id: str,
    *,
    json: Any = UNSET,
    payload: str | bytes | None = None,
    content_type: str | None = None,
    properties: Mapping[str, str] | None = None,
    receipt_handle: str | None = None,
    idempotency_key: str | None = None,
) -> Call[ReplyResult]:
    """Reply to a request, and acknowledge its message in the same step.

    `receipt_handle` is that of the request's message; if its lease had ended, the reply counts, and
    `settled` is false. A late reply is kept and marked as late.

    Raises Conflict (request_closed); NotFound (request_not_found); ProblemError (validation_failed,
    message_too_large).
    """
    body = encoding.for_json(
        MessageInput(
            json=json,
            payload=payload,
            content_type=content_type,
            properties=None if properties is None else dict(properties),
        )
    )
    return Call(
        "replyToRequest",
        "POST",
        "/v1/requests/{request_id}/reply",
        decoded(ReplyResult),
        parts={"request_id": request_id},
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            **(
                {}
                if body.json is UNSET
                else {"json": Raw(b"null") if body.json is None else body.json}
            ),
            payload=body.payload,
            payload_encoding=body.payload_encoding,
            content_type=body.content_type,
            properties=body.properties,
            receipt_handle=receipt_handle,
        ),
    )
