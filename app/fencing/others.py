"""The other nodes of the settings, asked over HTTP."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pydantic import SecretStr

from app.fencing.http_node import ASK_S, HttpNode
from app.fencing.promotion import Quorum
from app.names.http_server import http_client, key_of
from app.names.options import NameOptions
from app.replicas.options import ReplicaOptions


@asynccontextmanager
async def others_of(
    replica: ReplicaOptions, names: NameOptions, own_keys: Sequence[SecretStr]
) -> AsyncIterator[Quorum]:
    """Raises OSError where the file of the authority cannot be used."""
    key = key_of(names, own_keys)
    async with http_client(names, api_key=key, timeout_s=ASK_S) as http:
        yield Quorum(replica, [HttpNode(url, http) for url in names.servers])
