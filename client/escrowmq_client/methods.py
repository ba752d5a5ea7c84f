"""Operations as methods of a client: `Callable[P, Call[T]]` becomes `(self, *P) -> T`.

Signatures, types and docstrings are those of the operation, for type checkers and for `help()`.
"""

import inspect
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from escrowmq_client.call import Call

P = ParamSpec("P")
T = TypeVar("T")

# Several calls, one after another: each is yielded, and its result sent in.
Steps = Generator[Call[Any], Any, T]


class Caller(Protocol):
    """A client that executes calls."""

    def call(self, call: Call[T], /) -> T:
        """Execute a call."""
        ...


class AsyncCaller(Protocol):
    """A client that executes calls on an event loop."""

    async def call(self, call: Call[T], /) -> T:
        """Execute a call."""
        ...


def sync_method(operation: Callable[P, Call[T]]) -> Callable[Concatenate[Caller, P], T]:
    """Make a method of `Client`."""

    def method(self: Caller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(operation(*args, **kwargs))

    return _described(method, operation)


def async_method(
    operation: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncCaller, P], Coroutine[Any, Any, T]]:
    """Make a method of `AsyncClient`."""

    async def method(self: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(operation(*args, **kwargs))

    return _described(method, operation)


def sync_steps(steps: Callable[P, Steps[T]]) -> Callable[Concatenate[Caller, P], T]:
    """Make a method of `Client` that executes several calls."""

    def method(self: Caller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        running = steps(*args, **kwargs)
        try:
            call = next(running)
            while True:
                call = running.send(self.call(call))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return _described(method, steps)


def async_steps(
    steps: Callable[P, Steps[T]],
) -> Callable[Concatenate[AsyncCaller, P], Coroutine[Any, Any, T]]:
    """Make a method of `AsyncClient` that executes several calls."""

    async def method(self: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        running = steps(*args, **kwargs)
        try:
            call = next(running)
            while True:
                call = running.send(await self.call(call))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return _described(method, steps)


M = TypeVar("M", bound=Callable[..., Any])


def _described(method: M, operation: Callable[..., Any]) -> M:
    """Give the method the name, docstring and parameters of the operation, and its result."""
    signature = inspect.signature(operation)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    update_wrapper(method, operation)
    del method.__wrapped__  # type: ignore[attr-defined]  # whose result is a Call
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[itself, *signature.parameters.values()],
        return_annotation=get_args(signature.return_annotation)[-1],
    )
    return method
