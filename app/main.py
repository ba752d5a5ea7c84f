"""The application: routes, refusals, life cycle."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, NoReturn

from fastapi import FastAPI
from fastapi import Request as AsgiRequest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.admin import disk_handlers as disk
from app.admin import handlers as admin
from app.admission import Admission
from app.asgi.middleware import RequestMiddleware
from app.asgi.routes import OperationRoute
from app.audit import handlers as audit
from app.audit import proof_handlers as audit_proofs
from app.bodies.budget import BodyBudget
from app.consume import handlers as consume
from app.consume import stream as consume_stream
from app.consume.hot import HotAcks, HotReceives
from app.dead_letters import handlers as dead_letters
from app.events import handlers as events
from app.fencing import handlers as fencing
from app.groups import handlers as groups
from app.groups import leases, offsets
from app.health import console
from app.health import endpoints as health
from app.http.browsers import BrowserRules
from app.life.life import Life
from app.life.machine import Machine
from app.life.node_life import NodeLife
from app.life.replica_life import ReplicaLife
from app.life.service_life import ServiceLifecycle
from app.members import handlers as members
from app.messages import lookup, pull, send, stream
from app.messages.hot_batch import HotBatches
from app.messages.hot_pull import HotPulls
from app.messages.hot_send import HotSends
from app.names import handlers as names
from app.observability.metrics import Metrics
from app.openapi import document as openapi
from app.operations import Operation, operations_of
from app.problems import FieldError, Refusal
from app.producer_groups import handlers as producer_groups
from app.requests import handlers as requests
from app.schedules import cron_handlers as cron_schedules
from app.schedules import handlers as schedules
from app.server import asgi
from app.server.connection import HttpServer
from app.server.hot import HotParts
from app.server.lane import OperationLane
from app.server.request import Request
from app.services import Host
from app.settings import Settings
from app.tasks import handlers as tasks
from app.testing import endpoints as testing
from app.testing.controls import Controls
from app.testing.faults import FaultSwitches, kill_this_process
from app.topics import handlers as topics
from app.transactions import handlers as transactions
from app.transactions import query_handlers as transaction_queries
from app.transactions.hot import HotBegins, HotDecisions
from storage.clock import Clock
from txn.states import TxnState

# Routes are asked one after another: those first that are asked for most.
RESOURCES = (
    send, stream, events, lookup, pull, consume, consume_stream, transaction_queries,
    transactions, topics,
    cron_schedules, schedules, producer_groups, groups, leases,
    offsets, members, dead_letters, requests, tasks, names, fencing, audit, audit_proofs, admin,
    disk,
)  # fmt: skip

DESCRIPTION = """
Transactional messaging over plain HTTP. A message sent inside a transaction is held in escrow until
the producer's own database transaction has decided; an undecided one is checked back with the
producer. Consumers only ever see what was committed.

Every refusal is a problem document (RFC 9457) with a `code`; [/problems](/problems) explains each.
Where the problem says `retryable`, the request may be sent again after `retry_after_ms` (in seconds
in the header `Retry-After`); with an `Idempotency-Key` any POST that creates something may be
repeated at any time.

A request body has at most 16 MiB and 100,000 JSON values and is nested at most 128 levels deep; it
may be compressed (`Content-Encoding: gzip`, at most 100 to 1), and counts as it was before. A value
in `json` is stored as UTF-8, without white space and needless escapes and otherwise as it was sent.
Longer answers come as gzip where `Accept-Encoding` says so. Unknown fields and query parameters are
refused; where an object has a name twice, the last one counts. `null` is never sent and is
refused (but inside `json`), times are RFC 3339 in UTC, durations are whole milliseconds.
"""

TAGS = [
    {"name": "topics", "description": "Named sets of queues."},
    {"name": "messages", "description": "Send, get and find messages."},
    {"name": "pull", "description": "Read a queue by offset or time, without a group."},
    {
        "name": "transactions",
        "description": "Begin, commit, roll back, get and resolve transactions.",
    },
    {
        "name": "schedules",
        "description": "Get, list, change and cancel delayed messages and cron schedules.",
    },
    {
        "name": "checks",
        "description": "Questions to producers about the outcome of their transactions, and the "
        "answers.",
    },
    {
        "name": "groups",
        "description": "Consumer groups: their topics, rules and lag.",
    },
    {
        "name": "consume",
        "description": "Receive messages under a lease; acknowledge, reject or extend.",
    },
    {
        "name": "requests",
        "description": "Requests whose reply is stored: send, get the reply from any client, reply "
        "and acknowledge in one step.",
    },
    {
        "name": "dead_letters",
        "description": "Messages that used up their attempts: list, redrive, purge.",
    },
    {
        "name": "tasks",
        "description": "Work on many messages in the background, and its progress.",
    },
    {"name": "offsets", "description": "Committed offsets of consumer groups."},
    {
        "name": "members",
        "description": "Members of consumer groups: each owns queues, and may lock them to process "
        "them in order.",
    },
    {
        "name": "audit",
        "description": "The outcome of every transaction: reports, proofs, the files of the log.",
    },
    {
        "name": "names",
        "description": "Nodes, the ones that take requests, and the places of topics. A replica "
        "answers, too.",
    },
    {"name": "admin", "description": "State of the service: its loops, its store, its disk."},
]


class Application(FastAPI):
    """A FastAPI application with EscrowMQ's own OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def create_app(settings: Settings, *, clock: Clock | None = None) -> FastAPI:
    """The service for these settings. It opens its store when the application starts up."""
    metrics = Metrics()
    controls = Controls(settings.testing) if settings.testing.enabled else None
    machine = Machine(settings, clock or (None if controls is None else controls.clock))
    lifecycle = ServiceLifecycle(settings, metrics, machine, clock=clock, controls=controls)
    return _app_of(settings, lifecycle, metrics, machine, controls)


