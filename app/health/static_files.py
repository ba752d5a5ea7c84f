"""Static files, as the service serves them."""

import os

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send


class WholeFiles(StaticFiles):
    """The files of a folder. Each is sent whole, whatever Range is asked for (RFC 9110, 14.2).

    The framework would refuse a Range in plain text, and take one of a HEAD request.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in scope["headers"] if header[0] != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        if response.status_code == 200:
            response.headers["Accept-Ranges"] = "none"
        return response
