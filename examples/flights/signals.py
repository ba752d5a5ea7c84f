"""Ctrl-C and SIGTERM at moments when they would do harm."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[None]:
    """A signal in here counts afterwards. Between the start of a process and its name in our books,
    the process is nobody's: an interruption at that point would leave it behind.
    """
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda arrived, _: came.append(arrived))
        for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def ignore() -> None:
    """From now on: whoever is impatient must not keep us from ending what we started."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
