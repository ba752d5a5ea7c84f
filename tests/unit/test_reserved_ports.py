"""Ports for servers that a test starts: no two of them are given the same one."""

import errno
import os
import socket

import pytest

from tests.support.server import reserved_port

_IN_USE = os.strerror(errno.EADDRINUSE)


def _port(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


def test_a_reserved_port_is_not_reserved_again():
    with reserved_port() as reserved, pytest.raises(OSError, match=_IN_USE):
        reserved_port(_port(reserved))


def test_a_port_on_which_a_server_listens_is_not_reserved():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match=_IN_USE):
        reserved_port(_port(server))


def test_a_server_listens_on_its_reserved_port_again_and_again():
    with reserved_port() as reserved:
        for _ in range(2):
            with (
                socket.create_server(("127.0.0.1", _port(reserved))) as server,
                socket.create_connection(server.getsockname()) as client,
            ):
                accepted, _ = server.accept()
                accepted.close()
                assert client.recv(1) == b""
