"""`python -m benchmarks.probed_service serve ...`: the service, and how long its event loop took for one turn.

CPU seconds of the whole process between two beats of a timer on the loop, so that a busy host does not count, and a thread that
holds the GIL does.
"""

import asyncio
import sys
from time import process_time

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.main import create_app
from app.settings import Settings
from cli import main, serve

PATH = "/longest-turn"  # answers with the longest turn since it was asked last, in seconds
_BEAT_SECONDS = 0.001


class TurnProbe:
    """ASGI middleware, outside of everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._longest = 0.0
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        found, self._longest = self._longest, 0.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": repr(found).encode()})

    async def _beat(self) -> None:
        before = process_time()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            now = process_time()
            self._longest = max(self._longest, now - before)
            before = now


def _create_probed(settings: Settings) -> FastAPI:
    app = create_app(settings)
    app.add_middleware(TurnProbe)
    return app


if __name__ == "__main__":
    serve.create_app = _create_probed
    sys.exit(main.main())
