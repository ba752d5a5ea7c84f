"""A name server over HTTP."""

import ssl
from collections.abc import Sequence

import httpx
import msgspec
from pydantic import SecretStr

from app.error_text import without_number
from app.names.options import NameOptions
from app.names.registrar import CannotRegister, NameServer
from app.names.registration import NodeRegistration
from app.names.schemas import NodeRegistered

# Out of a decoder, for what another program has sent.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SHOWN = 300  # characters of an answer that is no problem document


class _Problem(msgspec.Struct):
    code: str
    detail: str = ""


class HttpNameServer:
    """A name server on another node, by its URL. Event loop only."""

    def __init__(self, url: str, options: NameOptions, *, api_key: str) -> None:
        self.url = url.rstrip("/")
        self._http = http_client(options, api_key=api_key, timeout_s=options.heartbeat_ms / 1000)

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        """Raises CannotRegister."""
        response = await self._request("PUT", node, msgspec.json.encode(registration))
        try:
            return msgspec.json.decode(response.content, type=NodeRegistered)
        except UNREADABLE as error:
            raise CannotRegister(f"an answer that cannot be read: {error}") from None

    async def unregister(self, node: str) -> None:
        """Raises CannotRegister."""
        await self._request("DELETE", node)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _request(self, method: str, node: str, body: bytes = b"") -> httpx.Response:
        """Raises CannotRegister."""
        headers = {"Content-Type": "application/json"} if body else {}
        url = f"{self.url}/v1/names/nodes/{node}"
        try:
            response = await self._http.request(method, url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise CannotRegister(reason_without_answer(error)) from None
        if not response.is_success:
            raise CannotRegister(reason_of(response))
        return response


def servers_of(options: NameOptions, own_keys: Sequence[SecretStr]) -> list[NameServer]:
    """The name servers of the settings."""
    key = key_of(options, own_keys)
    return [HttpNameServer(url, options, api_key=key) for url in options.servers]


def key_of(options: NameOptions, own_keys: Sequence[SecretStr]) -> str:
    """The key for other nodes: those of one owner have one key, unless the settings say another."""
    key = options.api_key.get_secret_value()
    if not key and own_keys:
        key = own_keys[0].get_secret_value()
    return key


def http_client(options: NameOptions, *, api_key: str, timeout_s: float) -> httpx.AsyncClient:
    """A client for other nodes. Raises OSError where the file of the authority cannot be used."""
    authority = options.tls_authority
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        verify=ssl.create_default_context(cafile=authority) if authority else True,
        timeout=timeout_s,
        trust_env=False,
    )


def reason_without_answer(error: httpx.HTTPError) -> str:
    """The reason why there is no answer, for a person."""
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    return without_number(str(error)) or "the connection was cut"


def reason_of(response: httpx.Response) -> str:
    """Why a node refused a request, in a line."""
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except UNREADABLE:
        # Not `response.text`: it may name any encoding of Python, also one of no text.
        shown = response.content.decode("utf-8", "replace")[:_SHOWN]
        return f"{response.status_code} {shown}"
    return f"{response.status_code} {problem.code}: {problem.detail}"
