"""A replica in the place of the service: it follows, answers probes, and sends clients to the
service that it follows.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import structlog

from app import exit_codes
from app.component import Gauge
from app.components.names import names_gauges
from app.connections import Connections
from app.names.http_server import servers_of
from app.names.nodes import ReplicaNode, identity_of
from app.names.registrar import Registrar
from app.names.service import NodeService
from app.names.table import NameTable
from app.observability import Metrics
from app.problems import Refusal
from app.replicas.folder import NoteDamaged
from app.replicas.follower import Follower
from app.replicas.greeting import FollowRefused
from app.services import Services
from app.settings import Settings
from app.word_sets import Role
from storage.clock import SystemClock
from storage.errors import DirectoryInUse, FlushFailed, StorageError
from storage.identifiers import Identifiers, SystemRandom

log = structlog.get_logger()


class ReplicaLife:
    """Follows from its start to its end."""

    role: Role = "replica"

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.connections = Connections(settings.http.connection_limit)
        self.exit_code = 0
        self.on_fatal: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[], None] = lambda: None
        clock = SystemClock()
        self._follower = Follower(
            settings.data_dir,
            settings.replica,
            settings.local,
            clock,
            Identifiers(clock, SystemRandom()),
            find_primary=lambda: self._registrar.primary,
        )
        self._node = NodeService(
            settings.replica.node_name,
            NameTable(settings.names, clock),
            self._follower,
            max_body_values=settings.http.max_body_values,
        )
        self._group = settings.names.group
        self._registrar = Registrar(
            ReplicaNode(
                identity_of(
                    settings.names, settings.replica, host=settings.host, port=settings.port
                ),
                self._follower,
            ),
            self._node.table,
            servers_of(settings.names, settings.api_keys),
            settings.names,
            on_deposed=lambda _: None,  # a replica is not the service
        )
        self._following: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None
        metrics.watch(self._gauges)

    def get_node(self) -> NodeService:
        return self._node

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow(), name="following")
        self._registering = asyncio.create_task(self._registrar.start(), name="names")

    def begin_stop(self) -> None:
        self._follower.stop()

    async def close(self) -> None:
        self.begin_stop()
        if self._registering is not None:
            await asyncio.wait({self._registering})
            self._registering = None
            await self._registrar.stop()
        if self._following is not None:
            await asyncio.wait({self._following})
            self._following = None
            follower = self._follower
            log.info("stopped", end=follower.end, behind_bytes=follower.behind_bytes)
        await self._node.aclose()

    def get_services(self) -> Services:
        """Raises Refusal: the service has them."""
        raise self._not_primary()

    def get_readiness(self) -> Mapping[str, str]:
        follower = self._follower
        if not follower.is_connected:
            service = follower.primary or "its service"
            detail = f"it is not connected to {service}: the log has the reason"
            raise Refusal("recovering", detail)
        if not follower.has_caught_up:
            behind = str(follower.behind_bytes)
            context = {"behind_bytes": behind}
            raise Refusal("recovering", f"{behind} bytes of log are to come", context=context)
        return {"follows": "ok"}

    def refuse_role(self, role: Role) -> None:
        if role != self.role:
            raise self._not_primary()

    def _not_primary(self) -> Refusal:
        primary = self._node.table.primary_of(self._group)
        url = self._follower.primary_url
        if primary is not None and primary.registration.url:
            url = primary.registration.url
        if url:
            return Refusal("not_primary", f"This is a replica of {url}.", context={"primary": url})
        return Refusal(
            "not_primary",
            "This is a replica. Its service does not say where clients reach it: "
            "ESCROWMQ_REPLICA__ADVERTISE is not set there.",
        )

    async def _follow(self) -> None:
        try:
            await self._follower.run()
        except FollowRefused as error:
            log.critical("replica_refused", primary=self._follower.primary, reason=str(error))
            self._end(exit_codes.CONFIGURATION)
        except NoteDamaged as error:
            self._fail(exit_codes.CONFIGURATION, error)
        except DirectoryInUse as error:
            self._fail(exit_codes.DIRECTORY_IN_USE, error)
        except FlushFailed as error:
            self._fail(exit_codes.STORAGE_FAILED, error)
        except StorageError as error:
            self._fail(exit_codes.DATA_DAMAGED, error)
        except OSError as error:
            self._fail(exit_codes.STORAGE_FAILED, error)
        except Exception:
            log.exception("replica_failed")
            self._end(exit_codes.BUG)

    def _fail(self, exit_code: int, error: Exception) -> None:
        log.critical("replica_failed", error=str(error))
        self._end(exit_code)

    def _end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.on_fatal()

    def _gauges(self) -> Iterator[Gauge]:
        follower = self._follower
        yield Gauge("escrowmq_replica_follows", "Is it connected? 0 or 1", follower.is_connected)
        yield Gauge(
            "escrowmq_replica_behind_bytes",
            "Log of the service that is not on the disk here",
            follower.behind_bytes,
        )
        yield from names_gauges(self._registrar, self._node.table)
