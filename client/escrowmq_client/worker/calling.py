"""Calls of a program's own functions: handlers, and answers to checks.

A function may raise CancelledError although nothing has cancelled it: it awaited a task of its own
that was. That is a failure of the function, HandlerCancelled. A CancelledError that comes out of
here is of the task that calls: the worker has cancelled it, or the program.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from escrowmq_client.worker.outcomes import check_returned

T = TypeVar("T")
R = TypeVar("R")


class HandlerCancelled(Exception):
    """A function that raised CancelledError, and was not cancelled."""


def called(function: Callable[[T], R], argument: T) -> R:
    """Call the function. Raises what it raises, and HandlerCancelled."""
    try:
        return function(argument)
    except asyncio.CancelledError as error:
        raise _own(error) from error


async def awaited(work: Awaitable[T]) -> T:
    """Await what a function returned; a cancellation of this task is passed on to it.

    Raises what it raises, and HandlerCancelled.
    """
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})  # raises the cancellation of this task alone
        except asyncio.CancelledError:  # noqa: PERF203  there may be several
            is_cancelled = True
            if not task.cancel():
                raise
    try:
        return task.result()
    except asyncio.CancelledError as error:
        if is_cancelled:
            raise
        raise _own(error) from error


async def run_handler(handler: Callable[[T], object], message: T) -> None:
    """Run a handler of a worker of tasks to its end: `async def`, or a plain function."""
    returned = called(handler, message)
    if inspect.isawaitable(returned):
        await awaited(returned)
    else:
        check_returned(returned)


def _own(error: asyncio.CancelledError) -> HandlerCancelled:
    """Make the failure, at the place of the error."""
    failure = HandlerCancelled("something that it awaited was cancelled")
    return failure.with_traceback(error.__traceback__)
