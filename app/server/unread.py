"""The answers that a client has not read: while there are many, no more are written, and a client
that reads too slowly is cut off. Else they would stay in memory for as long as it likes.
"""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable

from app.bodies.budget import BodyBudget
from app.settings import HttpOptions


class UnreadAnswers:
    """Answers that the client of one connection has not read. Event loop only."""

    __slots__ = (
        "_bodies",
        "_counted_bytes",
        "_loop",
        "_on_slow",
        "_options",
        "_timer",
        "_transport",
        "_writable",
        "is_much",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        options: HttpOptions,
        bodies: BodyBudget,
        loop: asyncio.AbstractEventLoop,
        on_slow: Callable[[int, int], None],
    ) -> None:
        """`bodies`: counts the answers that clients leave unread. `on_slow`: has to cut the client
        off; gets the bytes that it has read lately, and those that are left.
        """
        self._transport = transport
        self._options = options
        self._bodies = bodies
        self._loop = loop
        self._on_slow: Callable[[int, int], None] | None = on_slow
        self.is_much = False
        self._counted_bytes = 0  # what `bodies` has of this connection now
        self._writable: asyncio.Future[None] | None = None  # done when the client has taken enough
        # runs while the client has to take more of its answers
        self._timer: asyncio.TimerHandle | None = None

    def note_much(self) -> None:
        """More is unread than the transport takes."""
        self.is_much = True
        self._count(self._transport.get_write_buffer_size())
        self._watch()

    def note_taken(self) -> None:
        """The client has taken enough of it."""
        self._go_on()
        if self._transport.is_closing():
            self._watch()  # nothing else ends it while its client leaves the rest unread

    def watch_closing(self) -> None:
        """See to it that the client takes what is left on a connection that was closed."""
        if self._timer is None and self._transport.get_write_buffer_size():
            self._watch()

    def watch_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """The connection is lost."""
        self._go_on()
        self._on_slow = None  # it refers to the connection

    async def drain(self) -> None:
        """Return once the client has taken enough of what was written, or has left."""
        while self.is_much:
            if self._writable is None or self._writable.done():
                self._writable = self._loop.create_future()
            await self._writable

    def _go_on(self) -> None:
        self.is_much = False
        self._count(0)
        self.watch_no_more()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _count(self, byte_count: int) -> None:
        change, self._counted_bytes = byte_count - self._counted_bytes, byte_count
        self._bodies.change_answers(change)

    def _watch(self) -> None:
        """Find out later how much of its answers the client has taken by then."""
        self.watch_no_more()
        timeout = self._options.unread_timeout_ms / 1000
        self._timer = self._loop.call_later(timeout, self._judge, self._untaken_bytes())

    def _judge(self, untaken_bytes: int) -> None:
        """`untaken_bytes`: as it was when the time began."""
        left_bytes = self._untaken_bytes()
        read_bytes = untaken_bytes - left_bytes
        if read_bytes >= self._options.least_read_bytes:
            self._watch()
        elif self._on_slow is not None:
            self._on_slow(read_bytes, left_bytes)

    def _untaken_bytes(self) -> int:
        """Bytes of answers that the client has not taken.

        The kernel has some of them: it takes more only when a third of its buffer is free, which
        are megabytes, so that a slow client would seem to take nothing for a long time.
        """
        return self._transport.get_write_buffer_size() + kernel_bytes(
            self._transport, termios.TIOCOUTQ
        )


def kernel_bytes(transport: asyncio.Transport, which: int) -> int:
    """Bytes that the kernel has of what the client sent (`FIONREAD`), or of what was sent to it and
    has not arrived (`TIOCOUTQ`); none of a transport without a socket.
    """
    own = transport.get_extra_info("socket")
    if own is None:
        return 0
    return int.from_bytes(fcntl.ioctl(own.fileno(), which, bytes(4)), sys.byteorder)