def create_replica_app(settings: Settings) -> FastAPI:
    """The replica for these settings, in the place of a service."""
    metrics, machine = Metrics(), Machine(settings)
    return _app_of(settings, ReplicaLife(settings, metrics, machine), metrics, machine)


def create_node_app(settings: Settings) -> FastAPI:
    """The machine for these settings: a service or a replica, as its directory says."""
    metrics, machine = Metrics(), Machine(settings)
    return _app_of(settings, NodeLife(settings, metrics, machine), metrics, machine)


def _app_of(
    settings: Settings,
    lifecycle: Life,
    metrics: Metrics,
    machine: Machine,
    controls: Controls | None = None,
) -> FastAPI:

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lifecycle.start()
        try:
            yield
        finally:
            await lifecycle.close()
            await machine.aclose()

    def host_of(operation: Operation) -> Host:
        if operation.by_every_node:
            return machine.node
        return lifecycle.get_reading() if operation.by_replica else lifecycle.get_services()

    operations = [one for module in RESOURCES for one in operations_of(module)]
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
        # One flat table: a router that is included is asked twice for every request.
        routes=[*map(OperationRoute, operations), *health.router.routes, *console.router.routes],
    )
    app.state.lifecycle = lifecycle
    app.state.connections = machine.connections
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.host_of = host_of
    app.mount("/docs/assets", health.ASSETS)
    app.mount("/ui", console.FILES)
    # What the routes raise passes through to the middleware, which answers; the framework's own
    # errors become refusals here.
    app.add_exception_handler(RequestValidationError, _invalid_path)
    app.add_exception_handler(HTTPException, _not_routed)
    faults = None if controls is None else controls.faults
    if controls is not None:
        app.state.controls = controls
        app.routes.extend(testing.router.routes)
        app.add_middleware(
            FaultSwitches, faults=controls.faults, routes=list(app.routes), kill=kill_this_process
        )
    keys = settings.keys
    admission = Admission(
        keys, None if keys else BrowserRules(settings.http.allowed_hosts), settings.http
    )
    bodies = BodyBudget(settings.http.max_bodies_bytes)
    metrics.watch_bodies(lambda: bodies.used_bytes)
    app.add_middleware(
        RequestMiddleware,
        admission=admission,
        bodies=bodies,
        options=settings.http,
        metrics=metrics,
    )
    app.state.lane = OperationLane(
        operations,
        admission=admission,
        bodies=bodies,
        metrics=metrics,
        host_of=host_of,
        is_off=lambda: faults is not None and bool(faults.armed),
    )
    return app


def http_server(app: FastAPI) -> HttpServer:
    """A server of this application's connections, which answers operations itself.

    Called on the event loop.
    """
    lifecycle: Life = app.state.lifecycle
    lane: OperationLane = app.state.lane
    settings: Settings = app.state.settings

    def answer(request: Request) -> Awaitable[None]:
        asked = lane.take(request)
        if asked is not None:
            return lane.answer(asked)
        return asgi.answer(app, request, can_cut=settings.testing.enabled)

    http = HttpServer(
        settings.http,
        app.state.connections,
        answer,
        take=lane.take_bytes,
        bodies=lane.bodies,
        on_slow_reader=lane.metrics.slow_readers.inc,
    )
    parts = HotParts(
        lifecycle.get_services,
        lane.bodies,
        lane.metrics,
        lambda: http.default_lines,
    )
    lane.hot |= {
        "sendMessage": HotSends(parts),
        "sendMessageBatch": HotBatches(parts),
        "ackMessages": HotAcks(parts),
        "receiveMessages": HotReceives(parts),
        "beginTransaction": HotBegins(parts),
        "commitTransaction": HotDecisions(parts, "commitTransaction", TxnState.COMMITTED),
        "rollbackTransaction": HotDecisions(parts, "rollbackTransaction", TxnState.ROLLED_BACK),
    }
    lane.hot_read = "pullMessages", HotPulls(parts, lifecycle.get_reading)
    return http


async def _invalid_path(_: AsgiRequest, error: Exception) -> NoReturn:
    """A part of the path is not what it should be; nothing of the input is echoed."""
    assert isinstance(error, RequestValidationError)
    fields = [
        FieldError(
            "/" + "/".join(map(str, one["loc"])),
            "wrong_type",
            str(one["msg"]).removeprefix("Value error, "),  # the framework's words
        )
        for one in error.errors()
    ]
    raise Refusal("validation_failed", fields[0].detail, errors=fields)


async def _not_routed(request: AsgiRequest, error: Exception) -> NoReturn:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise Refusal("method_not_allowed", headers={"Allow": ", ".join(_methods(request))})
    raise Refusal("route_not_found" if error.status_code == 404 else "internal_error")


def _methods(request: AsgiRequest) -> list[str]:
    """The methods of all routes with this path: the framework names those of the first one only."""
    # A mount has taken its own path for the root of what is below it; the routes know the whole.
    scope = {**request.scope, "root_path": request.scope.get("app_root_path", "")}
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or {"GET"}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
