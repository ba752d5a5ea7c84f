"""SIGTERM and SIGINT as stops of a worker or checker, for programs with threads."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType


@contextmanager
def stop_at_signals(stop: Callable[[], None], *, once: bool) -> Generator[None, None, None]:
    """Call `stop` at each SIGTERM and SIGINT, in a thread of its own, if this is the main thread.

    `once`: at the first one only; a second has the effect that it had before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler interrupts this thread anywhere, also where it holds a lock that `stop` needs, or is
    # about to wait. Only the `put` of this queue may interrupt itself.
    stops: SimpleQueue[bool] = SimpleQueue()

    def await_stops() -> None:
        while stops.get():
            stop()

    def caught(_: int, __: FrameType | None) -> None:
        if once:
            restore()
        stops.put(True)

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    threading.Thread(target=await_stops, daemon=True).start()
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    for one in before:
        signal.signal(one, caught)
    try:
        yield
    finally:
        restore()
        stops.put(False)
