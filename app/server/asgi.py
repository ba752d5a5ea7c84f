"""Requests that an ASGI application answers."""

from typing import Any

from starlette.types import ASGIApp, Message

from app.http.exchange import IS_GONE
from app.server.request import Request
from app.testing.options import CUT


async def answer(app: ASGIApp, request: Request, *, can_cut: bool = False) -> None:
    """Let the application answer the request.

    `can_cut`: it may cut the connection, with the extension `CUT`.
    """

    async def receive() -> Message:
        body = await request.receive()
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": request.has_more}

    async def send(message: Message) -> None:
        await request.drain()
        if request.is_gone:
            return
        if message["type"] == "http.response.start":
            request.begin(message["status"], message.get("headers", []))
        else:
            has_more = message.get("more_body", False)
            request.write(message.get("body", b""), has_more=has_more)
            if has_more:  # what is behind it has no memory before the client has taken this
                await request.drain()

    await app(_scope(request, can_cut=can_cut), receive, send)


def _scope(request: Request, *, can_cut: bool) -> dict[str, Any]:
    own, peer = request.connection.addresses()
    extensions: dict[str, Any] = {IS_GONE: lambda: request.is_gone}
    if can_cut:
        extensions[CUT] = request.connection.cut
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version,
        "server": own,
        "client": peer,
        "scheme": "http",
        "root_path": "",
        "method": request.method,
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query_string,
        "headers": request.headers,
        "state": {},
        "extensions": extensions,
    }
