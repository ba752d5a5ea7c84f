"""An endpoint of webhooks that answers 204 at once, and keeps connections.

`python -m benchmarks.endpoint` is one, and prints its port.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import httptools
import uvloop

from benchmarks.floor import running

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LAST_ANSWER = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


class _Endpoint(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.should_keep_alive():
            self._transport.write(_ANSWER)
        else:
            self._transport.write(_LAST_ANSWER)
            self._transport.close()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Endpoint, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def endpoint(core: int) -> Iterator[int]:
    """Its port, on that core."""
    with running("benchmarks.endpoint", core) as (_, port):
        yield port


if __name__ == "__main__":
    uvloop.run(_serve())
