"""Which requests the server's own lane takes: each operation's, as FastAPI's routes have it."""

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from app.main import create_app
from app.operations import OPERATIONS
from app.server.lane import OperationLane
from app.settings import Settings

PATHS = (
    *(operation.path.replace("{queue_id}", "3").replace("{", "").replace("}",
    "") for operation in OPERATIONS.values()),
    "/", "/v1", "/v1/", "/v1/topics/", "/v1/topics//messages", "/v1/topics/a/b/c/d",
    "/v1/topics/a/queues/x/messages",
    "/v1/topics/a/queues/-1/messages", "/v1/topics/a/queues/1.0/messages", "/v1/transactions/a/b",
    "/v2/topics", "//v1/topics",
    "/livez", "/docs", "/v1/dev/clock",
)  # fmt: skip


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("lane")))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_the_lane_finds_the_operation_that_the_routes_find(app, method):
    lane: OperationLane = app.state.lane
    for path in PATHS:
        found = lane.find(method, path)
        scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        routes = [
            route
            for route in app.routes
            if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL
        ]
        if found is not None:
            assert found[0].operation_id == routes[0].operation_id, path
            given = list(routes[0].matches(scope)[1]["path_params"].values())
            assert list(map(str, found[1])) == given, path
        elif routes and routes[0].operation_id in OPERATIONS:
            operation = OPERATIONS[routes[0].operation_id]
            is_left_out = operation.takes_lines or operation.streams or "/queues/" in path
            assert is_left_out or method == "HEAD", path
