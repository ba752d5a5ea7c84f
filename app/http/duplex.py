"""A connection on which both sides send when they like."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_one_ends(
    sending: Coroutine[Any, Any, None], hearing: Coroutine[Any, Any, None]
) -> None:
    """Run both; the end of one ends the other. Raises what ended them."""
    tasks = asyncio.ensure_future(sending), asyncio.ensure_future(hearing)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
