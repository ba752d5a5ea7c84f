"""A slave of RocketMQ, as far as its master sees one: it answers the request that tells it where its
master is, and connects there when a test says so.
"""

import json
import socket
import struct
import threading
from types import TracebackType

_BLOCK = struct.Struct(">qi")
_WAIT_SECONDS = 30


class ScriptedSlave:
    """Listens on a loopback port. Use as a context manager."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.invitations: list[dict[str, str]] = []
        self.refusal = ""  # of every request, if set
        self._is_invited = threading.Event()
        self._thread = threading.Thread(target=self._answer_all)

    def __enter__(self) -> "ScriptedSlave":
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def wait_until_invited(self) -> dict[str, str]:
        assert self._is_invited.wait(_WAIT_SECONDS), "no master came"
        return self.invitations[-1]

    def _answer_all(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        total, length = struct.unpack(">ii", read_exactly(connection, 8))
        request = json.loads(read_exactly(connection, total - 4)[:length])
        assert request["code"] == 906, request
        answer = {"code": 0, "opaque": request["opaque"], "flag": 1, "language": "JAVA"}
        if self.refusal:
            answer |= {"code": 16, "remark": self.refusal}
        header = json.dumps(answer).encode()
        connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        self.invitations.append(request["extFields"])
        self._is_invited.set()


class Following:
    """A connection of a slave to its master. Use as a context manager."""

    def __init__(self, ha_port: int, end: int) -> None:
        """`end`: of the slave's log, as it says first."""
        self._socket = socket.create_connection(("127.0.0.1", ha_port), timeout=_WAIT_SECONDS)
        self.report(end)

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._socket.close()

    def report(self, end: int) -> None:
        self._socket.sendall(struct.pack(">q", end))

    def block(self) -> tuple[int, bytes]:
        """(log offset, bytes); no bytes: a heartbeat."""
        offset, size = _BLOCK.unpack(read_exactly(self._socket, _BLOCK.size))
        return offset, read_exactly(self._socket, size)

    def rest(self) -> bytes:
        """All bytes that come until the master closes the connection."""
        data = b""
        while piece := self._socket.recv(1 << 16):
            data += piece
        return data


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
        data += piece
    return data
