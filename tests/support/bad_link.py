"""A link between machines that is not to be trusted: a TCP proxy that ends connections after any
number of bytes, and changes bits of what it carries.
"""

import socket
import threading
from collections import Counter
from contextlib import suppress
from random import Random
from types import TracebackType

_PIECE = 4_096


class BadLink:
    """Use as a context manager; `port` is where the other side connects."""

    def __init__(self, target_port: int, seed: int) -> None:
        self._target_port = target_port
        self._randomness = Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.is_good = False  # from now on it carries everything as it is
        self.counts: Counter[str] = Counter()  # of what it did
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "BadLink":
        self._start(self._accept)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        # a thread that waits in accept is not woken by a close
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    @property
    def faults(self) -> int:
        """Connections that it has ended or spoiled by itself."""
        return self.counts["cut"] + self.counts["spoiled"]

    @property
    def is_open(self) -> bool:
        """Does it carry a connection?"""
        return bool(self._open)

    def cut(self) -> None:
        """End all connections."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, run, *arguments) -> None:
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            self.counts["connections"] += 1
            left = self._randomness.choice((300, 3_000, 30_000, 300_000, 1_000_000))
            left = self._randomness.randrange(1, left)
            ends = (near, far)
            self._open.update(ends)
            self._start(self._carry, ends, left, self._randomness.random() < 0.5)
            self._start(self._carry, ends[::-1], 1 << 60, False)

    def _carry(self, ends: tuple[socket.socket, socket.socket], left: int, spoils: bool) -> None:
        """From the second to the first; after `left` bytes it ends, or one bit is changed."""
        target, source = ends
        with suppress(OSError):
            while data := source.recv(min(_PIECE, left) if left > 0 else _PIECE):
                left -= len(data)
                if left <= 0 and not self.is_good:
                    if not spoils:
                        self.counts["cut"] += 1
                        break
                    self.counts["spoiled"] += 1
                    spoils, left = False, 1 << 60
                    at = self._randomness.randrange(len(data))
                    changed = data[at] ^ 1 << self._randomness.randrange(8)
                    data = data[:at] + bytes([changed]) + data[at + 1 :]
                target.sendall(data)
        for end in ends:
            self._open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
