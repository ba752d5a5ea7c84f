"""Another node, asked over HTTP for a promise."""

import httpx
import msgspec

from app.fencing.promotion import NoAnswer
from app.fencing.schemas import NodePromise, PromiseInput
from app.names.http_server import UNREADABLE, reason_of, reason_without_answer

ASK_S = 3.0  # one that does not answer meanwhile is not counted on
_PROMISE_S = 20.0  # a replica syncs what it has before it promises, and a service stops first
_PATH = "/v1/admin/promise"


class HttpNode:
    """A node, by its URL. Event loop only."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url.rstrip("/")
        self._http = http

    async def get_promise(self) -> NodePromise:
        """Raises NoAnswer."""
        return await self._ask("GET", b"", ASK_S)

    async def make_promise(self, given: PromiseInput) -> NodePromise:
        """Raises NoAnswer."""
        return await self._ask("PUT", msgspec.json.encode(given), _PROMISE_S)

    async def _ask(self, method: str, body: bytes, timeout_s: float) -> NodePromise:
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            response = await self._http.request(
                method, self.url + _PATH, content=body, headers=headers, timeout=timeout_s
            )
        except httpx.HTTPError as error:
            raise NoAnswer(reason_without_answer(error)) from None
        if not response.is_success:
            raise NoAnswer(reason_of(response))
        try:
            return msgspec.json.decode(response.content, type=NodePromise)
        except UNREADABLE as error:
            raise NoAnswer(f"an answer that cannot be read: {error}") from None
