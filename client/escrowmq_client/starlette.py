"""An endpoint for checks in a Starlette or FastAPI application.

app.include_router(check_router(secrets, markers.outcome))              # FastAPI
app = Starlette(routes=[check_route("/mq/check", secrets, answer)])     # Starlette
"""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from escrowmq_client.check_answers import Answer, AskedCheck, AsyncAnswer, Decided
from escrowmq_client.check_requests import (
    JSON,
    MOST_BYTES,
    CheckResponse,
    RequestRefused,
    Secrets,
    decided,
    failed,
    read_check,
    too_large,
)
from escrowmq_client.models.checks import CheckQuestion
from escrowmq_client.worker.calling import awaited, called

if TYPE_CHECKING:
    from fastapi import APIRouter

DEFAULT_PATH = "/mq/check"

_log = logging.getLogger(__name__)


def check_router(
    secrets: Secrets, answer: Answer | AsyncAnswer, *, path: str = DEFAULT_PATH
) -> "APIRouter":
    """A router for FastAPI, with one route that is in no OpenAPI document."""
    from fastapi import APIRouter

    router = APIRouter()
    router.add_route(
        path, check_endpoint(secrets, answer), methods=["POST"], include_in_schema=False
    )
    return router


def check_route(path: str, secrets: Secrets, answer: Answer | AsyncAnswer) -> Route:
    """A route for Starlette."""
    return Route(path, check_endpoint(secrets, answer), methods=["POST"], include_in_schema=False)


def check_endpoint(
    secrets: Secrets, answer: Answer | AsyncAnswer
) -> Callable[[Request], Awaitable[Response]]:
    """A function that verifies a check and answers it.

    `secrets`: one, several, or a function that returns them. `answer`: gets the check and returns
    `commit`, `rollback`, `unknown` or a `CheckAnswer`. Functions that are not `async` run in the
    thread pool; if `answer` raises, the answer is `unknown` with the reason as evidence.
    """

    async def endpoint(request: Request) -> Response:
        try:
            check = await _read(secrets, request)
        except RequestRefused as refused:
            return _response(refused.response)
        try:
            return _response(decided(await _ask(answer, check)))
        except Exception as error:  # noqa: BLE001  the check has to be answered all the same
            _log.warning("%s: answered unknown", check.transaction_id, exc_info=error)
            return _response(failed(error))

    return endpoint


async def _read(secrets: Secrets, request: Request) -> CheckQuestion:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise too_large()
    # a function may look the secrets up in a database
    found = await run_in_threadpool(secrets) if callable(secrets) else secrets
    return read_check(found, request.headers, body, now=time.time())


async def _ask(answer: Answer | AsyncAnswer, check: AskedCheck) -> Decided:
    method = getattr(answer, "__call__", answer)  # noqa: B004  of an object
    if inspect.iscoroutinefunction(answer) or inspect.iscoroutinefunction(method):
        return await awaited(cast("AsyncAnswer", answer)(check))
    return await run_in_threadpool(called, cast("Answer", answer), check)


def _response(response: CheckResponse) -> Response:
    return Response(response.body, response.status, media_type=JSON)
