"""Methods that take several calls of the service, one after another."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from escrowmq_client.errors import ProblemError, error_of
from escrowmq_client.methods import Steps
from escrowmq_client.models.messages import MessageInput
from escrowmq_client.models.problem import Problem
from escrowmq_client.models.requests import Reply, RequestView
from escrowmq_client.operations.requests import get_request, send_request

_LONGEST_WAIT_MS = 30_000


def request(
    topic: str,
    *,
    json: Any = UNSET,
    payload: str | bytes | None = None,
    key: str | None = None,
    keys: list[str] | None = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    content_type: str | None = None,
    timeout_ms: int = 30_000,
    idempotency_key: str | None = None,
) -> Steps[Reply]:
    """Send a message that expects a reply, and wait for it.

        price = client.request("pricing", json={"sku": "A1"}, timeout_ms=5_000).json()

    Raises ProblemError (reply_timeout) if no reply came within `timeout_ms`: `context` has the
    `request_id`, by which a late reply can be found. Conflict (request_closed) if the request was
    cancelled meanwhile. What `send_message` raises.
    """
    message = MessageInput(
        json=json,
        payload=payload,
        key=key,
        keys=keys,
        tag=tag,
        properties=None if properties is None else dict(properties),
        content_type=content_type,
    )
    view: RequestView = yield send_request(
        topic,
        message,
        timeout_ms=timeout_ms,
        wait_ms=min(timeout_ms, _LONGEST_WAIT_MS),
        idempotency_key=idempotency_key,
    )
    while view.state == "pending":
        view = yield get_request(view.request_id, wait_ms=_LONGEST_WAIT_MS)
    if view.state == "replied" and view.reply is not None:
        return view.reply
    raise _no_reply(view)


def _no_reply(view: RequestView) -> ProblemError:
    closed = view.state == "cancelled"
    return error_of(
        Problem(
            type="/problems/request_closed" if closed else "/problems/reply_timeout",
            title="Request closed" if closed else "No reply in time",
            status=409 if closed else 504,
            code="request_closed" if closed else "reply_timeout",
            detail=f"The request {view.request_id} is {view.state}.",
            retryable=False,
            context={"request_id": view.request_id, "state": view.state},
        )
    )
