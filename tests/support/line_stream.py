"""A client of the stream of messages that reads while it writes: lines of JSON both ways on one
connection.
"""

import json
import socket
from types import TracebackType
from typing import Any

from tests.support.http import WAIT_SECONDS
from tests.support.server import Server


class LineStream:
    """One request. Use as a context manager."""

    def __init__(
        self, server: Server, topic: str, *headers: str, read_buffer_bytes: int | None = None
    ) -> None:
        self._socket = socket.socket()
        if read_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer_bytes)
        self._socket.settimeout(WAIT_SECONDS)
        self._socket.connect(("127.0.0.1", server.port))
        self._received = self._socket.makefile("rb")
        self._body = b""
        self._is_over = False
        head = [
            f"POST /v1/topics/{topic}/messages/stream HTTP/1.1",
            "Host: localhost",
            "Transfer-Encoding: chunked",
            *headers,
            "",
            "",
        ]
        self._socket.sendall("\r\n".join(head).encode())
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> "LineStream":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._received.close()
        self._socket.close()

    def write(self, data: bytes) -> None:
        """A piece of the body, wherever lines begin and end."""
        self._socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def send(self, *lines: Any) -> None:
        """As JSON."""
        self.write(b"".join([json.dumps(line).encode() + b"\n" for line in lines]))

    def end(self) -> None:
        self._socket.sendall(b"0\r\n\r\n")

    def read(self) -> dict[str, Any] | None:
        """The next answer; None where the stream was ended in order.

        Raises ConnectionError where it broke off.
        """
        while b"\n" not in self._body:
            chunk = self._chunk()
            if not chunk:
                return None
            self._body += chunk
        line, _, self._body = self._body.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rest(self) -> list[dict[str, Any]]:
        """All answers that are to come."""
        answers = []
        while (answer := self.read()) is not None:
            answers.append(answer)
        return answers

    def fill(self, line: bytes, *, most: int) -> int:
        """Write the line again and again until it is no longer taken, at most so often; how
        often.
        """
        self._socket.settimeout(3)  # beyond any pause that a busy machine makes
        for count in range(most):
            try:
                self.write(line)
            except OSError:  # its time is up, or the connection is gone
                return count
        return most

    def read_until_cut(self) -> int:
        """Read until the service closes the connection in the middle of the answer; how many
        answers came before.
        """
        self._socket.settimeout(WAIT_SECONDS)
        count = 0
        try:
            while self.read() is not None:
                count += 1
        except ConnectionError:
            return count
        raise AssertionError("the stream was ended in order")

    def _chunk(self) -> bytes:
        if not self.status:
            self.status = int(self._line().split(b" ")[1])
            while (line := self._line()) != b"\r\n":
                name, _, value = line.decode("latin-1").partition(":")
                self.headers[name.lower()] = value.strip()
        if self._is_over:
            return b""
        length = int(self._line(), 16)
        chunk = self._received.read(length)
        self._line()
        self._is_over = length == 0
        return chunk

    def _line(self) -> bytes:
        line = self._received.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the answer broke off")
        return line
