"""Calls of a caller's functions: one that raises harms neither the others nor the code that calls
them.

Such an exception is a mistake of the function's own: it is logged, and reported to the one caller
that waits for its answer.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

T = TypeVar("T")
log = structlog.get_logger()


def call_back(call: Callable[..., object], *given: Any) -> Exception | None:
    """Call it; what it raised, which is in the log then."""
    try:
        call(*given)
    except Exception as error:
        log.exception("callback_failed")
        return error
    return None


def answer(done: Callable[[T], None], failed: Callable[[Exception], None], result: T) -> None:
    """Call `done`; where that raises, `failed`: a caller waits for one of the two."""
    error = call_back(done, result)
    if error is not None:
        call_back(failed, error)
