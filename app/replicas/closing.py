"""The end of a connection, also to a machine that does not answer any more."""

import asyncio
from contextlib import suppress

_PATIENCE_S = 2.0


async def close(writer: asyncio.StreamWriter) -> None:
    """Close the connection; what the other side has not taken by then is not sent."""
    writer.close()
    with suppress(OSError):  # of the connection, and of TLS; a time-out is one, too
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await writer.wait_closed()
        finally:
            writer.transport.abort()
