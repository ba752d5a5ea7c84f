"""A port of loopback before a Unix socket, for drivers of databases that know no such sockets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread


@contextmanager
def port_before(path: Path) -> Iterator[int]:
    """The number of the port."""

    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as far:
                far.connect(str(path))
                back = Thread(target=_copy, args=(far, self.request))
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


def _copy(source: socket.socket, target: socket.socket) -> None:
    while part := source.recv(1 << 16):
        target.sendall(part)
    target.shutdown(socket.SHUT_WR)
