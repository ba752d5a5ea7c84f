"""A port of loopback before another address: for drivers of databases that know no Unix sockets,
and for clients of a later release of the service.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread


@contextmanager
def port_before(
    address: Path | int, *, replaced: tuple[bytes, bytes] = (b"", b"")
) -> Iterator[int]:
    """The number of the port.

    `address`: a Unix socket, or a port of loopback. `replaced`: what is written in the answers in
    place of something of the same length.
    """

    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with _connected(address) as far:
                back = Thread(target=_copy, args=(far, self.request, *replaced))
                back.start()
                _copy(self.request, far)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _connected(address: Path | int) -> socket.socket:
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address))
    far = socket.socket(socket.AF_UNIX)
    far.connect(str(address))
    return far


def _copy(
    source: socket.socket, target: socket.socket, known: bytes = b"", unknown: bytes = b""
) -> None:
    while part := source.recv(1 << 16):
        target.sendall(part.replace(known, unknown) if known else part)
    with suppress(OSError):  # the other direction has ended the connection
        target.shutdown(socket.SHUT_WR)
