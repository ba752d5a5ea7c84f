"""Hosts that the operator allows for webhooks: by name or address, and whole networks. Pure."""

from collections.abc import Iterable
from enum import Enum
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

import httpx

from app.webhooks.addresses import Address, is_public, parse_address

LISTED_HOSTS = "only hosts in ESCROWMQ_WEBHOOK__ALLOWED_HOSTS may differ"


class Reach(Enum):
    """Which addresses of a host a check may be sent to."""

    ANY = "it is listed by name"
    PUBLIC = "public ones, and those in a listed network"
    LISTED_NETWORK = (
        "those in a listed network: it is not https on port 443, as it must be elsewhere"
    )


class Allowed(NamedTuple):
    """`hosts`: as `normal_host` writes them."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def has_address(self, address: Address) -> bool:
        """Is the address in a listed network?

        One that is mapped into IPv6 is where its IPv4 address is.
        """
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)

    def fits(self, address: Address, reach: Reach) -> bool:
        """May a check be sent there?"""
        return (
            reach is Reach.ANY
            or self.has_address(address)
            or (reach is Reach.PUBLIC and is_public(address))
        )


def read_allowed(texts: Iterable[str]) -> Allowed:
    """Parse hosts and networks; a text with a slash is a network. Raises ValueError."""
    hosts, networks = set(), []
    for text in texts:
        if "/" in text:
            networks.append(_read_network(text.strip()))
        else:
            hosts.add(normal_host(text))
    return Allowed(frozenset(hosts), tuple(networks))


def normal_host(text: str) -> str:
    """A host as it is compared: the form that `Target.host` has."""
    bare = text.strip().removeprefix("[").removesuffix("]")
    address = parse_address(bare)
    if address is not None:
        return str(address)
    try:
        return httpx.URL(f"https://{bare}").raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, ValueError, UnicodeError):
        return bare.lower()


def _read_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(
            f"allowed_hosts holds {text}, which is no network, as 10.20.0.0/16 is one"
        ) from None
