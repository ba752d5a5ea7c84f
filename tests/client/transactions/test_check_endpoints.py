"""Endpoints for checks in Starlette, FastAPI and Django: safe by the service's own test, and a
status of 200 means a decision.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
import httpx
import pytest
import uvicorn
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path as django_path
from fastapi import FastAPI
from starlette.applications import Starlette

from escrowmq_client import CommitPending, webhooks
from escrowmq_client.django import check_view
from escrowmq_client.starlette import check_route, check_router
from tests.client.transactions.databases import STYLES, SqliteDatabase

SECRETS = [webhooks.new_secret(), webhooks.new_secret()]
CHECK = {
    "kind": "transaction.check",
    "check_id": "chk_1",
    "transaction_id": "order-1",
    "age_ms": 10_000,
    "answer_number": 1,
    "later": "a field of a later release",
}
_numbers = count(1)
urlpatterns: list = []  # of the Django project


@contextmanager
def asgi(app) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def told(*given, **named) -> None:
        await startup(*given, **named)
        started.set()

    server.startup = told
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(30)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mq/check"
    finally:
        server.should_exit = True
        thread.join(30)


class Quiet(WSGIRequestHandler):
    def log_message(self, *_) -> None:
        """Nothing is written."""


@contextmanager
def starlette_project(secrets, answer) -> Iterator[str]:
    with asgi(Starlette(routes=[check_route("/mq/check", secrets, answer)])) as url:
        yield url


@contextmanager
def fastapi_project(secrets, answer) -> Iterator[str]:
    app = FastAPI()
    app.include_router(check_router(secrets, answer))
    with asgi(app) as url:
        yield url


@contextmanager
def django_project(secrets, answer) -> Iterator[str]:
    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["127.0.0.1"],
            MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
            LOGGING_CONFIG=None,
        )
        django.setup()
    urlpatterns[:] = [django_path("mq/check", check_view(secrets, answer))]
    from django.urls import clear_url_caches

    clear_url_caches()
    server = make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mq/check"
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


PROJECTS = {"starlette": starlette_project, "fastapi": fastapi_project, "django": django_project}
Project = Callable[..., object]


@pytest.fixture(params=PROJECTS)
def project(request) -> Project:
    return PROJECTS[request.param]


def post(url: str, body: bytes, *, secret: str = SECRETS[0], age: int = 0) -> httpx.Response:
    now = int(time.time()) - age
    headers = webhooks.sign([secret], webhook_id="chk_1", timestamp=now, body=body)
    return httpx.post(
        url, content=body, headers=headers | {"Content-Type": "application/json"}, trust_env=False
    )


def encoded(**fields) -> bytes:
    return json.dumps(CHECK | fields).encode()


def test_an_endpoint_that_answers_by_markers_passes_the_test_of_the_service(
    service, client, project, tmp_path
):
    style = STYLES["sqlalchemy"](SqliteDatabase(str(tmp_path / "shop.db")))
    style.markers.create_table()
    secrets: list[str] = []
    with project(lambda: secrets, style.markers.outcome) as url:
        group = f"webhook-{next(_numbers)}"
        secrets.append(service.producer_group(group, check_url=url).signing_secret)

        result = client.test_check_endpoint(group)

    assert [case.case for case in result.cases if not case.passed] == []
    assert len(result.cases) == 5
    style.close()


def test_a_check_of_a_lost_transaction_is_answered_over_the_endpoint(
    service, client, project, tmp_path
):
    style = STYLES["sqlalchemy"](SqliteDatabase(str(tmp_path / "shop.db")))
    style.markers.create_table()
    topic = service.topic(f"webhook-{next(_numbers)}")
    secrets: list[str] = []
    with project(lambda: secrets, style.markers.outcome) as url:
        group = f"webhook-{next(_numbers)}"
        secrets.append(service.producer_group(group, check_url=url).signing_secret)
        service.drop_commit()
        with (  # noqa: PT012
            pytest.raises(CommitPending),
            client.transaction(group) as tx,
        ):
            tx.add(topic, json=1)
            with style.local() as db:
                tx.mark(db)

        service.advance(seconds=15)

    assert service.transaction(tx.transaction_id)["state"] == "committed"
    style.close()


@pytest.mark.parametrize("secret", SECRETS, ids=["newer", "older"])
@pytest.mark.parametrize("decision", ["commit", "rollback", "unknown"])
def test_a_decision_is_200_with_json_by_each_of_the_secrets(project, secret, decision):
    asked = []

    def answer(check):
        asked.append((check.transaction_id, check.age_ms, check.business_key))
        return decision

    with project(SECRETS, answer) as url:
        response = post(url, encoded(business_key="b1"), secret=secret)

    assert (response.status_code, response.json()) == (200, {"decision": decision})
    assert response.headers["content-type"] == "application/json"
    assert asked == [("order-1", 10_000, "b1")]


def test_what_is_not_signed_now_or_no_check_is_refused_and_not_asked(project):
    def answer(check):
        raise AssertionError("asked")

    with project(SECRETS[0], answer) as url:
        assert post(url, encoded(), secret=SECRETS[1]).status_code == 401
        assert post(url, encoded(), age=301).status_code == 401
        assert post(url, encoded(), age=-330).status_code == 401
        assert httpx.post(url, content=encoded(), trust_env=False).status_code == 401
        # the signature is over the bytes, so it is looked at first
        assert post(url, b"{", secret=SECRETS[1]).status_code == 401
        assert post(url, b"{").status_code == 400
        assert post(url, b'{"kind": "transaction.check"}').status_code == 400
        assert post(url, encoded(kind="other")).status_code == 400
        assert post(url, encoded(filler="x" * 70_000)).status_code == 413
        assert httpx.get(url, trust_env=False).status_code == 405


def test_an_error_of_the_answer_is_unknown_with_its_reason(project, caplog):
    def answer(check):
        raise ConnectionError("the database is away")

    with project(SECRETS, answer) as url:
        response = post(url, encoded())

    assert response.json() == {
        "decision": "unknown",
        "evidence": {"reason": "ConnectionError: the database is away"},
    }
    assert "order-1: answered unknown" in caplog.text


async def await_a_cancelled_task(_: object) -> str:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task
    return "commit"


@pytest.mark.parametrize("is_blocking", [True, False])
def test_an_answer_whose_own_task_was_cancelled_is_unknown(project, is_blocking):
    def answer(check):
        return asyncio.run(await_a_cancelled_task(check))

    if project is django_project and not is_blocking:
        pytest.skip("the endpoint for Django takes plain functions")
    with project(SECRETS, answer if is_blocking else await_a_cancelled_task) as url:
        response = post(url, encoded())

    assert (response.status_code, response.json()["decision"]) == (200, "unknown")


@pytest.mark.parametrize("name", ["starlette", "fastapi"])
def test_a_function_that_blocks_runs_beside_the_event_loop_and_an_asynchronous_one_on_it(name):
    on_the_loop = []

    def look() -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            on_the_loop.append(False)
        else:
            on_the_loop.append(True)

    def blocking(check):
        look()
        return "commit"

    async def asynchronous(check):
        look()
        return "rollback"

    with PROJECTS[name](SECRETS, asynchronous) as url:
        assert post(url, encoded()).json() == {"decision": "rollback"}
    with PROJECTS[name](SECRETS, blocking) as url:
        assert post(url, encoded()).json() == {"decision": "commit"}
    assert on_the_loop == [True, False]


def test_the_route_of_a_check_is_in_no_openapi_document():
    app = FastAPI()
    app.include_router(check_router(SECRETS, lambda check: "commit"))

    assert app.openapi()["paths"] == {}
