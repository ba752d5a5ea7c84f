"""A link to a PostgreSQL server on which the end of a transaction, or the answer to it, is lost."""

import select
import socket
from contextlib import ExitStack, suppress
from enum import Enum, auto
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from sqlalchemy import make_url

_PIECE = 1 << 16
_CHANGES = (b"INSERT ", b"UPDATE ", b"DELETE ")


class Loss(Enum):
    ANSWER = auto()  # the server commits, and the connection is cut before its answer
    SILENCE = auto()  # the server commits, and the connection stays, without its answer
    # the connection is cut, which the server does not hear of: it waits for the COMMIT, which comes
    # with `deliver`
    COMMIT = auto()


class LosingLink:
    """Carries connections over TCP to the socket of a server.

    Use as a context manager. Once it has lost something it is down until `mend`.
    """

    def __init__(self, server: Path) -> None:
        self._server = str(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed: Loss | None = None
        self._is_down = False
        self._lost, self._delivered, self._closed = Event(), Event(), Event()

    def __enter__(self) -> "LosingLink":
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed.set()
        self._delivered.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def url(self, url: str) -> str:
        """The URL of a database of the server, over the link."""
        port = self._listener.getsockname()[1]
        over = make_url(url).set(host="127.0.0.1", port=port, query={})
        return over.render_as_string(hide_password=False)

    def lose(self, loss: Loss) -> None:
        """Lose it with the next COMMIT of a transaction that changes something."""
        self._lost.clear()
        self._delivered.clear()
        self._armed = loss

    def wait_until_lost(self) -> None:
        assert self._lost.wait(60), "nothing was lost"

    def mend(self) -> None:
        """Carry new connections again, after a loss."""
        self.wait_until_lost()
        self._is_down = False

    def deliver(self) -> None:
        """Bring the server the COMMIT that was lost."""
        self._delivered.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_down:
                    client.close()
                else:
                    Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(client)
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.connect(self._server)
            has_changed = False
            while not self._closed.is_set():
                for ready in select.select([client, server], [], [], 0.5)[0]:
                    data = ready.recv(_PIECE)
                    if not data:
                        return
                    if ready is client and b"COMMIT" in data:
                        if has_changed and self._armed is not None:
                            self._lose(client, server, data)
                            return
                        has_changed = False
                    elif ready is client:
                        has_changed |= any(verb in data for verb in _CHANGES)
                    (server if ready is client else client).sendall(data)

    def _lose(self, client: socket.socket, server: socket.socket, commit: bytes) -> None:
        loss, self._armed, self._is_down = self._armed, None, True
        if loss is Loss.COMMIT:
            client.close()
            self._lost.set()
            self._delivered.wait()
            server.sendall(commit)
        else:
            server.sendall(commit)
        server.recv(_PIECE)  # by then it has committed
        self._lost.set()
        if loss is Loss.SILENCE:
            client.recv(_PIECE)  # it gives up
