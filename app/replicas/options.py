"""Settings of replication."""

import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from app.environment import from_json
from app.http.loopback import is_loopback
from app.replicas.frames import MAX_HEARTBEAT_MS
from storage.option_checks import require_at_least

MIN_FAILOVER_MS = 1_000  # a service that hands over is away for as long
_SHORT_SECRET = 16  # characters; a shorter one can be guessed by trying


class WhenMissing(Enum):
    """Behaviour of a service while too few replicas are there."""

    REFUSE = "refuse"
    DEGRADE = "degrade"


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Settings of the service that is followed, and of `escrowmq replica follow`."""

    ha_host: str = ""  # where replicas connect to; empty: none is served
    ha_port: int = 10_912
    # of a replica: host:port of the service that it follows; empty: name servers know it
    primary: str = ""
    advertise: str = ""  # URL at which clients reach this service; replicas send them there
    node: str = ""  # the name of this machine to others; empty: its host name
    # names of all machines of the service, the same on each: a promotion asks for promises then
    nodes: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    # both sides must have the same; needed beyond loopback
    secret: SecretStr = field(default_factory=lambda: SecretStr(""))
    tls_certificate: str = ""  # files, PEM: of the service that is followed
    tls_key: str = ""
    tls_authority: str = ""  # of a replica: who must have signed the certificate
    tls_off_beyond_loopback: bool = False  # the log goes over the network as it is
    # machines that have a message on disk before it is acknowledged, the service's among them
    copies: int = 1
    # while too few of them are there: refuse new messages, or acknowledge what this one has alone
    when_missing: WhenMissing = WhenMissing.REFUSE
    degrade_after_ms: int = 3_000
    heartbeat_ms: int = 1_000
    max_replicas: int = 4
    # host:port of brokers of RocketMQ that may follow as slaves; none of them counts as a copy
    rocketmq_peers: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    # of a replica: move aside what its log has and that of the service does not
    set_aside: bool = False
    # of a machine that runs `escrowmq node`: for so long no service has been there when it takes
    # its place; 0: a person promotes one
    failover_after_ms: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, ("copies", "heartbeat_ms", "max_replicas", "degrade_after_ms"))
        self._check_copies()
        self._check_connections()
        if self.primary:
            self.check_primary(self.primary)
        if self.nodes:
            self._check_nodes()
        if self.rocketmq_peers:
            self._check_rocketmq_peers()
        self._check_outages()

    @property
    def node_name(self) -> str:
        return self.node or socket.gethostname()

    @property
    def secret_text(self) -> str:
        return self.secret.get_secret_value()

    def check_primary(self, address: str) -> None:
        """May a replica with these settings connect there? Raises ValueError."""
        host, _ = split_address(address)
        if not is_loopback(host):
            self._check_beyond_loopback(f"primary {address}", bool(self.tls_authority))

    def _check_copies(self) -> None:
        if self.copies > 1 and not self.ha_host:
            raise ValueError(f"copies is {self.copies}, so ha_host must be set: replicas have them")
        if self.copies > self.max_replicas + 1:
            raise ValueError(f"copies is {self.copies}, max_replicas allows {self.max_replicas}")

    def _check_connections(self) -> None:
        if self.heartbeat_ms > MAX_HEARTBEAT_MS:
            raise ValueError(f"heartbeat_ms must be at most {MAX_HEARTBEAT_MS}")
        if not 0 <= self.ha_port <= 65_535:
            raise ValueError(f"ha_port must be from 0 to 65535, got {self.ha_port}")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key are set together, or neither of them")
        if self.advertise and not self.advertise.startswith(("http://", "https://")):
            raise ValueError(f"advertise begins with http:// or https://, got {self.advertise!r}")
        if self.ha_host and not is_loopback(self.ha_host):
            self._check_beyond_loopback(f"ha_host {self.ha_host}", bool(self.tls_certificate))

    def _check_nodes(self) -> None:
        if len({*self.nodes}) < len(self.nodes) or not all(self.nodes):
            raise ValueError(f"nodes are names, each of them once, got {self.nodes}")
        if self.node_name not in self.nodes:
            raise ValueError(f"nodes does not have {self.node_name}, which node says this is")
        if not self.copies <= len(self.nodes) <= self.max_replicas + 1:
            raise ValueError(
                f"{len(self.nodes)} nodes: copies must be at most that, and max_replicas allow it"
            )

    def _check_rocketmq_peers(self) -> None:
        for address in self.rocketmq_peers:
            split_address(address)
        if not self.ha_host:
            raise ValueError("rocketmq_peers are set, so ha_host must be: they connect there")
        if self.tls_certificate:
            raise ValueError(
                "rocketmq_peers are set, and a slave of RocketMQ speaks no TLS: unset "
                "tls_certificate, or rocketmq_peers"
            )

    def _check_outages(self) -> None:
        if self.when_missing is WhenMissing.DEGRADE and not (self.nodes and self.copies > 1):
            raise ValueError(
                "when_missing is degrade, so copies must be 2 or more, and nodes must be set"
            )
        if 0 < self.failover_after_ms < MIN_FAILOVER_MS or self.failover_after_ms < 0:
            raise ValueError(f"failover_after_ms must be 0, or at least {MIN_FAILOVER_MS}")

    def _check_beyond_loopback(self, what: str, has_tls: bool) -> None:
        if len(self.secret_text) < _SHORT_SECRET:
            raise ValueError(
                f"{what} is not loopback: secret must have at least {_SHORT_SECRET} characters"
            )
        if not has_tls and not self.tls_off_beyond_loopback:
            raise ValueError(
                f"{what} is not loopback: set tls_certificate and tls_key where replicas are "
                "served and tls_authority where one follows, or tls_off_beyond_loopback"
            )


def split_address(address: str) -> tuple[str, int]:
    """(host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no host:port")
    return host, int(port)
