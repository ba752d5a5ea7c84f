"""The application: routes, refusals, life cycle."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app import codec, openapi
from app.gateway import Gateway
from app.groups import endpoints as groups
from app.health import endpoints as health
from app.messages import endpoints as messages
from app.observability import Metrics
from app.problems import MEDIA_TYPE, FieldError, Refusal, as_refusal, document
from app.producer_groups import endpoints as producer_groups
from app.settings import Settings
from app.topics import endpoints as topics
from app.transactions import endpoints as transactions
from app.wiring import Wiring
from storage.clock import Clock
from storage.errors import MessagingError

DESCRIPTION = """
Transactional messaging over plain HTTP. A message sent inside a transaction is held in escrow until the producer's own database
transaction has decided; an undecided one is checked back with the producer. Consumers only ever see what was committed.

Every refusal is a problem document (RFC 9457) with a code from a closed list; `/problems/{code}` explains each.
"""

TAGS = [
    {"name": "topics", "description": "Named sets of queues."},
    {"name": "messages", "description": "Send, and pull by offset."},
    {"name": "transactions", "description": "Begin, commit, roll back, look at, resolve."},
    {"name": "checks", "description": "What became of your transaction? Producers take the question and answer it."},
    {"name": "offsets", "description": "Where consumer groups continue."},
]


class Application(FastAPI):
    """With our own OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def create_app(settings: Settings, *, clock: Clock | None = None) -> FastAPI:
    """The service for these settings. It opens its store when the application starts up."""
    metrics = Metrics()
    wiring = Wiring(settings, metrics, clock=clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        wiring.start()
        yield
        await wiring.close()

    app = Application(
        title="EscrowMQ",
        version=version("escrowmq"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.wiring = wiring
    app.state.metrics = metrics
    app.state.get_services = wiring.get_services
    for resource in (topics, messages, transactions, producer_groups, groups, health):
        app.include_router(resource.router)
    app.mount("/docs/assets", health.ASSETS)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(MessagingError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid_path)
    app.add_exception_handler(HTTPException, _not_routed)
    keys = [key.get_secret_value() for key in settings.api_keys]
    app.add_middleware(Gateway, api_keys=keys, max_body_bytes=settings.http.max_body_bytes, metrics=metrics)
    return app


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return _problem(request, refusal)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, MessagingError)
    return _problem(request, as_refusal(error))


async def _invalid_path(request: Request, error: Exception) -> Response:
    """A part of the path is not what it should be; nothing of the input is echoed."""
    assert isinstance(error, RequestValidationError)
    fields = [FieldError("/" + "/".join(map(str, one["loc"])), "wrong_type", str(one["msg"])) for one in error.errors()]
    return _problem(request, Refusal("validation_failed", fields[0].detail, errors=fields))


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "internal_error")
    return _problem(request, Refusal(code, headers=dict(error.headers or {})))


def _problem(request: Request, refusal: Refusal) -> Response:
    problem = document(refusal, instance=request.url.path, request_id=request.state.request_id)
    return Response(codec.encode(problem), problem.status, refusal.headers, MEDIA_TYPE)
