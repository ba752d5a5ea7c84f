"""Settings of the name service."""

from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr

from app.environment import from_json
from app.http.loopback import is_loopback
from storage.formats import names
from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """Settings of a node as it registers, and of the table that it keeps of others."""

    # URLs of nodes that this one registers with, beside itself
    servers: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))  # theirs; empty: the own one
    cluster: str = "default"
    group: str = "escrowmq"  # the name of the service, its replicas included
    heartbeat_ms: int = 3_000
    away_ms: int = 10_000  # a node that is silent for so long is away
    forget_ms: int = 120_000  # and is not listed any more after so long
    max_nodes: int = 64
    tls_authority: str = ""  # file, PEM: who must have signed the certificates of the servers
    tls_off_beyond_loopback: bool = False  # the key goes over the network as it is

    def __post_init__(self) -> None:
        require_at_least(1, self, ("heartbeat_ms", "away_ms", "forget_ms", "max_nodes"))
        if not self.heartbeat_ms < self.away_ms <= self.forget_ms:
            raise ValueError("heartbeat_ms must be less than away_ms, and that at most forget_ms")
        for name in (self.cluster, self.group):
            if not names.is_valid_name(name):
                raise ValueError(f"cluster and group are letters, digits, _ - and ., got {name!r}")
        for url in self.servers:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                raise ValueError(f"servers are URLs with http:// or https://, got {url!r}")
            if parts.scheme == "http" and not (
                is_loopback(parts.hostname) or self.tls_off_beyond_loopback
            ):
                raise ValueError(
                    f"{url} is not loopback: use https://, or set tls_off_beyond_loopback"
                )
