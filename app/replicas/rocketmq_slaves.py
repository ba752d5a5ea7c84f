"""Slaves of RocketMQ: each is invited, and let in by its address.

A slave learns of its master from name servers of RocketMQ, or from one request: it gets that
request here, again and again while it does not follow, since a slave that starts has forgotten it.
"""

import asyncio
import socket
from ipaddress import IPv6Address, ip_address
from operator import attrgetter
from typing import NamedTuple

import structlog

from app.replicas.options import ReplicaOptions, split_address
from app.replicas.replicated_log import ReplicatedLog
from app.replicas.slave_sender import SlaveRefused, SlaveSender
from app.rocketmq import remoting
from storage.clock import Clock
from storage.errors import MessagingError

_INVITATION_S = 5.0
_TIMEOUT_S = 5.0
_ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, nothing is bound to it here

log = structlog.get_logger()


class ConnectedSlave(NamedTuple):
    """Log offsets; bytes; milliseconds since it was last heard of."""

    address: str
    stored_offset: int
    behind_bytes: int
    silent_ms: int


class _Peer:
    """A slave of the settings, where its broker answers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.host, self.port = split_address(address)
        self.hosts: frozenset[str] = frozenset()  # IP addresses, as of the last invitation
        self.trouble = ""  # that was logged last


class RocketmqSlaves:
    """The RocketMQ slaves of the settings. Event loop only."""

    def __init__(self, store: ReplicatedLog, clock: Clock, options: ReplicaOptions) -> None:
        self._store = store
        self._clock = clock
        self._ha_host = options.ha_host
        self._peers = [_Peer(address) for address in options.rocketmq_peers]
        self._inviting: list[asyncio.Task[None]] = []
        self._senders: dict[asyncio.Task[None], SlaveSender] = {}

    def start(self, ha_port: int) -> None:
        """`ha_port`: where this service listens."""
        self._inviting = [
            asyncio.create_task(self._keep_inviting(peer, ha_port)) for peer in self._peers
        ]

    async def stop(self) -> None:
        tasks = [*self._inviting, *self._senders]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def connected(self) -> list[ConnectedSlave]:
        """The connected slaves, by address."""
        now_ms = self._clock.monotonic_ms()
        return [
            ConnectedSlave(
                sender.address, sender.stored_end, sender.behind_bytes, now_ms - sender.heard_ms
            )
            for sender in sorted(self._senders.values(), key=attrgetter("address"))
        ]

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first_report: bytes,
        address: str,
    ) -> None:
        """Serve a slave that has sent its first report, until it has gone."""
        host = _plain_host(split_address(address)[0])
        peer = next((peer for peer in self._peers if host in peer.hosts), None)
        if peer is None:
            reason = "it is not one of ESCROWMQ_REPLICA__ROCKETMQ_PEERS"
            log.warning("rocketmq_slave_refused", address=address, reason=reason)
            return
        task = asyncio.current_task()
        assert task is not None
        sender = SlaveSender(self._store, self._clock, address=address)
        try:
            sender.begin(first_report)
        except SlaveRefused as error:
            self._warn(peer, "rocketmq_slave_refused", str(error))
            return
        self._senders[task] = sender
        for dead in self._of(peer)[: -self._sharing(peer)]:
            dead.cancel()
        log.info("rocketmq_slave_follows", address=address)
        try:
            await sender.run(reader, writer)
            log.info("rocketmq_slave_gone", address=address)
            peer.trouble = ""
        except SlaveRefused as error:
            self._warn(peer, "rocketmq_slave_refused", str(error))
        except (OSError, EOFError, MessagingError) as error:
            log.warning("rocketmq_slave_lost", address=address, reason=str(error))
        except asyncio.CancelledError:  # by us, and the streams of 3.11 take it for a failure
            log.info("rocketmq_slave_left", address=address)
        finally:
            del self._senders[task]

    def _of(self, peer: _Peer) -> list[asyncio.Task[None]]:
        """Connections from where a slave is, the oldest first."""
        return [
            task
            for task, sender in self._senders.items()
            if _plain_host(split_address(sender.address)[0]) in peer.hosts
        ]

    def _sharing(self, peer: _Peer) -> int:
        """Slaves there, each of which has one connection."""
        return sum(bool(other.hosts & peer.hosts) for other in self._peers)

    async def _keep_inviting(self, peer: _Peer, ha_port: int) -> None:
        while True:
            if not peer.hosts or len(self._of(peer)) < self._sharing(peer):
                await self._invite(peer, ha_port)
            await asyncio.sleep(_INVITATION_S)

    async def _invite(self, peer: _Peer, ha_port: int) -> None:
        """Tell a slave where this service is. What goes wrong is logged, once."""
        try:
            peer.hosts = await _hosts_of(peer.host, peer.port)
            async with remoting.Broker(peer.host, peer.port, timeout_s=_TIMEOUT_S) as broker:
                ha_host = broker.own_host if self._ha_host in _ANY_HOST else self._ha_host
                fields = {
                    "masterHaAddress": f"{ha_host}:{ha_port}",
                    "masterFlushOffset": str(self._store.synced_offset()),
                }
                await broker.ask(remoting.Request.EXCHANGE_HA_ADDRESS, fields)
        except TimeoutError:
            self._warn(peer, "rocketmq_slave_not_invited", "no answer")
        except (OSError, EOFError, remoting.BadAnswer, remoting.Refused) as error:
            self._warn(peer, "rocketmq_slave_not_invited", str(error))

    def _warn(self, peer: _Peer, event: str, reason: str) -> None:
        """Log the trouble with a peer, unless it is the same as before."""
        if reason != peer.trouble:
            peer.trouble = reason
            log.warning(event, peer=peer.address, reason=reason)


async def _hosts_of(host: str, port: int) -> frozenset[str]:
    """IP addresses of a host. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(_plain_host(str(address[0])) for *_, address in found)


def _plain_host(host: str) -> str:
    """An IP address, without the IPv6 form of one of IPv4."""
    address = ip_address(host)
    plain = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(plain or address)
