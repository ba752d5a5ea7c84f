"""A name server over HTTP."""

import ssl
from collections.abc import Sequence

import httpx
import msgspec
from pydantic import SecretStr

from app.names.options import NameOptions
from app.names.registrar import CannotRegister, NameServer
from app.names.registration import NodeRegistration
from app.names.schemas import NodeRegistered

_SHOWN = 300  # characters of an answer that is no problem document


class _Problem(msgspec.Struct):
    code: str
    detail: str = ""


class HttpNameServer:
    """Another node, by its URL. Event loop only."""

    def __init__(self, url: str, options: NameOptions, *, api_key: str) -> None:
        authority = options.tls_authority
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            verify=ssl.create_default_context(cafile=authority) if authority else True,
            timeout=options.heartbeat_ms / 1000,
            trust_env=False,
        )

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        """Raises CannotRegister."""
        response = await self._request("PUT", node, msgspec.json.encode(registration))
        try:
            return msgspec.json.decode(response.content, type=NodeRegistered)
        except msgspec.DecodeError as error:
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
            raise CannotRegister(str(error) or type(error).__name__) from None
        if not response.is_success:
            raise CannotRegister(f"{response.status_code} {_reason(response)}")
        return response


def servers_of(options: NameOptions, own_keys: Sequence[SecretStr]) -> list[NameServer]:
    """Those of the settings. Nodes of one owner have one key, unless the settings say another."""
    key = options.api_key.get_secret_value()
    if not key and own_keys:
        key = own_keys[0].get_secret_value()
    return [HttpNameServer(url, options, api_key=key) for url in options.servers]


def _reason(response: httpx.Response) -> str:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        return response.text[:_SHOWN]
    return f"{problem.code}: {problem.detail}"
