"""A network that is none: what was connected to, what was written there, and what is answered."""

import ssl
from collections.abc import Iterable

import httpcore


class Wire(httpcore.AsyncNetworkBackend):
    """A connector for tests: no test that is given one reaches beyond this process."""

    def __init__(self, *answers: bytes, refusing: Iterable[str] = ()) -> None:
        self.answers = list(answers)
        self.refusing = set(refusing)  # addresses where nobody listens
        self.connected: list[tuple[str, int]] = []
        self.server_names: list[str | None] = []
        self.written: list[bytes] = []

    async def connect_tcp(self, host, port, timeout=None, local_address=None, socket_options=None):
        self.connected.append((host, port))
        if host in self.refusing:
            raise httpcore.ConnectError("nobody listens")
        self.written.append(b"")
        return _Stream(
            self, len(self.written) - 1, self.answers[min(len(self.written), len(self.answers)) - 1]
        )


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, wire: Wire, number: int, answer: bytes) -> None:
        self._wire = wire
        self._number = number
        self._left = answer

    async def read(self, max_bytes, timeout=None):
        piece, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return piece

    async def write(self, buffer, timeout=None):
        self._wire.written[self._number] += buffer

    async def aclose(self):
        """Nothing is open."""

    async def start_tls(self, ssl_context, server_hostname=None, timeout=None):
        assert ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert ssl_context.check_hostname
        self._wire.server_names.append(server_hostname)
        return self

    def get_extra_info(self, info):
        return None
