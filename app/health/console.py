"""The console's files, and what a browser may do with them."""

from collections.abc import MutableMapping
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from app.health.static_files import WholeFiles

router = APIRouter(include_in_schema=False)

# Scripts and styles are files of the console alone, and data comes from this service alone: names
# and bodies of messages are written by others and must not become either.
_RULES = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # With every load the browser asks whether it has the files of this release.
    "Cache-Control": "no-cache",
}


class _Files(WholeFiles):
    """The files of a folder, with the rules above."""

    async def get_response(self, path: str, scope: MutableMapping[str, Any]) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_RULES)
        return response


FILES = _Files(directory=str(files("console").joinpath("static")), html=True)


@router.get("/ui")
async def ui() -> RedirectResponse:
    """To the console. Relative, so that it also works below a path of a proxy."""
    return RedirectResponse("ui/")
