"""Probes, metrics, the OpenAPI documents, a page for each problem code. Open without a key."""

from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

from app.encoding import codec
from app.health.static_files import WholeFiles
from app.life.life import Life, role_of
from app.openapi import document as openapi
from app.problems import PROBLEMS, Refusal

router = APIRouter(include_in_schema=False)

# Swagger UI comes with a package, so that the page works on a machine without internet.
ASSETS = WholeFiles(directory=str(files("fastapi_offline").joinpath("static")))

# A page in a frame of another page would take clicks that were meant for that one.
_NOT_FRAMED = {"Content-Security-Policy": "frame-ancestors 'none'", "X-Frame-Options": "DENY"}


def _json(status: int, body: Any) -> Response:
    return Response(codec.encode(body), status, media_type="application/json")


@router.get("/")
async def root() -> RedirectResponse:
    """To the documentation."""
    return RedirectResponse("/docs")


@router.get("/livez")
async def livez() -> Response:
    """The process answers; during recovery too."""
    return _json(200, {"live": True})


@router.get("/readyz")
async def readyz(request: Request, role: str | None = None) -> Response:
    """Can it serve, in this role if one is given? If not, why, and how far it has come."""
    life: Life = request.app.state.lifecycle
    if role is not None:
        life.refuse_role(role_of(role))
    answer = _json(200, {"ready": True, "checks": life.get_readiness()})
    answer.headers["Store-Role"] = life.role
    return answer


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    return Response(await request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json")
async def openapi_3_1(request: Request) -> Response:
    """The OpenAPI document, version 3.1."""
    return _json(200, request.app.openapi())


@router.get("/openapi-3.0.json")
async def openapi_3_0(request: Request) -> Response:
    """The same for tools that know version 3.0 only."""
    return _json(200, openapi.document_3_0(request.app.openapi()))


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Every operation, to look at and to try."""
    page = get_swagger_ui_html(
        openapi_url="/docs/openapi.json",
        title=f"{request.app.title} API",
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="/docs/assets/favicon.png",
    )
    page.headers.update(_NOT_FRAMED)
    return page


@router.get("/docs/openapi.json")
async def openapi_of_page(request: Request) -> Response:
    """The OpenAPI document of the page: what is tried there goes to the service that serves it."""
    return _json(200, request.app.openapi() | {"servers": [{"url": "/"}]})


@router.get("/problems")
async def problem_list() -> HTMLResponse:
    """Every problem code."""
    rows = "".join(
        f"<tr><td>{kind.status}</td><td><a "
        f'href="/problems/{code}">{code}</a></td><td>{escape(kind.title)}</td></tr>'
        for code, kind in sorted(PROBLEMS.items(), key=lambda row: (row[1].status, row[0]))
    )
    return _page("Problem codes", f"<table>{rows}</table>")


@router.get("/problems/{code}")
async def problem(code: str) -> HTMLResponse:
    """Page on a problem code: its cause and remedy."""
    kind = PROBLEMS.get(code)
    if kind is None:
        raise Refusal("route_not_found", f"there is no problem code {code[:100]}")
    reserved = "<p>No operation of this release answers with it.</p>" if kind.is_reserved else ""
    if kind.retryable:
        again = "The same request may succeed later."
    elif kind.status >= 500:
        again = "With the same Idempotency-Key it is: nothing is stored twice. It may fail again."
    else:
        again = "The same request will be refused again."
    return _page(
        f"{kind.title} ({kind.status})",
        f"<p><code>{code}</code></p>{reserved}<h2>Cause</h2><p>{escape(kind.cause)}</p>"
        f"<h2>What to do</h2><p>{escape(kind.remedy)}</p><h2>Is it safe to "
        f"repeat?</h2><p>{again}</p>"
        '<p><a href="/problems">All problem codes</a></p>',
    )


def _page(title: str, body: str) -> HTMLResponse:
    style = (
        "body{font:16px/1.5 system-ui;max-width:44rem;margin:3rem auto;padding:0 "
        "1rem}td{padding:.2rem .8rem .2rem 0}"
    )
    head = (
        '<!doctype html><html lang="en"><meta '
        f'charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    )
    return HTMLResponse(f"{head}<h1>{escape(title)}</h1>{body}</html>", headers=_NOT_FRAMED)
