"""Public IP addresses, to which a check may be sent. Pure.

`ipaddress` alone is not enough: some of its versions call translated, site-local and multicast
addresses global. What carries an IPv4 address inside is judged by that one, or refused where the
way it goes is not known.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_CLOSED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network, unspecified
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared with the provider's other customers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's own service, public only by its number
        "169.254.0.0/16",  # link-local; the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# global unicast; loopback, local, site-local, multicast, compatible ones are outside
_OPEN_V6 = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, benchmarks, ORCHID and other protocol assignments
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: the relay decides on the destination
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network(
    "64:ff9b::/96"
)  # the well-known prefix; a local one (64:ff9b:1::/48) leads to a translator of unknown rules


def parse_address(text: str) -> Address | None:
    """The address; None if the text is not one, written as addresses are."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Is the address public, and none of this service's own?"""
    if isinstance(address, IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return is_public(inner)
        return address in _OPEN_V6 and not any(address in network for network in _CLOSED_V6)
    return not any(address in network for network in _CLOSED_V4)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address contains."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
